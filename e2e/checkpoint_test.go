package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// rowraft runs one command of the binary to its end.
func (c *cluster) rowraft(ctx context.Context, args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "rowraft"),
		append(args, "--insecure", "--endpoints", strings.Join(c.Endpoints(), ","))...)
	var out, errout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errout
	err := cmd.Run()
	if err != nil && errors.As(err, new(*exec.ExitError)) == false {
		c.t.Fatal(err)
	}
	return out.String(), errout.String(), cmd.ProcessState.ExitCode()
}

// patiently is rowraft of a command that may be run again. It is, as long as it ends for
// want of a leader, or because there is another one (exit code 4): on a busy machine they
// change.
func (c *cluster) patiently(args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	ctx := deadline(c.t, patience)
	_ = poll(ctx, func() error {
		if stdout, stderr, code = c.rowraft(ctx, args...); code != 4 {
			return nil
		}
		c.t.Logf("rowraft %s is run again: %s", strings.Join(args, " "), stderr)
		return errors.New("exit code 4")
	})
	return stdout, stderr, code
}

// createCheckpoint makes a checkpoint and returns its manifest.
func (c *cluster) createCheckpoint(dest, name string) *checkpoint.Manifest {
	c.t.Helper()
	c.mustCreate(dest, name)
	d, err := depot.Open(dest)
	if err != nil {
		c.t.Fatal(err)
	}
	m, err := checkpoint.ReadManifest(c.t.Context(), depot.At(d, name))
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// mustCreate makes a checkpoint and returns what the command says.
func (c *cluster) mustCreate(dest, name string, flags ...string) string {
	c.t.Helper()
	args := append([]string{"checkpoint", "create", dest, "--name", name}, flags...)
	var out, errout string
	code, again := 0, false
	_ = poll(deadline(c.t, patience), func() error {
		out, errout, code = c.rowraft(deadline(c.t, patience), args...)
		// What a try leaves that has lost its leader goes before the next one. It may end
		// after that, where the leader only stood still. A trainer may be on its way to a
		// new leader for longer than a checkpoint waits for it.
		left := again && strings.Contains(errout, name+" exists")
		if code != 4 && !(code == 1 && (left || strings.Contains(errout, "is not connected to the scheduler"))) {
			return nil
		}
		again = true
		c.t.Logf("rowraft %s is run again: %s", strings.Join(args, " "), errout)
		c.rowraft(deadline(c.t, patience), "checkpoint", "delete", dest+"/"+name, "--yes")
		return fmt.Errorf("exit code %d", code)
	})
	if code != 0 {
		c.t.Fatalf("checkpoint create %s: exit code %d: %s", name, code, errout)
	}
	c.t.Log(out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:])
	return out
}

// verifies runs `checkpoint verify`, which needs no cluster.
func verifies(t testing.TB, path string) (code int, out string) {
	t.Helper()
	cmd := exec.CommandContext(deadline(t, patience), filepath.Join(bin, "rowraft"), "checkpoint", "verify", path, "-o",
		"json")
	b, err := cmd.CombinedOutput()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(b)
}

func openChain(t testing.TB, dest, name string) checkpoint.Chain {
	t.Helper()
	d, err := depot.Open(dest)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := depot.Chain(t.Context(), d, name)
	if err != nil {
		t.Fatal(err)
	}
	return chain
}

// savedRows reads the weights of a table out of a checkpoint.
func savedRows(t testing.TB, dest, name, table string) map[rowraft.Key][]float32 {
	t.Helper()
	chain := openChain(t, dest, name)
	m := chain.Manifest()
	i := slices.IndexFunc(m.Tables, func(s checkpoint.TableSum) bool { return s.Schema.Name == table })
	if i < 0 {
		t.Fatalf("the checkpoint has no table %s", table)
	}
	schema := m.Tables[i].Schema
	rows := make(map[rowraft.Key][]float32)
	for i := range m.Shards {
		_, err := chain.ReadShard(t.Context(), i, nil, func(b *checkpoint.Block) error {
			for rec := b.Records; b.Table == schema.ID && len(rec) > 0; rec = rec[b.RecordBytes:] {
				w := make([]float32, schema.Dim)
				for i := range w {
					w[i] = math.Float32frombits(binary.LittleEndian.Uint32(rec[24+4*i:]))
				}
				rows[rowraft.Key(binary.LittleEndian.Uint64(rec[8:]))] = w
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

// chain pushes to one key after the other, each push after the acknowledgement of
// the one before: the counts of a cut fall along the keys, by one at most.
type chain struct {
	table *client.Table
	keys  []rowraft.Key // in different shards
	stop  chan struct{}
	wg    sync.WaitGroup
	err   error
	mu    sync.Mutex
	slow  time.Duration // the longest push so far

	pushed int
}

func startChain(c *cluster, name string) *chain {
	c.t.Helper()
	cl := c.dial(client.Options{})
	table, err := cl.CreateTable(deadline(c.t, patience), rowraft.Schema{
		Name: name, Kind: rowraft.Sparse, Dim: 1, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
		Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}, true)
	if err != nil {
		c.t.Fatal(err)
	}
	ch := &chain{table: table, stop: make(chan struct{})}
	for _, s := range cl.Map().Shards {
		k, err := cl.Map().KeyInShard(table.Schema().ID, s.ID)
		if err != nil {
			c.t.Fatal(err)
		}
		ch.keys = append(ch.keys, k)
	}
	ch.wg.Go(func() { ch.err = ch.run() })
	err = poll(deadline(c.t, patience), func() error { // a cut then has one of each
		ch.mu.Lock()
		defer ch.mu.Unlock()
		if ch.pushed < len(ch.keys) {
			return fmt.Errorf("%d pushes of %s are acknowledged", ch.pushed, name)
		}
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return ch
}

func (ch *chain) run() error {
	for {
		for _, k := range ch.keys {
			select {
			case <-ch.stop:
				return nil
			default:
			}
			begin := time.Now()
			if _, err := ch.table.Push(context.Background(), []rowraft.Key{k}, []float32{-1}); err != nil {
				return err
			}
			ch.mu.Lock()
			ch.slow, ch.pushed = max(ch.slow, time.Since(begin)), ch.pushed+1
			ch.mu.Unlock()
		}
	}
}

func (ch *chain) end(t testing.TB) {
	t.Helper()
	close(ch.stop)
	ch.wg.Wait()
	if ch.err != nil {
		t.Error(ch.err)
	}
}

// check compares a cut with the order in which the pushes were acknowledged.
func (ch *chain) check(t testing.TB, rows map[rowraft.Key][]float32) {
	t.Helper()
	var counts []float32
	for _, k := range ch.keys {
		n := float32(0)
		if w, ok := rows[k]; ok {
			n = w[0]
		}
		counts = append(counts, n)
	}
	for i := range counts {
		if i > 0 && counts[i] > counts[i-1] || counts[i] < counts[0]-1 || counts[0] == 0 {
			t.Errorf("the cut has %v pushes along the shards: one that came after another one's acknowledgement is in it, and "+
				"that is not", counts)
			return
		}
	}
}

// digestOfAll is the sum over all shards. Nothing may write meanwhile.
func (c *cluster) digestOfAll() (sum checkpoint.Digest) {
	c.t.Helper()
	ctx := deadline(c.t, patience)
	cl := c.dial(client.Options{})
	for _, s := range cl.Map().Shards {
		err := poll(ctx, func() error {
			d, err := c.digestOfLeader(ctx, s.ID)
			if err == nil {
				sum = sum.Add(checkpoint.Digest(d.Digest))
			}
			return err
		})
		if err != nil {
			c.t.Fatal(err)
		}
	}
	return sum
}

// digestOfLeader is what the leader of a shard has, at or behind all that is committed: it
// leads before and afterwards, in one term.
func (c *cluster) digestOfLeader(ctx context.Context, shard rowraft.ShardID) (*rowraftv1.DigestReply, error) {
	term := func() (leader *localcluster.Server, at *rowraftv1.ReplicaStatus, err error) {
		leads, err := c.leaders(ctx)
		if err != nil {
			return nil, nil, err
		}
		st, err := nodeStatus(ctx, leads[shard])
		if err != nil {
			return nil, nil, err
		}
		for _, r := range st.Replicas {
			if rowraft.ShardID(r.Shard) == shard && r.Role == "leader" {
				return leads[shard], r, nil
			}
		}
		return nil, nil, fmt.Errorf("shard %d: its leader is another one by now", shard)
	}
	leader, before, err := term()
	if err != nil {
		return nil, err
	}
	d, err := digest(ctx, leader.Addr, shard, before.LastIndex) // commits what it has got of others
	if err != nil {
		return nil, err
	}
	if now, after, err := term(); err != nil || now != leader || after.Term != before.Term {
		return nil, fmt.Errorf("shard %d: its leader changed: %v", shard, err)
	}
	return d, nil
}

// listed runs `checkpoint list` and returns state by name.
func listed(t testing.TB, dest string) map[string]string {
	t.Helper()
	out, err := exec.CommandContext(deadline(t, patience), filepath.Join(bin, "rowraft"), "checkpoint", "list", dest, "-o",
		"json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Checkpoints []struct{ Name, State string } `json:"checkpoints"`
	}
	if err := json.Unmarshal(out, &v); err != nil {
		t.Fatal(err)
	}
	states := make(map[string]string)
	for _, c := range v.Checkpoints {
		states[c.Name] = c.State
	}
	return states
}
