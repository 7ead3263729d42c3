package node

import (
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// TestSharedCallsKeepBatchesApart: shard 0 applies nothing, as without a quorum. The other batches of a
// WriteMany are answered, each with its own code. A caller that leaves frees all that its call holds, and
// a batch that is sent again under its number is applied once.
func TestSharedCallsKeepBatchesApart(t *testing.T) {
	const shards = 3
	var held atomic.Pointer[chan struct{}] // until it is closed, shard 0 applies nothing
	c := startClusterWith(t, 1, shards, func(cfg *Config) {
		cfg.tamper(func(r *applier, entry []byte) []byte {
			if h := held.Load(); h != nil && r.shard == "shard-0" {
				<-*h
			}
			return entry
		})
	})
	ctx, n, cl, id := testutil.Context(t), c.nodes[0], c.dial(), rowraft.ClientID{1}
	table, err := cl.CreateTable(ctx, counterSchema("shared"), false)
	if err != nil {
		t.Fatal(err)
	}
	stub := rowraftv1.NewTableClient(connect(t, n.addr, nil))
	keys := map[uint32]uint64{}
	for k := uint64(0); len(keys) < shards; k++ {
		keys[uint32(cl.Map().ShardOf(table.Slot(rowraft.Key(k))))] = k
	}
	for shard := range uint32(shards) {
		if _, err := stub.OpenSession(ctx, &rowraftv1.OpenSessionRequest{Shard: shard, ClientId: id[:], Incarnation: 1 << 40,
			Ticket: 1}); err != nil {
			t.Fatal(err)
		}
	}
	seg := wire.Segment{Table: table.Schema().ID, N: 1, Dim: 4, DType: rowraft.Float32}
	write := func(shard uint32, seq uint64, gradient float32) *rowraftv1.WriteRequest {
		return &rowraftv1.WriteRequest{
			Op: rowraftv1.WriteOp_WRITE_OP_PUSH, MapVersion: anyMapVersion, Shard: shard, ClientId: id[:], Incarnation: 1 << 40,
			Seq:     seq,
			Payload: segment(seg, []uint64{keys[shard]}, []float32{gradient, 0, 0, 0}),
		}
	}
	release := func() func() {
		h := make(chan struct{})
		held.Store(&h)
		return func() { held.Store(nil); close(h) }
	}

	replicas := rowraftv1.NewReplicasClient(connect(t, n.addr, nil))
	lastIndex := func() uint64 { // of shard 0
		status, err := replicas.NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range status.Replicas {
			if r.Shard == 0 {
				return r.LastIndex
			}
		}
		t.Fatal("the server has no replica of shard 0")
		return 0
	}

	letGo := release()
	before := lastIndex()
	stale := write(1, 2, -1)
	stale.MapVersion = 0
	call, leave := context.WithCancel(ctx)
	stream, err := stub.WriteMany(call, &rowraftv1.WriteManyRequest{Batches: []*rowraftv1.WriteRequest{
		write(0, 1, -1), write(1, 1, -1), write(2, 1, float32(math.NaN())), write(9, 1, -1), stale,
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[uint32]rowraft.Code{}
	for range 4 {
		reply, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got[reply.Batch] = rowraft.Code(reply.Error.GetCode())
	}
	if want := map[uint32]rowraft.Code{1: 0, 2: rowraft.CodeInvalidArgument, 3: rowraft.CodeInvalidArgument,
		4: rowraft.CodeWrongShard}; !maps.Equal(got, want) {
		t.Errorf("while shard 0 hangs the batches end with %v, want %v", got, want)
	}
	ask := func(shard uint32, minIndex uint64) *rowraftv1.PullRequest {
		q := seg
		q.Flags = wire.FlagNoValues
		return &rowraftv1.PullRequest{MapVersion: anyMapVersion, Shard: shard, MinIndex: minIndex,
			Payload: segment(q, []uint64{keys[shard]}, nil)}
	}
	waits := ask(0, 0)
	testutil.Eventually(t, "the push that is not applied is in the log of shard 0", func() bool {
		waits.MinIndex = lastIndex()
		return waits.MinIndex > before
	})
	early := pullMany(t, ctx, stub, waits, ask(1, 0), ask(2, 0))
	some, err := early.Recv()
	if err != nil || len(some.Answers) != 2 || some.Answers[0].Batch != 1 || some.Answers[1].Batch != 2 {
		t.Errorf("while a pull waits for an entry, its call answers %v, %v, want batches 1 and 2", some, err)
	}
	leave()
	if _, err := stream.Recv(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a call that was left ends with %v", err)
	}
	letGo()
	n.awaitMetric(t, `rowraft_in_flight_bytes{op="push"}`, func(v float64) bool { return v == 0 })
	// A slow machine may have let the pull run out of time.
	if some, err = early.Recv(); err != nil || len(some.Answers) != 1 || some.Answers[0].Batch != 0 {
		t.Errorf("then it answers %v, %v, want batch 0", some, err)
	}
	again, err := stub.Write(ctx, write(0, 1, -1))
	if err != nil || !again.Duplicate {
		t.Errorf("the batch that shard 0 had in its log: %v, %v, want a duplicate", again, err)
	}

	pull := pullMany(t, ctx, stub, ask(0, 0), ask(1, 1<<60), ask(2, 0), ask(1, 0))
	rows := map[uint32][]byte{}
	for {
		some, err := pull.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, reply := range some.Answers {
			if code := rowraft.Code(reply.Error.GetCode()); (code == rowraft.CodeTooStale) != (reply.Batch == 1) {
				t.Errorf("batch %d: %v", reply.Batch, reply.Error)
			}
			rows[reply.Batch] = reply.Payload
		}
	}
	one := wire.Segment{Table: seg.Table, N: 1, Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoKeys}
	for batch, want := range map[uint32]float32{0: 1, 2: 0, 3: 1} { // counterSchema subtracts gradients
		if row := segment(one, nil, []float32{want, 0, 0, 0}); !slices.Equal(rows[batch], row) {
			t.Errorf("batch %d reads %x, want %x", batch, rows[batch], row)
		}
	}
	n.awaitMetric(t, `rowraft_in_flight_bytes{op="pull"}`, func(v float64) bool { return v == 0 })
}

// A server that stops ends a stream that waits for requests without an error: its client opens another one.
func TestAServerThatStopsEndsStreamsOfPulls(t *testing.T) {
	c := startCluster(t, 1, 1)
	ctx := testutil.Context(t)
	table, err := c.dial().CreateTable(ctx, counterSchema("idle"), false)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := rowraftv1.NewTableClient(connect(t, c.nodes[0].addr, nil)).PullMany(ctx)
	if err != nil {
		t.Fatal(err)
	}
	seg := wire.Segment{Table: table.Schema().ID, N: 1, Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoValues}
	for range 2 {
		if err := stream.Send(&rowraftv1.PullManyRequest{Batches: []*rowraftv1.PullRequest{
			{MapVersion: anyMapVersion, Payload: segment(seg, []uint64{1}, nil)}}}); err != nil {
			t.Fatal(err)
		}
		if some, err := stream.Recv(); err != nil || some.Answers[0].Error != nil {
			t.Fatalf("%v, %v, want a row", some, err)
		}
	}
	c.stopNode(0)
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v, want EOF", err)
	}
}

// pullMany sends batches on a stream of their own, which ends with the answers.
func pullMany(t *testing.T, ctx context.Context, stub rowraftv1.TableClient,
	batches ...*rowraftv1.PullRequest) rowraftv1.Table_PullManyClient {
	t.Helper()
	stream, err := stub.PullMany(ctx)
	if err == nil {
		err = stream.Send(&rowraftv1.PullManyRequest{Batches: batches})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream
}
