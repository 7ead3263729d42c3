package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// proofCluster is servers with one shard, whose leader compares its replicas continuously. Once harm is
// set, one replica applies one gradient with the wrong sign.
type proofCluster struct {
	*testCluster
	harm     atomic.Int32 // 1: a leader misapplies, 2: a follower
	harmed   atomic.Bool
	harmAt   atomic.Int64 // UnixNano
	harmedOn atomic.Value // string: the server
	byNode   map[string]int
	table    *client.Table
	ctx      context.Context
	pushed   int64
	made     int // checkpoints, or tries
}

func startProofCluster(t *testing.T, servers int) *proofCluster {
	return startProofClusterWith(t, servers, func(*Config) {})
}

func startProofClusterWith(t *testing.T, servers int, change func(*Config)) *proofCluster {
	c := &proofCluster{byNode: make(map[string]int)}
	c.testCluster = startClusterWith(t, servers, 1, func(cfg *Config) {
		cfg.Profile, cfg.ProofEvery = "default", 100*time.Millisecond
		cfg.tamper(func(r *applier, entry []byte) []byte {
			want := c.harm.Load()
			if want == 0 || r.leads() != (want == 1) {
				return entry
			}
			at := bytes.Index(entry, []byte{0, 0, 0x80, 0xBF}) // -1, a gradient of push
			if at < 0 || !c.harmed.CompareAndSwap(false, true) {
				return entry
			}
			c.harmAt.Store(time.Now().UnixNano())
			c.harmedOn.Store(r.node)
			wrong := bytes.Clone(entry) // other goroutines use entry
			wrong[at+3] ^= 0x80
			return wrong
		})
		change(cfg)
	})
	for i, n := range c.nodes {
		c.byNode[n.cfg.Name] = i
	}
	var err error
	c.ctx = testutil.Context(t)
	if c.table, err = c.dial().CreateTable(c.ctx, counterSchema("user"), false); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *proofCluster) push() {
	c.t.Helper()
	if _, err := c.table.Push(c.ctx, []rowraft.Key{7}, []float32{-1, -1, -1, -1}); err != nil {
		c.t.Fatal(err)
	}
	c.pushed++
}

// wantRow pulls the row and compares it with the pushes.
func (c *proofCluster) wantRow() {
	c.t.Helper()
	var got [4]float32
	if err := c.table.Pull(c.ctx, []rowraft.Key{7}, got[:]); err != nil || got[0] != float32(c.pushed) {
		c.t.Fatalf("the row holds %v after %d pushes (%v)", got, c.pushed, err)
	}
}

// replicas asks every running server for its replica of the shard.
func (c *proofCluster) replicas() map[string]*rowraftv1.ReplicaStatus {
	out := make(map[string]*rowraftv1.ReplicaStatus)
	for i, n := range c.nodes {
		if n.cancel == nil {
			continue
		}
		st, err := c.admin(i).NodeStatus(c.ctx, &rowraftv1.NodeStatusRequest{})
		if err != nil {
			continue
		}
		for _, r := range st.Replicas {
			out[n.cfg.Name] = r
		}
	}
	return out
}

// leader returns the server that leads in the newest known term; "" if there is none.
func (c *proofCluster) leader() (name string, term uint64) {
	for server, r := range c.replicas() {
		if r.Term > term {
			name, term = "", r.Term
		}
		if r.Term == term && r.Role == "leader" {
			name = server
		}
	}
	return name, term
}

func (c *proofCluster) admins() (all []rowraftv1.ReplicasClient) {
	for i := range c.nodes {
		all = append(all, c.admin(i))
	}
	return all
}

// fencedServer returns the server whose fenced replica has stopped.
func (c *proofCluster) fencedServer() string {
	for name, r := range c.replicas() {
		if r.Role == "fenced" {
			return name
		}
	}
	return ""
}

// TestAReplicaInTheMinorityIsFenced: a follower, or the leader, applies one gradient wrongly. It is fenced
// soon, and from then on every read is correct. It keeps its disk, stays fenced over a restart, and a move
// replaces it.
func TestAReplicaInTheMinorityIsFenced(t *testing.T) {
	for role, harm := range map[string]int32{"leader": 1, "follower": 2} {
		t.Run(role, func(t *testing.T) {
			c := startProofCluster(t, 4)
			testutil.Eventually(t, "the replicas agree", func() bool {
				c.push()
				proved := 0
				for _, r := range c.replicas() {
					if r.ProvedIndex > 0 {
						proved++
					}
				}
				return proved == 3
			})
			c.wantRow()
			c.harm.Store(harm)
			name := ""
			testutil.Eventually(t, "a replica is fenced", func() bool {
				c.push()
				name = c.fencedServer()
				return name != ""
			})
			t.Logf("a %s that misapplied was fenced after %v", role,
				time.Duration(time.Now().UnixNano()-c.harmAt.Load()).Round(time.Millisecond))
			for range 20 {
				c.push()
				c.wantRow()
			}
			c.checkFenced(name)

			// The replica stays fenced over a restart.
			i := c.byNode[name]
			c.stopNode(i)
			c.restart(i)
			for range 20 {
				c.push()
				c.wantRow()
			}
			c.checkFenced(name)

			// A move replaces the replica.
			spare := ""
			m := c.status(c.ctx).Map
			for _, n := range m.Nodes {
				if !slices.ContainsFunc(m.Shards[0].Replicas, func(r *rowraftv1.Replica) bool { return r.Node == n.Id }) {
					spare = n.Name
				}
			}
			mv, err := c.startMove(c.ctx, 0, name, spare)
			if err != nil {
				t.Fatal(err)
			}
			if end := c.ended(c.ctx, mv.Id); end.Phase != rowraftv1.MovePhase_MOVE_PHASE_DONE {
				t.Fatalf("move %v", end)
			}
			c.push()
			c.wantRow()
			c.sameDigests(c.ctx, 0)
			testutil.Eventually(t, "the fenced replica and its mark are deleted", func() bool {
				left, _ := filepath.Glob(filepath.Join(c.dir, name, "fenced", "*"))
				_, err := os.Stat(c.groupDir(name, 0))
				return len(left) == 0 && errors.Is(err, os.ErrNotExist) && c.fencedServer() == ""
			})
			testutil.Eventually(t, "three replicas have noted the same", func() bool {
				reply := c.prove()
				noted := 0
				for _, r := range reply.Replicas {
					if r.Noted { // in time, which a replica on a busy machine may not reach
						noted++
					}
					if r.Noted && (r.Rows != 1 || reply.Verdict == rowraftv1.DigestVerdict_DIGEST_VERDICT_AGREED &&
						string(r.Digest) != string(reply.Digest)) || r.Fenced != "" {
						t.Fatalf("replica %v, want 1 row and digest %x", r, reply.Digest)
					}
				}
				if reply.Verdict == rowraftv1.DigestVerdict_DIGEST_VERDICT_DIVIDED || len(reply.Replicas) != 3 {
					t.Fatalf("after the move: %v", reply)
				}
				return reply.Verdict == rowraftv1.DigestVerdict_DIGEST_VERDICT_AGREED && noted == 3
			})
		})
	}
}

// checkFenced checks that the replica on a server refuses, names the reason, and keeps its log.
func (c *proofCluster) checkFenced(name string) {
	c.t.Helper()
	r := c.replicas()[name]
	if r.GetRole() != "fenced" || !strings.Contains(r.GetFenced(), "fenced") || r.GetError() == "" {
		c.t.Errorf("server %s says %v of its replica", name, r)
	}
	conn := connect(c.t, c.nodes[c.byNode[name]].addr, nil)
	_, err := rowraftv1.NewTableClient(conn).Pull(c.ctx, &rowraftv1.PullRequest{MapVersion: anyMapVersion, Shard: 0})
	if rowraft.CodeOf(err) != rowraft.CodeFenced {
		c.t.Errorf("pull from a fenced replica: %v, want Fenced", err)
	}
	_, err = rowraftv1.NewTableClient(conn).Write(c.ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH,
		MapVersion: anyMapVersion, Shard: 0, ClientId: make([]byte, 16)})
	if rowraft.CodeOf(err) != rowraft.CodeFenced {
		c.t.Errorf("push to a fenced replica: %v, want Fenced", err)
	}
	c.wantAlert(name)
	if logs, err := filepath.Glob(filepath.Join(c.groupDir(name, 0), "log", "*")); err != nil || len(logs) == 0 {
		c.t.Errorf("the log of the fenced replica is gone: %v", err)
	}
	testutil.Eventually(c.t, "the scheduler calls it a problem", func() bool {
		return strings.Contains(strings.Join(c.status(c.ctx).Problems, "\n"),
			"replica hash mismatch (critical): the replica on "+name)
	})
}

// prove requests a comparison from the leader.
func (c *proofCluster) prove() (reply *rowraftv1.ProveReply) {
	c.t.Helper()
	testutil.Eventually(c.t, "a leader compares the replicas", func() bool {
		for i, n := range c.nodes {
			if n.cancel == nil {
				continue
			}
			var err error
			if reply, err = c.admin(i).Prove(c.ctx, &rowraftv1.ProveRequest{Shard: 0}); err == nil {
				return true
			}
		}
		return false
	})
	return reply
}

// checkpoint calls fn on the scheduler's leader.
func (c *proofCluster) checkpoint(fn func(rowraftv1.CheckpointsClient) error) error {
	c.t.Helper()
	return c.onLeader(c.ctx, func(conn *grpc.ClientConn) error { return fn(rowraftv1.NewCheckpointsClient(conn)) })
}

// shrink removes the rows of a table whose weights are small.
func (c *proofCluster) shrink(table string) error {
	c.t.Helper()
	return c.onLeader(c.ctx, func(conn *grpc.ClientConn) error {
		return drain(rowraftv1.NewSweepsClient(conn).ShrinkTable(c.ctx, &rowraftv1.ShrinkTableRequest{
			Table: table, Conditions: &rowraftv1.SweepConditions{NormBelow: 1},
		}))
	})
}

// create makes a checkpoint and returns its name. Each try uses another name: the outcome of an earlier try
// may be unknown.
func (c *proofCluster) create(dir string) (name string, err error) {
	c.t.Helper()
	err = c.checkpoint(func(s rowraftv1.CheckpointsClient) error {
		c.made++
		name = fmt.Sprintf("checkpoint-%d", c.made)
		return drain(s.CreateCheckpoint(c.ctx, &rowraftv1.CreateCheckpointRequest{Destination: dir, Name: name}))
	})
	return name, err
}

// drain reads a stream to its end.
func drain[Reply any](stream grpc.ServerStreamingClient[Reply], err error) error {
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return rpc.FromStatus(err)
}

// TestADividedShardServesNothing: if two replicas differ, neither is known to be right. So neither serves,
// and no checkpoint is made. They stay a group, and a restore makes them equal again.
func TestADividedShardServesNothing(t *testing.T) {
	c := startProofCluster(t, 2)
	dir := t.TempDir()
	c.push()
	good, err := c.create(dir)
	if err != nil {
		t.Fatal(err)
	}
	c.harm.Store(2)
	c.push()
	testutil.Eventually(t, "the shard is divided", func() bool {
		n := 0
		for _, r := range c.replicas() {
			if r.DividedIndex > 0 {
				n++
			}
		}
		return n == 2
	})
	var got [4]float32
	if err := c.table.Pull(c.ctx, []rowraft.Key{7}, got[:]); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("pull from a divided shard: %v, %v; want Corrupt", got, err)
	}
	if _, err := c.table.Push(c.ctx, []rowraft.Key{7}, got[:]); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("push to a divided shard: %v, want Corrupt", err)
	}
	if err := c.table.Scan(c.ctx, func([]rowraft.Key,
		[]float32) error {
		t.Error("rows came")
		return nil
	}); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("scan of a divided shard: %v, want Corrupt", err)
	}
	if err := c.shrink("user"); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("shrink in a divided shard: %v, want Corrupt", err)
	}
	testutil.Eventually(t, "it is compared again, and both have noted their rows in time", func() bool {
		reply := c.prove()
		if reply.Verdict == rowraftv1.DigestVerdict_DIGEST_VERDICT_AGREED {
			t.Fatalf("it is compared again: %v", reply)
		}
		return reply.Verdict == rowraftv1.DigestVerdict_DIGEST_VERDICT_DIVIDED
	})
	testutil.Eventually(t, "the scheduler calls it a problem", func() bool {
		return strings.Contains(strings.Join(c.status(c.ctx).Problems, "\n"), "no majority of its replicas")
	})
	if _, err := c.create(dir); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("checkpoint of a divided shard: %v, want Corrupt", err)
	}
	if err := c.checkpoint(func(s rowraftv1.CheckpointsClient) error {
		return drain(s.RestoreCheckpoint(c.ctx, &rowraftv1.RestoreCheckpointRequest{Destination: dir, Name: good,
			Replace: true}))
	}); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "the shard is whole again", func() bool {
		for _, r := range c.replicas() {
			if r.DividedIndex != 0 || r.ProvedIndex == 0 {
				return false
			}
		}
		return true
	})
	if c.table, err = c.dial().Table(c.ctx, "user"); err != nil { // the shard refuses an older session
		t.Fatal(err)
	}
	c.pushed = 1
	c.wantRow()
	c.push()
	c.wantRow()
}

// TestAMajorityIsCompared: the first comparison of a shard needs no answer from a server that is down.
func TestAMajorityIsCompared(t *testing.T) {
	c := startClusterWith(t, 3, 1, func(cfg *Config) { cfg.Profile, cfg.ProofEvery = "default", -1 })
	ctx := testutil.Context(t)
	if _, err := c.dial().CreateTable(ctx, counterSchema("user"), false); err != nil {
		t.Fatal(err)
	}
	c.stopNode(2)
	testutil.Eventually(t, "two of three servers are compared", func() bool {
		for i := range 2 {
			if _, err := c.admin(i).Prove(ctx, &rowraftv1.ProveRequest{Shard: 0}); err == nil {
				return true
			}
		}
		return false
	})
}

// TestOnlyRowsOfTheMajorityAreKept: a leader that misapplied makes no checkpoint, even before it is fenced.
// With a follower that misapplied, the leader makes one.
func TestOnlyRowsOfTheMajorityAreKept(t *testing.T) {
	for role, tc := range map[string]struct {
		harm int32
		want rowraft.Code
	}{"leader": {1, rowraft.CodeCorrupt}, "follower": {2, rowraft.CodeUnknown}} {
		t.Run(role, func(t *testing.T) {
			c := startProofClusterWith(t, 3, func(cfg *Config) { cfg.ProofEvery = -1 })
			dir := t.TempDir()
			c.push()
			if _, err := c.create(dir); err != nil {
				t.Fatal(err)
			}
			c.harm.Store(tc.harm)
			testutil.Eventually(t, "a replica has misapplied it", func() bool {
				c.push() // a push that was applied without a leader does no harm
				return c.harmedOn.Load() != nil
			})
			testutil.Eventually(t, "a checkpoint while one is wrong", func() bool {
				leader, term := c.leader()
				wrong := c.harmedOn.Load().(string)
				// it changed
				if to := map[string]string{"leader": wrong}[role]; leader != "" && (leader == wrong) != (role == "leader") {
					_, _ = c.transfer(c.ctx, c.admins(), 0, to)
					return false
				}
				begin := time.Now()
				_, err := c.create(dir)
				if rowraft.CodeOf(err) == tc.want {
					return true
				}
				// A replica that does not answer in time counts neither for nor against the leader.
				if now, at := c.leader(); now == leader && at == term && leader != "" && time.Since(begin) < (2*time.Second) {
					t.Fatalf("checkpoint while a %s is wrong: %v, want %v", role, err, tc.want)
				}
				return false
			})
		})
	}
}

// TestNoReplicaIsFenced catches the canaries that misapply a gradient.
func TestNoReplicaIsFenced(t *testing.T) {
	c := startProofClusterWith(t, 3, func(cfg *Config) { cfg.wrapStore = nil }) // only a canary changes entries
	start, last := time.Now(), uint64(0)
	for marks := 0; marks < 10 || time.Since(start) < 5*time.Second; {
		c.push()
		for name, r := range c.replicas() {
			if r.Fenced != "" {
				t.Fatalf("server %s has a fenced replica after %v: %s", name, time.Since(start).Round(time.Millisecond), r.Fenced)
			}
			if r.ProvedIndex > last {
				last = r.ProvedIndex
				marks++
			}
		}
	}
}
