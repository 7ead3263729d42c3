package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// boundedReads asks the servers in turn, like a client without leader hints.
type boundedReads struct {
	t     *testing.T
	table rowraft.TableID
	stubs []rowraftv1.TableClient
}

func (c *testCluster) boundedReads(table *client.Table) *boundedReads {
	c.t.Helper()
	r := &boundedReads{t: c.t.(*testing.T), table: table.Schema().ID}
	for _, n := range c.nodes {
		conn, err := bareDial(n.addr)
		if err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() { conn.Close() })
		awaitConn(c.t, conn)
		r.stubs = append(r.stubs, rowraftv1.NewTableClient(conn))
	}
	return r
}

// read returns the first weight of row 1 at one server.
func (r *boundedReads) read(ctx context.Context, server int,
	req *rowraftv1.PullRequest) (float32, *rowraftv1.PullReply, error) {
	seg := wire.Segment{Table: r.table, N: 1, Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoValues}
	req.MapVersion, req.Mode = anyMapVersion, rowraftv1.ReadMode_READ_MODE_BOUNDED
	req.Payload = segment(seg, []uint64{1}, nil)
	reply, err := r.stubs[server].Pull(ctx, req)
	if err != nil {
		return 0, nil, rpc.FromStatus(err)
	}
	got, body, _, err := wire.ParseSegment(reply.Payload)
	if err != nil {
		r.t.Fatal(err)
	}
	values := make([]float32, got.Dim)
	wire.GetFloats(values, got.DType, body.Values)
	return values[0], reply, nil
}

// patient reads again while the server is not new enough: a replica gives up after 300 ms, and a busy
// machine may take longer.
func (r *boundedReads) patient(ctx context.Context, server int, maxAge time.Duration, maxLag,
	minIndex uint64) (float32, *rowraftv1.PullReply, time.Time) {
	r.t.Helper()
	for {
		called := time.Now()
		v, reply, err := r.read(ctx, server, &rowraftv1.PullRequest{MaxAgeNs: uint64(maxAge), MaxLag: maxLag,
			MinIndex: minIndex})
		if err == nil {
			return v, reply, called
		}
		if !rowraft.CodeOf(err).Retryable() || ctx.Err() != nil {
			r.t.Fatalf("server %d: %v", server, err)
		}
	}
}

// A server answers bounded reads of one call together, except one whose bound it cannot prove.
func TestBoundedReadsOfOneCall(t *testing.T) {
	c := startCluster(t, 3, 1)
	ctx := testutil.Context(t)
	table, err := c.dial().CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	reads := c.boundedReads(table)
	for server := range c.nodes {
		reads.patient(ctx, server, time.Minute, 0, 0) // then it has a proof
		seg := wire.Segment{Table: table.Schema().ID, N: 1, Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoValues}
		ask := func(maxAge time.Duration) *rowraftv1.PullRequest {
			return &rowraftv1.PullRequest{MapVersion: anyMapVersion, Mode: rowraftv1.ReadMode_READ_MODE_BOUNDED,
				MaxAgeNs: uint64(maxAge), Payload: segment(seg, []uint64{1}, nil)}
		}
		stream := pullMany(t, ctx, reads.stubs[server], ask(1), ask(time.Hour), ask(time.Hour))
		some, err := stream.Recv()
		if err != nil || len(some.Answers) != 2 || some.Answers[0].Batch != 1 || some.Answers[1].Batch != 2 {
			t.Errorf("server %d answers %v, %v, want batches 1 and 2", server, some, err)
		}
		if some, err = stream.Recv(); err != nil || len(some.Answers) != 1 ||
			rowraft.Code(some.Answers[0].Error.GetCode()) != rowraft.CodeTooStale {
			t.Errorf("server %d answers %v, %v, want batch 0 to be too stale", server, some, err)
		}
	}
}

// Every replica serves, and has every push that was acknowledged before the reported age.
func TestBoundedReadsOfAnyReplica(t *testing.T) {
	c := startCluster(t, 3, 1)
	ctx := testutil.Context(t)
	cl := c.dial()
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	reads := c.boundedReads(table)
	var acked []time.Time // of push i+1
	for push := range 60 {
		if _, err := table.Push(ctx, []rowraft.Key{1}, []float32{-1, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		acked = append(acked, time.Now())
		v, reply, called := reads.patient(ctx, push%3, 10*time.Second, 1000, 0)
		if reply.AgeNs == 0 || reply.AgeNs > uint64(10*time.Second) {
			t.Errorf("server %d tells an age of %d ns", push%3, reply.AgeNs)
		}
		from := called.Add(-time.Duration(reply.AgeNs))
		want := 0
		for _, at := range acked {
			if at.Before(from) {
				want++
			}
		}
		if int(v) < want || int(v) > push+1 {
			t.Errorf("server %d with an age of %v has %v pushes of %d, want %d at least", push%3, time.Duration(reply.AgeNs), v,
				push+1, want)
		}
		// A minimum index applies whatever the age.
		index := uint64(cl.Position().Shards[0])
		if v, reply, _ = reads.patient(ctx, push%3, time.Minute, 0, index); int(v) != push+1 || reply.AppliedIndex < index {
			t.Fatalf("server %d after push %d at index %d: %v, %v", push%3, push+1, index, v, reply)
		}
	}
}

// Without a majority no replica can prove its age. A replica serves by its last proof until that is too
// old, and then refuses.
func TestBoundedReadsEndWithTheirBound(t *testing.T) {
	c := startCluster(t, 3, 1)
	ctx := testutil.Context(t)
	table, err := c.dial().CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Push(ctx, []rowraft.Key{1}, []float32{-1, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	reads := c.boundedReads(table)
	const maxAge = 5 * time.Second
	ask := func() (float32, *rowraftv1.PullReply, error) {
		return reads.read(ctx, 2, &rowraftv1.PullRequest{MaxAgeNs: uint64(maxAge)})
	}
	reads.patient(ctx, 2, maxAge, 0, 0)
	c.stopNode(0)
	c.stopNode(1)
	gone := time.Now()
	for {
		late := time.Since(gone) > maxAge
		v, reply, err := ask()
		if err == nil {
			if late || v != 1 || reply.AgeNs > uint64(maxAge) {
				t.Fatalf("%v after the majority went: %v pushes, age %d ns", time.Since(gone), v, reply.AgeNs)
			}
			continue
		}
		stale, ok := errors.AsType[*rowraft.TooStaleError](err)
		if !ok || stale.MaxAge != maxAge || stale.Age <= maxAge {
			t.Fatalf("refused with %v (%+v), want a TooStaleError that tells an age over %v", err, stale, maxAge)
		}
		break
	}
	if _, _, err := reads.read(ctx, 2, &rowraftv1.PullRequest{MaxAgeNs: uint64(time.Hour)}); err != nil {
		t.Errorf("with a bound of an hour: %v", err)
	}
}

// A probe is for the servers of one cluster: addresses are reused.
func TestReadIndexIsForItsCluster(t *testing.T) {
	r, _ := openRaw(t)
	ctx := testutil.Context(t)
	if _, err := r.admin.ReadIndex(ctx, &rowraftv1.ReadIndexRequest{Cluster: "another"}); rowraft.CodeOf(
		err) != rowraft.CodeIdentity {
		t.Errorf("a call for another cluster: %v, want CodeIdentity", err)
	}
	reply, err := r.admin.ReadIndex(ctx, &rowraftv1.ReadIndexRequest{Cluster: string(r.m.Cluster)})
	if err != nil || reply.Index == 0 {
		t.Errorf("%v, %v, want an index", reply, err)
	}
}
