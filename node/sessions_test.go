package node

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// tableStub makes calls to server i of c as a client of another make.
func (c *testCluster) tableStub(i int) rowraftv1.TableClient {
	c.t.Helper()
	conn, err := bareDial(c.nodes[i].addr)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	awaitConn(c.t, conn)
	return rowraftv1.NewTableClient(conn)
}

// TestSessionsEndAndGoOn: a client whose session is over pushes under another incarnation. Each push counts
// once, and Close ends the sessions in every shard.
func TestSessionsEndAndGoOn(t *testing.T) {
	const shards = 2
	c := startCluster(t, 1, shards)
	ctx, id := testutil.Context(t), rowraft.ClientID{1, 2, 3}
	cl, err := client.Dial(ctx, client.Options{Endpoints: []string{c.nodes[0].addr}, ClientID: id})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]rowraft.Key, 64)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	values := make([]float32, len(keys)*table.Dim())
	for i := range values {
		values[i] = -1
	}
	push := func() []float32 {
		t.Helper()
		if _, err := table.Push(ctx, keys, values); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, len(values))
		if err := table.Pull(ctx, keys, got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	stub := c.tableStub(0)
	one := push()[0]
	for n := float32(2); n <= 5; n++ {
		for shard := range uint32(shards) {
			for inc := range uint64(20) { // one of them is the session's
				if _, err := stub.CloseSession(ctx, &rowraftv1.CloseSessionRequest{Shard: shard, ClientId: id[:], Incarnation: inc +
					1}); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i, v := range push() {
			if v != n*one {
				t.Fatalf("value %d is %v after %v pushes, and was %v after the first", i, v, n, one)
			}
		}
	}
	sessions := func(shard string) float64 { return c.nodes[0].metric(t, `rowraft_shard_sessions{shard="`+shard+`"}`) }
	if a, b := sessions("0"), sessions("1"); a != 1 || b != 1 {
		t.Errorf("%v and %v sessions of one client", a, b)
	}
	if err := cl.Close(); err != nil {
		t.Error(err)
	}
	if a, b := sessions("0"), sessions("1"); a != 0 || b != 0 {
		t.Errorf("%v and %v sessions of a closed client", a, b)
	}
}

// TestAFullShardRefusesBeforeTheLog: a session without room costs no log entry, and other owners have room.
func TestAFullShardRefusesBeforeTheLog(t *testing.T) {
	c := startCluster(t, 1, 1)
	ctx, stub := testutil.Context(t), c.tableStub(0)
	request := func(owner byte, n int) *rowraftv1.OpenSessionRequest {
		id := rowraft.ClientID{owner}
		binary.BigEndian.PutUint32(id[8:], uint32(n))
		return &rowraftv1.OpenSessionRequest{ClientId: id[:], Incarnation: 1, Ticket: 1}
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	open := func(q *rowraftv1.OpenSessionRequest) (*rowraftv1.OpenSessionReply, error) {
		for {
			reply, err := stub.OpenSession(ctx, q)
			err = rpc.FromStatus(err)
			if code := rowraft.CodeOf(err); err == nil || code == rowraft.CodeOverloaded || !code.Retryable() ||
				ctx.Err() != nil {
				return reply, err
			}
			<-tick.C // the shard has no leader yet
		}
	}
	part := request(7, 0)
	applied := func() uint64 {
		t.Helper()
		part.Ticket = 0
		reply, err := open(part)
		if err != nil {
			t.Fatal(err)
		}
		return reply.GetTicket()
	}
	var g errgroup.Group
	g.SetLimit(128)
	for n := range rowraft.MaxOwnerSessions {
		g.Go(func() error {
			q := request(7, n)
			if _, err := open(q); err != nil {
				return err
			}
			// A session with a gap keeps its place for an hour. One without a gap would make room on a slow
			// machine.
			_, err := stub.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH, MapVersion: anyMapVersion,
				ClientId: q.ClientId, Incarnation: 1, Seq: 2})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	before := applied()
	if _, err := open(request(7, rowraft.MaxOwnerSessions)); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("a session beyond the quota: %v, want CodeOverloaded", err)
	}
	if after := applied(); after != before {
		t.Errorf("the refusal cost %d entries in the log", after-before)
	}
	if _, err := open(request(8, 0)); err != nil {
		t.Errorf("another owner: %v", err)
	}
}
