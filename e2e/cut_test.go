package e2e

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// cutShard drives one shard through a cut by hand, as the scheduler does.
type cutShard struct {
	stream grpc.BidiStreamingClient[rowraftv1.WritePartRequest, rowraftv1.WritePartReply]
}

func (s *cutShard) step(req *rowraftv1.WritePartRequest) error {
	if err := s.stream.Send(req); err != nil && !errors.Is(err, io.EOF) { // the answer says why
		return rpc.FromStatus(err)
	}
	_, err := s.stream.Recv()
	return rpc.FromStatus(err)
}

func (s *cutShard) prepare(shard uint32, dest string) error {
	mark := uuid.New()
	return s.step(&rowraftv1.WritePartRequest{Step: &rowraftv1.WritePartRequest_Prepare{Prepare: &rowraftv1.WritePartPrepare{
		Shard: shard, Mark: mark[:], Destination: dest, Name: "by-hand",
	}}})
}

func (s *cutShard) hold() error {
	return s.step(&rowraftv1.WritePartRequest{Step: &rowraftv1.WritePartRequest_Hold{Hold: &rowraftv1.WritePartHold{LeaseNs: uint64(5 * time.Second)}}})
}

// mark fails when the hold has ended before.
func (s *cutShard) mark() error {
	return s.step(&rowraftv1.WritePartRequest{Step: &rowraftv1.WritePartRequest_Mark{Mark: &rowraftv1.WritePartMark{}}})
}

func (s *cutShard) written() (rows uint64, err error) {
	for {
		reply, err := s.stream.Recv()
		if err != nil {
			return 0, rpc.FromStatus(err)
		}
		if done := reply.GetDone(); done != nil {
			return done.Rows, nil
		}
	}
}

// TestAHeldShardLetsNoPushIn holds two shards and marks one: a push to it is not
// in the cut, so neither may be a push to the other that comes after it.
func TestAHeldShardLetsNoPushIn(t *testing.T) {
	c := start(t, localcluster.Options{Servers: 1, Shards: 2})
	cl := c.dial(client.Options{})
	table, err := cl.CreateTable(deadline(t, patience), rowraft.Schema{
		Name: "t", Kind: rowraft.Sparse, Dim: 1, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(c.Servers()[0].Addr, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h := &byHand{t: t, cl: cl, table: table, parts: rowraftv1.NewReplicasClient(conn), dest: t.TempDir(), next: make([]rowraft.Key, 2), rows: make([]uint64, 2)}
	ctx := deadline(t, patience)
	for shard := range h.rows {
		if err := h.push(ctx, shard); err != nil {
			t.Fatal(err)
		}
	}
	again := func(says string, try func(context.Context) bool) { // a process may stand still for longer than a hold lasts
		t.Helper()
		ctx := deadline(t, patience)
		if err := poll(ctx, func() error {
			if !try(ctx) {
				return errors.New(says)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	again("no cut was fast enough", h.cut)
	again("pushes wait for a coordinator that is gone", h.vanish)
	c.createCheckpoint(h.dest, "after")
}

// byHand cuts through two shards as the scheduler does.
type byHand struct {
	t     *testing.T
	cl    *client.Client
	table *client.Table
	parts rowraftv1.ReplicasClient
	dest  string
	next  []rowraft.Key // by shard: where to look for one that was not pushed
	rows  []uint64      // by shard
}

// push makes a new row in a shard.
func (h *byHand) push(ctx context.Context, shard int) error {
	for k := h.next[shard] + 1; ; k++ {
		if h.cl.Map().ShardOf(clustermap.SlotOf(h.table.Schema().ID, rowraft.Sparse, k, rowraft.DefaultSlots)) == rowraft.ShardID(shard) {
			h.next[shard], h.rows[shard] = k, h.rows[shard]+1
			_, err := h.table.Push(ctx, []rowraft.Key{k}, []float32{-1})
			return err
		}
	}
}

// begin prepares and holds a shard.
func (h *byHand) begin(ctx context.Context, shard int) (s *cutShard, err error) {
	s = &cutShard{}
	if s.stream, err = h.parts.WritePart(ctx); err != nil {
		return nil, rpc.FromStatus(err)
	}
	if err := s.prepare(uint32(shard), h.dest); err != nil {
		return nil, err
	}
	return s, s.hold()
}

// passes logs what comes of a server that stood still; anything else fails the test.
func (h *byHand) passes(what string, err error) {
	h.t.Helper()
	if !rowraft.CodeOf(err).Retryable() {
		h.t.Fatalf("%s: %v", what, err)
	}
	h.t.Logf("%s: %v", what, err)
}

// cut returns false if a call or a hold ended before it was done: then it says nothing.
func (h *byHand) cut(ctx context.Context) bool {
	h.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	want := slices.Clone(h.rows)
	var shards []*cutShard
	for i := range want {
		s, err := h.begin(ctx, i)
		if err != nil {
			h.passes("begin", err)
			return false
		}
		shards = append(shards, s)
	}
	if err := shards[0].mark(); err != nil {
		h.passes("mark shard 0", err)
		return false
	}
	if err := h.push(ctx, 0); err != nil {
		h.t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() { second <- h.push(ctx, 1) }()
	early := false
	select {
	case err := <-second:
		early = true
		second <- err
	case <-time.After(200 * time.Millisecond):
	}
	marked := shards[1].mark() // only if it has been held until now
	if err := <-second; err != nil {
		h.t.Fatalf("the push that waited: %v", err)
	}
	if marked != nil {
		h.passes("mark shard 1", marked)
		return false
	}
	if early {
		h.t.Error("a push got into a shard that is held")
	}
	for i, s := range shards {
		n, err := s.written()
		if err != nil {
			h.passes("write", err)
			return false
		}
		if n != want[i] {
			h.t.Errorf("the cut has %d rows of shard %d, want the %d from before", n, i, want[i])
		}
	}
	return true
}

// vanish holds a shard and is gone. It returns whether a push went on before the hold would
// have ended.
func (h *byHand) vanish(ctx context.Context) bool {
	h.t.Helper()
	gone, leave := context.WithCancel(ctx)
	defer leave()
	if _, err := h.begin(gone, 0); err != nil {
		h.passes("begin", err)
		return false
	}
	leave()
	begin := time.Now()
	if err := h.push(ctx, 0); err != nil {
		h.t.Fatal(err)
	}
	took := time.Since(begin)
	h.t.Logf("a push waited %v for a coordinator that is gone", took)
	return took < 3*time.Second
}
