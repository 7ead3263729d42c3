package node

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// admin returns the Admin service of a server. It uses one connection while the server runs: tests that
// wait make a hundred calls a second.
func (c *testCluster) admin(i int) rowraftv1.ReplicasClient {
	c.t.Helper()
	n := c.nodes[i]
	c.mu.Lock()
	conn := c.conns[n]
	c.mu.Unlock()
	if conn == nil {
		var err error
		if conn, err = rpc.Dial(n.addr, nil, nil); err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() { conn.Close() })
	}
	if n.cancel != nil { // it runs
		c.mu.Lock()
		c.conns[n] = conn
		c.mu.Unlock()
		awaitConn(c.t, conn)
	}
	return rowraftv1.NewReplicasClient(conn)
}

// transfer asks each server until one hands over the leadership of shard.
func (c *testCluster) transfer(ctx context.Context, admins []rowraftv1.ReplicasClient, shard uint32,
	to string) (*rowraftv1.TransferLeaderReply, error) {
	for {
		for _, a := range admins {
			reply, err := a.TransferLeader(ctx, &rowraftv1.TransferLeaderRequest{Shard: shard, ToNode: to})
			if err == nil || !rowraft.CodeOf(err).Retryable() {
				return reply, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// The leadership moves round the servers while pushes continue: none is lost or applied twice.
func TestLeadIsHandedOverUnderLoad(t *testing.T) {
	c := startCluster(t, 3, 1)
	cl, ctx := c.dial(), testutil.Context(t)
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	admins := []rowraftv1.ReplicasClient{c.admin(0), c.admin(1), c.admin(2)}

	var (
		load   sync.WaitGroup
		stop   = make(chan struct{})
		acks   = make(chan struct{})
		pushed atomic.Int64
		gap    time.Duration
	)
	load.Go(func() {
		last := time.Now()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := table.Push(ctx, []rowraft.Key{7}, []float32{-1, -1, -1, -1}); err != nil {
				t.Errorf("push %d: %v", pushed.Load(), err)
				return
			}
			pushed.Add(1)
			select {
			case acks <- struct{}{}:
			default:
			}
			gap, last = max(gap, time.Since(last)), time.Now()
		}
	})
	var slowest time.Duration
	for i := range 9 {
		to := c.nodes[i%3].cfg.Name
		for range 20 {
			select {
			case <-acks:
			case <-ctx.Done():
				t.Fatal("no push is acknowledged")
			}
		}
		reply, err := c.transfer(ctx, admins, 0, to)
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := cl.Map().Node(rowraft.NodeID(reply.ToNode)); n.Name != to {
			t.Errorf("server %s leads, want %s", n.Name, to)
		}
		slowest = max(slowest, time.Duration(reply.TookNs))
	}
	close(stop)
	load.Wait()
	var got [4]float32
	if err := table.Pull(ctx, []rowraft.Key{7}, got[:]); err != nil {
		t.Fatal(err)
	}
	if got[0] != float32(pushed.Load()) {
		t.Errorf("the row holds %v after %v acknowledged pushes", got[0], pushed.Load())
	}
	t.Logf("9 transfers under %d pushes: slowest %v, longest gap between acknowledgements %v", pushed.Load(), slowest, gap)
}

func TestTransferIsRefused(t *testing.T) {
	c := startClusterWith(t, 4, 1, func(*Config) {})
	admins := []rowraftv1.ReplicasClient{c.admin(0), c.admin(1), c.admin(2), c.admin(3)}
	cl, ctx := c.dial(), testutil.Context(t)
	held := make(map[rowraft.NodeID]bool)
	for _, r := range cl.Map().Shards[0].Replicas {
		held[r.Node] = true
	}
	for _, n := range cl.Map().Nodes {
		if !held[n.ID] {
			if _, err := c.transfer(ctx, admins, 0, n.Name); rowraft.CodeOf(err) != rowraft.CodePrecondition {
				t.Errorf("to a server without a replica: %v, want CodePrecondition", err)
			}
		}
	}
	if len(held) != 3 {
		t.Errorf("%d of 4 servers have a replica, want 3", len(held))
	}
	if _, err := c.transfer(ctx, admins, 0, "n9"); rowraft.CodeOf(err) != rowraft.CodeNotFound {
		t.Errorf("to an unknown server: %v, want CodeNotFound", err)
	}
	if _, err := c.transfer(ctx, admins, 5, ""); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("of a shard that is not there: %v, want CodeInvalidArgument", err)
	}
	testutil.Eventually(t, "a server that can takes the lead, and has it", func() bool {
		reply, err := c.transfer(ctx, admins, 0, "")
		if err != nil {
			t.Fatalf("to any server: %v", err)
		}
		return reply.FromNode != reply.ToNode // or no replica voted in time, and it was elected again
	})
	testutil.Eventually(t, "one leader answers, in one term", func() bool {
		leaders, inTerm := 0, make(map[uint64]int)
		for _, a := range admins {
			before := termsAt(t, ctx, a)[0]
			m, err := a.Members(ctx, &rowraftv1.MembersRequest{Shard: 0})
			if err != nil && rowraft.CodeOf(err).Retryable() {
				continue
			}
			leaders++
			if err != nil || len(m.Members) != 3 || m.ConfigIndex == 0 {
				t.Fatalf("members %v, %v, want three", m, err)
			}
			if termsAt(t, ctx, a)[0] == before { // so it answered in this term
				inTerm[before]++
			}
			if inTerm[before] > 1 {
				t.Fatalf("two servers answer as the leader of term %d", before)
			}
		}
		return leaders == 1
	})
}

// A leader that has lost its group does not know yet that it no longer leads. It returns no members.
func TestALeaderWithoutItsGroupTellsNoMembers(t *testing.T) {
	c := startCluster(t, 3, 1)
	ctx := testutil.Context(t)
	if _, err := c.dial().CreateTable(ctx, counterSchema("user"), false); err != nil {
		t.Fatal(err)
	}
	var leads int
	testutil.Eventually(t, "one that leads", func() bool {
		for leads = range 3 {
			if _, err := c.admin(leads).Members(ctx, &rowraftv1.MembersRequest{}); err == nil {
				return true
			}
		}
		return false
	})
	a := c.admin(leads)
	var others sync.WaitGroup
	for i := range 3 {
		if i != leads {
			others.Go(func() { c.stopNode(i) })
		}
	}
	others.Wait()
	alone, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if m, err := a.Members(alone, &rowraftv1.MembersRequest{}); err == nil {
		t.Errorf("alone it answers %v", m)
	}
}
