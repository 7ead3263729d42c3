package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// cluster is three server processes with helpers that fail the test.
type cluster struct {
	*localcluster.Cluster
	t testing.TB
}

// start starts a cluster with three servers and four shards, unless opts says
// otherwise. At the end of the test it is stopped and its logs are looked at.
func start(t testing.TB, opts localcluster.Options) *cluster {
	t.Helper()
	needBinaries(t)
	opts.Binary, opts.Dir = cmp.Or(opts.Binary, filepath.Join(bin, "rowraft")), cmp.Or(opts.Dir, t.TempDir())
	if opts.Servers == 0 {
		opts.Servers, opts.Shards = 3, 4
	}
	if opts.Profile == "" {
		opts.Profile = "fast"
	}
	opts.Args = append(opts.Args, "--disk-reserve-bytes", "1")
	lc, err := localcluster.Start(deadline(t, patience), opts)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Cluster: lc, t: t}
	t.Cleanup(c.finish)
	return c
}

// finish stops the servers and looks for what must not be in their logs.
func (c *cluster) finish() {
	all := slices.Concat(c.Schedulers(), c.Servers())
	for _, s := range all {
		if !s.Running() {
			c.t.Errorf("server %s does not run at the end of the test", s.Name)
		}
	}
	if err := c.Stop(); err != nil {
		c.t.Error(err)
	}
	for _, s := range all {
		b, err := os.ReadFile(s.LogFile)
		if err != nil {
			c.t.Error(err)
		}
		for line := range bytes.Lines(b) {
			if bytes.Contains(line, []byte(`"level":"ERROR"`)) || bytes.HasPrefix(line, []byte("panic:")) ||
				bytes.Contains(line, []byte("DATA RACE")) {
				c.t.Errorf("log of server %s: %s", s.Name, line)
			}
		}
		if c.t.Failed() {
			c.t.Logf("the end of the log of server %s:\n%s", s.Name, s.LogTail(4<<10))
		}
	}
}

// dial returns a client, closed at the end of the test.
func (c *cluster) dial(opts client.Options) *client.Client {
	c.t.Helper()
	opts.Endpoints = c.Endpoints()
	cl, err := client.Dial(deadline(c.t, patience), opts)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := cl.Close(); err != nil {
			c.t.Errorf("close the client: %v", err)
		}
	})
	return cl
}

// killAll kills servers at one moment.
func (c *cluster) killAll(servers []*localcluster.Server) {
	c.t.Helper()
	c.each(servers, func(s *localcluster.Server) error { return s.Kill() })
}

// restartAll restarts servers together and returns when all serve.
func (c *cluster) restartAll(servers []*localcluster.Server) {
	c.t.Helper()
	ctx := deadline(c.t, patience)
	c.each(servers, func(s *localcluster.Server) error { return c.Restart(ctx, s) })
}

func (c *cluster) each(servers []*localcluster.Server, do func(*localcluster.Server) error) {
	c.t.Helper()
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() { errs[i] = do(s) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

// admin calls one server within five seconds.
func admin(ctx context.Context, addr string, call func(context.Context, rowraftv1.ReplicasClient) error) error {
	conn, err := rpc.Dial(addr, nil, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return call(ctx, rowraftv1.NewReplicasClient(conn))
}

func nodeStatus(ctx context.Context, s *localcluster.Server) (st *rowraftv1.NodeStatusReply, err error) {
	err = admin(ctx, s.Addr, func(ctx context.Context, a rowraftv1.ReplicasClient) (err error) {
		st, err = a.NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
		return err
	})
	return st, err
}

// leaders waits until every shard has a leader and returns them, by shard.
func (c *cluster) leaders(ctx context.Context) ([]*localcluster.Server, error) {
	var leads []*localcluster.Server
	err := poll(ctx, func() error {
		leads = nil
		var terms []uint64
		for _, s := range c.Servers() {
			st, err := nodeStatus(ctx, s)
			if err != nil {
				continue // dead or stopped
			}
			for _, r := range st.Replicas {
				for int(r.Shard) >= len(leads) {
					leads, terms = append(leads, nil), append(terms, 0)
				}
				if r.Role == "leader" && r.Term > terms[r.Shard] {
					leads[r.Shard], terms[r.Shard] = s, r.Term
				}
			}
		}
		for shard, s := range leads {
			if s == nil {
				return fmt.Errorf("shard %d has no leader", shard)
			}
		}
		if len(leads) == 0 {
			return fmt.Errorf("no server answers")
		}
		return nil
	})
	return leads, err
}

// greatest is, by shard, the greatest figure that any server but one has, once all of them
// have answered.
func (c *cluster) greatest(ctx context.Context, but *localcluster.Server,
	figure func(*rowraftv1.ReplicaStatus) uint64) (map[uint32]uint64, error) {
	out := make(map[uint32]uint64)
	for _, o := range c.Servers() {
		if o == but {
			continue
		}
		var st *rowraftv1.NodeStatusReply
		err := poll(ctx, func() (err error) {
			st, err = nodeStatus(ctx, o)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, r := range st.Replicas {
			out[r.Shard] = max(out[r.Shard], figure(r))
		}
	}
	return out, nil
}

// caughtUp waits until server s has applied, of every shard, what any other had
// committed when this was called.
func (c *cluster) caughtUp(ctx context.Context, s *localcluster.Server) error {
	want, err := c.greatest(ctx, s, (*rowraftv1.ReplicaStatus).GetCommitIndex)
	if err != nil {
		return err
	}
	return poll(ctx, func() error {
		st, err := nodeStatus(ctx, s)
		if err != nil {
			return err
		}
		have := make(map[uint32]uint64)
		for _, r := range st.Replicas {
			have[r.Shard] = r.CommitIndex
		}
		for shard, index := range want {
			if have[shard] < index {
				return fmt.Errorf("server %s has %d of shard %d, others %d", s.Name, have[shard], shard, index)
			}
		}
		return nil
	})
}

// sameDigests compares the replicas of every shard at one index each. Nothing may
// write meanwhile. It returns the rows of all shards.
func (c *cluster) sameDigests() (rows uint64) {
	c.t.Helper()
	cl := c.dial(client.Options{})
	for i := range cl.Map().Shards {
		var m *clustermap.Map
		var shard clustermap.Shard
		var replies []*rowraftv1.DigestReply
		ctx := deadline(c.t, patience)
		err := poll(ctx, func() error {
			if now := cl.Map(); now != m { // the first may be older than the last move
				m, shard, replies = now, now.Shards[i], nil
			}
			index := uint64(0)
			for _, r := range replies {
				index = max(index, r.AppliedIndex)
			}
			replies = nil
			for _, r := range shard.Replicas {
				n, _ := m.Node(r.Node)
				d, err := digest(ctx, n.Addr, shard.ID, index)
				if err != nil {
					return fmt.Errorf("digest of shard %d on %s: %w", shard.ID, n.Name, err)
				}
				replies = append(replies, d)
			}
			for _, d := range replies {
				if d.AppliedIndex != replies[0].AppliedIndex {
					return fmt.Errorf("the replicas of shard %d are not at one index", shard.ID)
				}
			}
			return nil
		})
		if err != nil {
			c.t.Fatal(err)
		}
		if len(replies) != 3 {
			c.t.Errorf("shard %d has %d replicas, want 3", shard.ID, len(replies))
		}
		for i, d := range replies {
			if !bytes.Equal(d.Digest, replies[0].Digest) || d.Rows != replies[0].Rows {
				n, _ := m.Node(shard.Replicas[i].Node)
				c.t.Errorf("shard %d at index %d: %s has digest %s of %d rows, the first replica %s of %d", shard.ID,
					d.AppliedIndex,
					n.Name, hex.EncodeToString(d.Digest), d.Rows, hex.EncodeToString(replies[0].Digest), replies[0].Rows)
			}
		}
		rows += replies[0].Rows
	}
	return rows
}

func digest(ctx context.Context, addr string, shard rowraft.ShardID,
	index uint64) (d *rowraftv1.DigestReply, err error) {
	err = admin(ctx, addr, func(ctx context.Context, a rowraftv1.ReplicasClient) (err error) {
		d, err = a.Digest(ctx, &rowraftv1.DigestRequest{Shard: uint32(shard), MinIndex: index})
		return err
	})
	return d, err
}

// poll calls try until it returns nil; when ctx ends, its last error.
func poll(ctx context.Context, try func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// logHas tells whether a server has logged text.
func logHas(t testing.TB, s *localcluster.Server, text string) bool {
	t.Helper()
	b, err := os.ReadFile(s.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(b), text)
}
