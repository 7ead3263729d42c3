package node

import (
	"context"
	"errors"
	"io"
	"maps"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// pushOnes adds 1 to every weight of keys.
func pushOnes(t *testing.T, ctx context.Context, table *client.Table, keys ...rowraft.Key) {
	t.Helper()
	grads := make([]float32, len(keys)*table.Dim())
	for i := range grads {
		grads[i] = -1
	}
	if _, err := table.Push(ctx, keys, grads); err != nil {
		t.Fatal(err)
	}
}

// present counts the keys whose weights differ from the initializer's zeros.
func present(t *testing.T, ctx context.Context, table *client.Table, keys []rowraft.Key) (n int) {
	t.Helper()
	w := make([]float32, len(keys)*table.Dim())
	if err := table.Pull(ctx, keys, w); err != nil {
		t.Fatal(err)
	}
	for i := range keys {
		if w[i*table.Dim()] != 0 {
			n++
		}
	}
	return n
}

func keysUpTo(n int) (keys []rowraft.Key) {
	for k := range n {
		keys = append(keys, rowraft.Key(k))
	}
	return keys
}

// sameRows waits until all servers have the same applied index in a shard. It checks that they hold the
// same rows and returns their number.
func sameRows(t *testing.T, ctx context.Context, c *testCluster, shard uint32) (rows uint64) {
	t.Helper()
	testutil.Eventually(t, "all replicas are at one index", func() bool {
		var first *rowraftv1.DigestReply
		for i := range c.nodes {
			conn, err := rpc.Dial(c.nodes[i].addr, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			d, err := rowraftv1.NewReplicasClient(conn).Digest(ctx, &rowraftv1.DigestRequest{Shard: shard})
			conn.Close()
			if err != nil && rowraft.CodeOf(err).Retryable() && ctx.Err() == nil {
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = d
			}
			if d.GetAppliedIndex() != first.GetAppliedIndex() {
				return false
			}
			if string(d.GetDigest()) != string(first.GetDigest()) || d.GetRows() != first.GetRows() {
				t.Fatalf("server %d has %v, server 0 %v", i, d, first)
			}
		}
		rows = first.GetRows()
		return true
	})
	return rows
}

// TestUnseenRowsExpire: rows without pushes expire and rows with pushes stay, also when a leader stops in
// the middle.
func TestUnseenRowsExpire(t *testing.T) {
	c := startClusterWith(t, 3, 2, func(cfg *Config) { cfg.SweepEvery = 20 * time.Millisecond })
	cl, ctx := c.dial(), testutil.Context(t)
	s := counterSchema("fading")
	s.Expire = 2
	table, err := cl.CreateTable(ctx, s, false)
	if err != nil {
		t.Fatal(err)
	}
	keys := keysUpTo(3000)
	pushOnes(t, ctx, table, keys...)
	kept := keys[:10]
	first := true
	testutil.Eventually(t, "the rows expire", func() bool {
		pushOnes(t, ctx, table, kept...)
		left := present(t, ctx, table, keys[10:])
		if left < len(keys)-10 && first {
			first = false
			c.stopNode(0)
			c.restart(0)
		}
		return left == 0
	})
	if n := sameRows(t, ctx, c, 0) + sameRows(t, ctx, c, 1); n > 10 {
		t.Errorf("%d rows are left, of which 10 were pushed", n)
	}
	again := 20
	testutil.Eventually(t, "a key that is pushed again after its row expired reads 1", func() bool {
		w := make([]float32, 4)
		pushOnes(t, ctx, table, keys[again])
		if err := table.Pull(ctx, keys[again:again+1], w); err != nil || w[0] != 0 && w[0] != 1 {
			t.Fatalf("a key that was pushed again after its row expired reads %v (%v), want 1", w, err)
		}
		again++
		return w[0] == 1 // or it has expired again: the machine is busy
	})
}

// shrink calls the scheduler's leader. It also reports whether the leaders of the shards stayed
// the same and one call sufficed. Otherwise a piece may have run twice, and the second run found nothing to
// remove.
func shrink(t *testing.T, ctx context.Context, c *testCluster,
	req *rowraftv1.ShrinkTableRequest) (last *rowraftv1.ShrinkTableReply, quiet bool, err error) {
	t.Helper()
	before, tries := c.terms(ctx), 0
	testutil.Eventually(t, "a scheduler answers", func() bool {
		for i := range c.nodes {
			conn, dialed := rpc.Dial(c.nodes[i].addr, nil, nil)
			if dialed != nil {
				t.Fatal(dialed)
			}
			last, err = shrinkAt(ctx, rowraftv1.NewSweepsClient(conn), req)
			conn.Close()
			if err == nil || !rowraft.CodeOf(err).Retryable() {
				return true
			}
			if rowraft.CodeOf(err) != rowraft.CodeNotLeader {
				tries++
			}
		}
		return false
	})
	return last, tries == 0 && maps.Equal(before, c.terms(ctx)), err
}

// terms returns the newest known term of every shard.
func (c *testCluster) terms(ctx context.Context) map[uint32]uint64 {
	c.t.Helper()
	terms := make(map[uint32]uint64)
	for i := range c.nodes {
		for shard, term := range termsAt(c.t, ctx, c.admin(i)) {
			terms[shard] = max(terms[shard], term)
		}
	}
	return terms
}

// termsAt returns the terms of a server's replicas, by shard.
func termsAt(t testing.TB, ctx context.Context, a rowraftv1.ReplicasClient) map[uint32]uint64 {
	t.Helper()
	st, err := a.NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	terms := make(map[uint32]uint64)
	for _, r := range st.Replicas {
		terms[r.Shard] = r.Term
	}
	return terms
}

func shrinkAt(ctx context.Context, s rowraftv1.SweepsClient,
	req *rowraftv1.ShrinkTableRequest) (last *rowraftv1.ShrinkTableReply, err error) {
	stream, err := s.ShrinkTable(ctx, req)
	for err == nil {
		var reply *rowraftv1.ShrinkTableReply
		if reply, err = stream.Recv(); err == nil {
			last = reply
		}
	}
	if errors.Is(err, io.EOF) {
		return last, nil
	}
	return last, rpc.FromStatus(err)
}

func TestShrinkATable(t *testing.T) {
	c := startClusterWith(t, 3, 4, func(cfg *Config) { cfg.SweepEvery = -1 })
	cl, ctx := c.dial(), testutil.Context(t)
	s := counterSchema("tracked")
	s.Expire = 1 << 30
	table, err := cl.CreateTable(ctx, s, false)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := cl.CreateTable(ctx, counterSchema("plain"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys := keysUpTo(1000)
	pushOnes(t, ctx, table, keys...)
	pushOnes(t, ctx, table, keys[:300]...)
	pushOnes(t, ctx, plain, keys...)
	pushOnes(t, ctx, plain, keys[:400]...)
	once := &rowraftv1.SweepConditions{CountBelow: 2}
	zero := uint32(0)
	for _, tc := range []struct {
		name        string
		req         *rowraftv1.ShrinkTableRequest
		removed     uint64
		left, plain int
		code        rowraft.Code
	}{
		{"no such table", &rowraftv1.ShrinkTableRequest{Table: "other", Conditions: once}, 0, 1000, 1000,
			rowraft.CodeTableNotFound},
		{"no condition", &rowraftv1.ShrinkTableRequest{Table: "tracked"}, 0, 1000, 1000, rowraft.CodeInvalidArgument},
		{"counts that no table keeps", &rowraftv1.ShrinkTableRequest{Table: "plain", Conditions: once}, 0, 1000, 1000,
			rowraft.CodeInvalidArgument},
		{"a dry run", &rowraftv1.ShrinkTableRequest{Table: "tracked", Conditions: once, DryRun: true}, 700, 1000, 1000, 0},
		{"pushed just now", &rowraftv1.ShrinkTableRequest{Table: "tracked",
			Conditions: &rowraftv1.SweepConditions{CountBelow: 2, UnseenTicks: &s.Expire}}, 0, 1000, 1000, 0},
		{"by count", &rowraftv1.ShrinkTableRequest{Table: "tracked", Conditions: once}, 700, 300, 1000, 0},
		{"again", &rowraftv1.ShrinkTableRequest{Table: "tracked", Conditions: once}, 0, 300, 1000, 0},
		{"by norm", &rowraftv1.ShrinkTableRequest{Table: "plain", Conditions: &rowraftv1.SweepConditions{NormBelow: 3}}, 600,
			300, 400, 0},
	} {
		reply, quiet, err := shrink(t, ctx, c, tc.req)
		if rowraft.CodeOf(err) != tc.code {
			t.Fatalf("%s: %v, want %s", tc.name, err, tc.code)
		}
		if err == nil && (!reply.GetDone() || reply.GetSlots() != rowraft.DefaultSlots || reply.GetRemoved() > tc.removed ||
			quiet && reply.GetRemoved() < tc.removed) {
			t.Errorf("%s: %v, want %d removed", tc.name, reply, tc.removed)
		}
		if a, b := present(t, ctx, table, keys), present(t, ctx, plain, keys); a != tc.left || b != tc.plain {
			t.Errorf("%s: %d and %d rows are left, want %d and %d", tc.name, a, b, tc.left, tc.plain)
		}
	}
	testutil.Eventually(t, "rows that were pushed are unseen for a second", func() bool {
		reply, _, err := shrink(t, ctx, c, &rowraftv1.ShrinkTableRequest{Table: "tracked",
			Conditions: &rowraftv1.SweepConditions{UnseenTicks: &zero}})
		if err != nil {
			t.Fatal(err)
		}
		return reply.GetRows() == 0
	})
	if n := present(t, ctx, table, keys); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	for sh := range uint32(4) {
		sameRows(t, ctx, c, sh)
	}
}
