package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// onScheduler is onLeader for calls of the service Cluster.
func (c *testCluster) onScheduler(ctx context.Context, fn func(rowraftv1.ClusterClient) error) error {
	c.t.Helper()
	return c.onLeader(ctx, func(conn *grpc.ClientConn) error { return fn(rowraftv1.NewClusterClient(conn)) })
}

// onLeader calls fn on each running server until one does not redirect it: the scheduler's leader.
func (c *testCluster) onLeader(ctx context.Context, fn func(*grpc.ClientConn) error) error {
	c.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, n := range c.nodes {
			if n.cancel == nil {
				continue
			}
			conn, err := rpc.Dial(n.addr, nil, nil)
			if err != nil {
				c.t.Fatal(err)
			}
			err = fn(conn)
			conn.Close()
			if err == nil || !rowraft.CodeOf(err).Retryable() {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// startMove begins a move, after its target server is up.
func (c *testCluster) startMove(ctx context.Context, shard uint32, from, to string) (m *rowraftv1.Move, err error) {
	c.t.Helper()
	m, _, err = c.tryMove(ctx, shard, from, to, true)
	return m, err
}

// tryMove begins a move. If the target server is not up, it waits, or returns an error and down.
func (c *testCluster) tryMove(ctx context.Context, shard uint32, from, to string,
	wait bool) (m *rowraftv1.Move, down bool, err error) {
	c.t.Helper()
	unsure := false
	var refused error
	err = c.onScheduler(ctx, func(s rowraftv1.ClusterClient) error {
		reply, err := s.MoveReplica(ctx, &rowraftv1.MoveReplicaRequest{Shard: shard, FromNode: from, ToNode: to})
		m, refused, down = reply.GetMove(), err, false
		if err == nil {
			return nil
		}
		// The answer to an earlier try may have been lost; then the next try finds the move.
		if unsure {
			st, err := s.Status(ctx, &rowraftv1.StatusRequest{})
			if err != nil {
				return err
			}
			if m = newestMove(st, shard, from, to); m != nil {
				refused = nil
				return nil
			}
		}
		if down = !wait && strings.Contains(err.Error(), "is not up"); down {
			return nil
		}
		unsure = unsure || rowraft.CodeOf(err).MaybeApplied()
		return err
	})
	return m, down, cmp.Or(err, refused)
}

// newestMove returns the newest move between two servers that was not cancelled.
func newestMove(st *rowraftv1.StatusReply, shard uint32, from, to string) (newest *rowraftv1.Move) {
	name := make(map[string]string)
	for _, n := range st.Nodes {
		name[n.Node.Id] = n.Node.Name
	}
	moves := slices.Clone(st.FinishedMoves)
	for _, m := range st.Moves {
		moves = append(moves, m.Move)
	}
	for _, m := range moves {
		if m.Shard == shard && name[m.From.GetNode()] == from && name[m.To.GetNode()] == to &&
			m.Phase != rowraftv1.MovePhase_MOVE_PHASE_CANCELLED && m.Id >= newest.GetId() {
			newest = m
		}
	}
	return newest
}

func (c *testCluster) status(ctx context.Context) (reply *rowraftv1.StatusReply) {
	c.t.Helper()
	if err := c.onScheduler(ctx, func(s rowraftv1.ClusterClient) (err error) {
		reply, err = s.Status(ctx, &rowraftv1.StatusRequest{})
		return err
	}); err != nil {
		c.t.Fatal(err)
	}
	return reply
}

// ended waits until a move has ended and returns how it ended.
func (c *testCluster) ended(ctx context.Context, id uint64) *rowraftv1.Move {
	c.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		st := c.status(ctx)
		for _, m := range st.FinishedMoves {
			if m.Id == id {
				return m
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.t.Fatalf("move %d does not end: %v", id, st.Moves)
		}
	}
}

func (c *testCluster) groupDir(name string, shard uint32) string {
	return filepath.Join(c.dir, name, "raft", "groups", fmt.Sprintf("shard-%d", shard))
}

// load pushes to one row until stop is called. stop returns the number of acknowledged pushes and the
// longest pause between two of them.
func load(ctx context.Context, t testing.TB, table *client.Table) (stop func() (int64, time.Duration)) {
	var (
		wg     sync.WaitGroup
		end    = make(chan struct{})
		pushed atomic.Int64
		gap    time.Duration
	)
	wg.Go(func() {
		last := time.Now()
		for {
			select {
			case <-end:
				return
			default:
			}
			if _, err := table.Push(ctx, []rowraft.Key{7}, []float32{-1, -1, -1, -1}); err != nil {
				t.Errorf("push: %v", err)
				return
			}
			pushed.Add(1)
			gap, last = max(gap, time.Since(last)), time.Now()
		}
	})
	return func() (int64, time.Duration) {
		close(end)
		wg.Wait()
		return pushed.Load(), gap
	}
}

// A shard and its leader move round four servers under load, and every server restarts in between. The old
// maps that it replays must not start a replica that has left.
func TestReplicasMoveUnderLoad(t *testing.T) {
	// A busy machine must not look like a dead leader.
	c := startClusterWith(t, 4, 1, func(cfg *Config) { cfg.Profile = "default" })
	cl, ctx := c.dial(), testutil.Context(t)
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	name := make(map[rowraft.NodeID]string)
	spare := ""
	m := cl.Map()
	for _, n := range m.Nodes {
		name[n.ID] = n.Name
		if _, has := m.Shards[0].On(n.ID); !has {
			spare = n.Name
		}
	}
	stop := load(ctx, t, table)
	for range 4 { // each server gives its replica away once, and gets another one
		from := ""
		testutil.Eventually(t, "a leader has reported", func() bool {
			for _, n := range c.status(ctx).Nodes {
				for _, r := range n.Replicas {
					if r.Role == "leader" && n.Node.Name != spare {
						from = n.Node.Name
					}
				}
			}
			return from != ""
		})
		mv, err := c.startMove(ctx, 0, from, spare)
		if err != nil {
			t.Fatal(err)
		}
		if end := c.ended(ctx, mv.Id); end.Phase != rowraftv1.MovePhase_MOVE_PHASE_DONE {
			t.Fatalf("move %v", end)
		}
		testutil.Eventually(t, "the data of the old replica is deleted", func() bool {
			_, err := os.Stat(c.groupDir(from, 0))
			return errors.Is(err, os.ErrNotExist)
		})
		spare = from
		for i, n := range c.nodes {
			if n.cfg.Name == from {
				c.stopNode(i)
				c.restart(i)
			}
		}
	}
	pushed, gap := stop()
	var got [4]float32
	if err := table.Pull(ctx, []rowraft.Key{7}, got[:]); err != nil || got[0] != float32(pushed) {
		t.Errorf("the row holds %v after %d acknowledged pushes (%v)", got[0], pushed, err)
	}
	t.Logf("4 moves of the leader under %d pushes: longest gap %v", pushed, gap)
	if st := c.status(ctx); len(st.Map.Shards[0].Replicas) != 3 || len(st.Map.Shards[0].Learners) != 0 ||
		len(st.Moves) != 0 {
		t.Errorf("in the end the map has %v and moves %v", st.Map.Shards[0], st.Moves)
	}
	if _, err := os.Stat(c.groupDir(spare, 0)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the spare server %s has data of the shard: %v", spare, err)
	}
	c.sameDigests(ctx, 0)
}

// sameDigests compares the replicas of a shard.
func (c *testCluster) sameDigests(ctx context.Context, shard uint32) {
	c.t.Helper()
	digests := make(map[string]string)
	testutil.Eventually(c.t, "three replicas with one digest", func() bool {
		clear(digests)
		sums := make(map[string]bool)
		for i, n := range c.nodes {
			d, err := c.admin(i).Digest(ctx, &rowraftv1.DigestRequest{Shard: shard})
			if err == nil {
				digests[n.cfg.Name] = fmt.Sprintf("%x at %d", d.Digest, d.AppliedIndex)
				sums[digests[n.cfg.Name]] = true
			}
		}
		return len(digests) == 3 && len(sums) == 1
	})
}

// A move to a server that dies before its replica votes waits, and can be undone. The server deletes the
// replica when it comes back.
func TestMoveToADeadServerIsCancelled(t *testing.T) {
	started := 0
	c := startClusterWith(t, 4, 1, func(cfg *Config) {
		cfg.Join = cfg.Join[:3]
		cfg.WithScheduler, cfg.Profile = started < 3, "default"
		started++
	})
	ctx := testutil.Context(t)
	m := c.dial().Map()
	spare, from := -1, ""
	for i, n := range c.nodes {
		node, err := m.FindNode(n.cfg.Name)
		if err != nil {
			t.Fatal(err)
		}
		if _, has := m.Shards[0].On(node.ID); !has {
			spare = i
		} else {
			from = n.cfg.Name
		}
	}
	to := c.nodes[spare].cfg.Name
	var mv *rowraftv1.Move
	for { // until the last heartbeat is recent when the move begins
		testutil.Eventually(t, "the spare server has reported", func() bool {
			for _, n := range c.status(ctx).Nodes {
				if n.Node.Name == to && n.State == "up" && n.SinceHeartbeatNs < 1e9 {
					return true
				}
			}
			return false
		})
		c.stopNode(spare)
		var down bool
		var err error
		if mv, down, err = c.tryMove(ctx, 0, from, to, false); err == nil {
			break
		}
		if !down {
			t.Fatal(err)
		}
		c.restart(spare)
	}
	if m, down, err := c.tryMove(ctx, 0, from, to, false); !down && rowraft.CodeOf(err) != rowraft.CodeAlreadyExists {
		t.Errorf("a second move of the shard: %v, %v, want CodeAlreadyExists", m, err)
	}
	testutil.Eventually(t, "the move waits for the learner", func() bool {
		st := c.status(ctx)
		return len(st.Moves) == 1 && st.Moves[0].WaitingFor != "" &&
			st.Moves[0].Move.Phase == rowraftv1.MovePhase_MOVE_PHASE_LEARN
	})
	again := false
	if err := c.onScheduler(ctx, func(s rowraftv1.ClusterClient) error {
		_, err := s.CancelMove(ctx, &rowraftv1.CancelMoveRequest{Shard: 0, MoveId: mv.Id})
		if again && rowraft.CodeOf(err) == rowraft.CodeNotFound {
			return nil // the first try succeeded
		}
		again = true
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if end := c.ended(ctx, mv.Id); end.Phase != rowraftv1.MovePhase_MOVE_PHASE_CANCELLED {
		t.Errorf("the move ended as %v, want cancelled", end)
	}
	if err := c.onScheduler(ctx, func(s rowraftv1.ClusterClient) error {
		_, err := s.CancelMove(ctx, &rowraftv1.CancelMoveRequest{Shard: 0})
		return err
	}); rowraft.CodeOf(err) != rowraft.CodeNotFound {
		t.Errorf("cancelling what does not run: %v, want CodeNotFound", err)
	}
	c.restart(spare)
	second, err := c.startMove(ctx, 0, from, to)
	if err != nil {
		t.Fatal(err)
	}
	if end := c.ended(ctx, second.Id); end.Phase != rowraftv1.MovePhase_MOVE_PHASE_DONE || end.To.Id == mv.To.Id {
		t.Errorf("the second move ended as %v, want done, under another replica id than %s", end, mv.To.Id)
	}
}
