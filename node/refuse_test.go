package node

import (
	"math"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// raw makes calls to one server as any gRPC client would.
type raw struct {
	t     *testing.T
	stub  rowraftv1.TableClient
	admin rowraftv1.ReplicasClient
	m     *clustermap.Map
	table rowraft.Schema
	id    rowraft.ClientID
	seq   uint64
}

// openRaw starts a cluster of one shard with a table of dim 4, two rows in it, and an open session.
func openRaw(t *testing.T) (*raw, *testCluster) {
	c := startCluster(t, 1, 1)
	cl, ctx := c.dial(), testutil.Context(t)
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Push(ctx, []rowraft.Key{10, 20}, make([]float32, 8)); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, c.nodes[0].addr, nil)
	r := &raw{t: t, stub: rowraftv1.NewTableClient(conn), admin: rowraftv1.NewReplicasClient(conn), m: cl.Map(),
		table: table.Schema(), id: rowraft.ClientID{1}}
	if _, err := r.stub.OpenSession(ctx, &rowraftv1.OpenSessionRequest{ClientId: r.id[:], Incarnation: 1 << 40,
		Ticket: 1}); err != nil {
		t.Fatal(err)
	}
	return r, c
}

// segment builds a payload of one segment; dim and dtype may be wrong.
func segment(s wire.Segment, keys []uint64, values []float32) []byte {
	b := make([]byte, s.Size())
	body := s.Put(b)
	for i, k := range keys {
		for j := range 8 {
			body.Keys[8*i+j] = byte(k >> (8 * j))
		}
	}
	wire.PutFloats(body.Values, s.DType, values)
	return b
}

func (r *raw) segment(keys []uint64, values []float32) []byte {
	return segment(wire.Segment{Table: r.table.ID, N: len(keys), Dim: 4, DType: rowraft.Float32}, keys, values)
}

func (r *raw) request(payload []byte) *rowraftv1.WriteRequest {
	r.seq++
	return &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH, MapVersion: uint64(r.m.SlotsVersion),
		ClientId: r.id[:], Incarnation: 1 << 40, Seq: r.seq, Payload: payload}
}

// state returns the log index and the rows of the shard.
func (r *raw) state() string {
	r.t.Helper()
	st, err := r.admin.NodeStatus(testutil.Context(r.t), &rowraftv1.NodeStatusRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	d, err := r.admin.Digest(testutil.Context(r.t), &rowraftv1.DigestRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	return string(d.Digest) + string(rune(st.Replicas[0].LastIndex)) + string(rune(d.Rows))
}

func TestBadPushesAreRefusedBeforeTheLog(t *testing.T) {
	r, _ := openRaw(t)
	ok := []float32{1, 2, 3, 4}
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	good := r.segment([]uint64{10}, ok)
	long := make([]uint64, 60_000)
	for i := range long {
		long[i] = uint64(i)
	}
	wide := wire.Segment{Table: r.table.ID, N: 1, Dim: 5, DType: rowraft.Float32}
	badDType := append([]byte(nil), good...)
	badDType[14] = 9
	tooMany := append([]byte(nil), good...)
	tooMany[10] = 0xff // of the number of keys

	for _, tc := range []struct {
		name   string
		change func(*rowraftv1.WriteRequest)
		want   rowraft.Code
	}{
		{"wrong dim", func(q *rowraftv1.WriteRequest) { q.Payload = segment(wide, []uint64{10}, append(ok, 5)) },
			rowraft.CodeInvalidArgument},
		{"no operation", func(q *rowraftv1.WriteRequest) { q.Op = rowraftv1.WriteOp_WRITE_OP_UNSPECIFIED },
			rowraft.CodeInvalidArgument},
		{"an operation of a later version", func(q *rowraftv1.WriteRequest) { q.Op = rowraftv1.WriteOp_WRITE_OP_CLOCKED + 1 },
			rowraft.CodeInvalidArgument},
		{"an operation that a byte cuts down to a push", func(q *rowraftv1.WriteRequest) { q.Op = 257 },
			rowraft.CodeInvalidArgument},
		{"payload cut short", func(q *rowraftv1.WriteRequest) { q.Payload = good[:len(good)-4] },
			rowraft.CodeInvalidArgument},
		{"payload with more behind it", func(q *rowraftv1.WriteRequest) {
			q.Payload = append(append([]byte(nil), good...), 1,
				2, 3)
		}, rowraft.CodeInvalidArgument},
		{"unknown dtype", func(q *rowraftv1.WriteRequest) { q.Payload = badDType }, rowraft.CodeInvalidArgument},
		{"more keys than the payload holds", func(q *rowraftv1.WriteRequest) { q.Payload = tooMany },
			rowraft.CodeInvalidArgument},
		{"keys out of order", func(q *rowraftv1.WriteRequest) { q.Payload = r.segment([]uint64{20, 10}, append(ok, ok...)) },
			rowraft.CodeInvalidArgument},
		{"a key twice", func(q *rowraftv1.WriteRequest) { q.Payload = r.segment([]uint64{10, 10}, append(ok, ok...)) },
			rowraft.CodeInvalidArgument},
		{"NaN", func(q *rowraftv1.WriteRequest) { q.Payload = r.segment([]uint64{10}, []float32{1, nan, 3, 4}) },
			rowraft.CodeInvalidArgument},
		{"infinity", func(q *rowraftv1.WriteRequest) { q.Payload = r.segment([]uint64{10}, []float32{1, 2, 3, inf}) },
			rowraft.CodeInvalidArgument},
		{"unknown table", func(q *rowraftv1.WriteRequest) {
			q.Payload = segment(wire.Segment{Table: r.table.ID + 1, N: 1, Dim: 4, DType: rowraft.Float32}, []uint64{10}, ok)
		}, rowraft.CodeTableNotFound},
		{"a stale map", func(q *rowraftv1.WriteRequest) { q.MapVersion = 0 }, rowraft.CodeWrongShard},
		{"a shard that does not exist", func(q *rowraftv1.WriteRequest) { q.Shard = 7 }, rowraft.CodeInvalidArgument},
		{"no client id", func(q *rowraftv1.WriteRequest) { q.ClientId = nil }, rowraft.CodeInvalidArgument},
		{"number 0", func(q *rowraftv1.WriteRequest) { q.Seq = 0 }, rowraft.CodeInvalidArgument},
		{"a session that was never opened", func(q *rowraftv1.WriteRequest) { q.ClientId = make([]byte, 16) },
			rowraft.CodeSessionExpired},
		{"a fenced incarnation", func(q *rowraftv1.WriteRequest) { q.Incarnation = 1 }, rowraft.CodeSessionExpired},
		{"a later table epoch, which a restore may be bringing", func(q *rowraftv1.WriteRequest) { q.TableEpoch = 99 },
			rowraft.CodeStarting},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := r.state()
			req := r.request(good)
			tc.change(req)
			_, err := r.stub.Write(testutil.Context(t), req)
			if rowraft.CodeOf(err) != tc.want {
				t.Fatalf("got %v (%v), want %v", rowraft.CodeOf(err), err, tc.want)
			}
			if r.state() != before {
				t.Errorf("the refused push changed the log or the rows")
			}
		})
	}
	t.Run("a request over the size limit", func(t *testing.T) {
		before := r.state()
		req := r.request(make([]byte, rpc.MaxRequestBytes+1))
		_, err := r.stub.Write(testutil.Context(t), req)
		if err == nil || r.state() != before {
			t.Fatalf("a request of %d bytes: %v", rpc.MaxRequestBytes, err)
		}
	})
	t.Run("and the good one is taken", func(t *testing.T) {
		before := r.state()
		if _, err := r.stub.Write(testutil.Context(t), r.request(good)); err != nil {
			t.Fatal(err)
		}
		if r.state() == before {
			t.Error("state() does not see a push")
		}
	})
}

func TestBadPullsAreRefused(t *testing.T) {
	r, _ := openRaw(t)
	ask := func(table rowraft.TableID, dim int) []byte {
		return segment(wire.Segment{Table: table, N: 1, Dim: dim, DType: rowraft.Float32, Flags: wire.FlagNoValues},
			[]uint64{10}, nil)
	}
	for _, tc := range []struct {
		name string
		req  *rowraftv1.PullRequest
		want rowraft.Code
	}{
		{"unknown table", &rowraftv1.PullRequest{MapVersion: 1 << 30, Payload: ask(1, 4)}, rowraft.CodeTableNotFound},
		{"wrong dim", &rowraftv1.PullRequest{MapVersion: 1 << 30, Payload: ask(r.table.ID, 3)}, rowraft.CodeInvalidArgument},
		{"with values", &rowraftv1.PullRequest{MapVersion: 1 << 30, Payload: r.segment([]uint64{1}, make([]float32, 4))},
			rowraft.CodeInvalidArgument},
		{"stale map", &rowraftv1.PullRequest{Payload: ask(r.table.ID, 4)}, rowraft.CodeWrongShard},
		{"unknown read mode", &rowraftv1.PullRequest{MapVersion: 1 << 30, Mode: 77, Payload: ask(r.table.ID, 4)},
			rowraft.CodeInvalidArgument},
		{"an index that is not there yet", &rowraftv1.PullRequest{MapVersion: 1 << 30, MinIndex: 1 << 40,
			Payload: ask(r.table.ID, 4)}, rowraft.CodeTooStale},
		{"the same, bounded", &rowraftv1.PullRequest{MapVersion: 1 << 30, Mode: rowraftv1.ReadMode_READ_MODE_BOUNDED,
			MaxAgeNs: 1 << 40, MinIndex: 1 << 40, Payload: ask(r.table.ID, 4)}, rowraft.CodeTooStale},
		{"bounded by nothing", &rowraftv1.PullRequest{MapVersion: 1 << 30, Mode: rowraftv1.ReadMode_READ_MODE_BOUNDED,
			Payload: ask(r.table.ID, 4)}, rowraft.CodeInvalidArgument},
		{"a bound without a proof", &rowraftv1.PullRequest{MapVersion: 1 << 30, Mode: rowraftv1.ReadMode_READ_MODE_BOUNDED,
			MaxAgeNs: 1, Payload: ask(r.table.ID, 4)}, rowraft.CodeTooStale},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := r.stub.Pull(testutil.Context(t), tc.req); rowraft.CodeOf(err) != tc.want {
				t.Fatalf("got %v (%v), want %v", rowraft.CodeOf(err), err, tc.want)
			}
		})
	}
	for _, mode := range []rowraftv1.ReadMode{rowraftv1.ReadMode_READ_MODE_LEADER,
		rowraftv1.ReadMode_READ_MODE_LINEARIZABLE} {
		reply, err := r.stub.Pull(testutil.Context(t), &rowraftv1.PullRequest{MapVersion: 1 << 30, Mode: mode,
			Payload: ask(r.table.ID, 4)})
		if err != nil || len(reply.Payload) == 0 {
			t.Errorf("a good pull, mode %v: %v", mode, err)
		}
	}
}

// TestAPullOfAnotherShardsKeyIsRefused: no read mode answers for a key of another shard.
func TestAPullOfAnotherShardsKeyIsRefused(t *testing.T) {
	c := startCluster(t, 1, 2)
	cl, ctx := c.dial(), testutil.Context(t)
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	id := table.Schema().ID
	foreign, err := cl.Map().KeyInShard(id, 1)
	if err != nil {
		t.Fatal(err)
	}
	stub := rowraftv1.NewTableClient(connect(t, c.nodes[0].addr, nil))
	for _, mode := range []rowraftv1.ReadMode{rowraftv1.ReadMode_READ_MODE_LEADER,
		rowraftv1.ReadMode_READ_MODE_LINEARIZABLE, rowraftv1.ReadMode_READ_MODE_BOUNDED} {
		_, err := stub.Pull(ctx, &rowraftv1.PullRequest{Shard: 0, MapVersion: 1 << 30, Mode: mode, MaxAgeNs: 1 << 40,
			Payload: segment(wire.Segment{Table: id, N: 1, Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoValues},
				[]uint64{uint64(foreign)}, nil)})
		if rowraft.CodeOf(err) != rowraft.CodeWrongShard {
			t.Errorf("mode %v: got %v (%v), want WrongShard", mode, rowraft.CodeOf(err), err)
		}
	}
}

// TestResentNumberIsAppliedOnce resends a number, then pushes the next one.
func TestResentNumberIsAppliedOnce(t *testing.T) {
	r, _ := openRaw(t)
	ctx := testutil.Context(t)
	req := r.request(r.segment([]uint64{10}, []float32{-1, 0, 0, 0}))
	for i := range 3 {
		reply, err := r.stub.Write(ctx, req)
		if err != nil || reply.Duplicate != (i > 0) {
			t.Fatalf("try %d: %v, %v", i, reply, err)
		}
	}
	if reply, err := r.stub.Write(ctx, r.request(r.segment([]uint64{10}, []float32{-1, 0, 0, 0}))); err != nil ||
		reply.Duplicate {
		t.Fatalf("the next number: %v, %v", reply, err)
	}
	ask := segment(wire.Segment{Table: r.table.ID, N: 1, Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoValues},
		[]uint64{10}, nil)
	reply, err := r.stub.Pull(ctx, &rowraftv1.PullRequest{MapVersion: 1 << 30, Payload: ask})
	if err != nil {
		t.Fatal(err)
	}
	_, body, _, err := wire.ParseSegment(reply.Payload)
	if err != nil {
		t.Fatal(err)
	}
	var row [4]float32
	wire.GetFloats(row[:], rowraft.Float32, body.Values)
	if row[0] != 2 {
		t.Fatalf("the row counts %v pushes, want 2", row[0])
	}
}

// TestFullDiskRefusesPushes sets the reserve above the size of any disk: the server refuses pushes before
// the log, and pulls continue.
func TestFullDiskRefusesPushes(t *testing.T) {
	r, c := openRaw(t)
	c.stopNode(0)
	c.nodes[0].cfg.DiskReserveBytes = 1 << 60
	c.restart(0)
	ctx := testutil.Context(t)
	testutil.Eventually(t, "a push is refused as CodeOverloaded", func() bool {
		_, err := r.stub.Write(ctx, r.request(r.segment([]uint64{10}, make([]float32, 4))))
		if err == nil {
			t.Fatal("a push was taken on a full disk")
		}
		return rowraft.CodeOf(err) == rowraft.CodeOverloaded
	})
	ask := segment(wire.Segment{Table: r.table.ID, N: 1, Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoValues},
		[]uint64{10}, nil)
	if _, err := r.stub.Pull(ctx, &rowraftv1.PullRequest{MapVersion: 1 << 30, Payload: ask}); err != nil {
		t.Errorf("pull on a full disk: %v", err)
	}
}

func TestTableNamesAreUnique(t *testing.T) {
	c := startCluster(t, 1, 1)
	cl, ctx := c.dial(), testutil.Context(t)
	if _, err := cl.CreateTable(ctx, counterSchema("user"), false); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.CreateTable(ctx, counterSchema("user"), true); err != nil {
		t.Errorf("the same table again, if not exists: %v", err)
	}
	if _, err := cl.CreateTable(ctx, counterSchema("user"), false); rowraft.CodeOf(err) != rowraft.CodeTableExists {
		t.Errorf("the same table again: %v, want CodeTableExists", err)
	}
	other := counterSchema("user")
	other.Dim = 8
	if _, err := cl.CreateTable(ctx, other, true); rowraft.CodeOf(err) != rowraft.CodeTableExists {
		t.Errorf("a table of another shape: %v, want CodeTableExists", err)
	}
}

// TestAnyGRPCClientCanTalk uses protobuf's own codec and a bare connection.
func TestAnyGRPCClientCanTalk(t *testing.T) {
	r, c := openRaw(t)
	conn, err := bareDial(c.nodes[0].addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	awaitConn(t, conn)
	ctx := testutil.Context(t)
	stub := rowraftv1.NewTableClient(conn)
	if _, err := stub.Write(ctx, r.request(r.segment([]uint64{10}, []float32{1, 2, 3, 4}))); err != nil {
		t.Fatal(err)
	}
	_, err = stub.Write(ctx, r.request([]byte{1}))
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a bad push has status %v, want INVALID_ARGUMENT", status.Code(err))
	}
}
