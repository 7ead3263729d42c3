package e2e

import (
	"context"
	"testing"
	"time"

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
	t      *testing.T
	stream grpc.BidiStreamingClient[rowraftv1.WritePartRequest, rowraftv1.WritePartReply]
}

func (s *cutShard) step(req *rowraftv1.WritePartRequest) *rowraftv1.WritePartReply {
	s.t.Helper()
	if err := s.stream.Send(req); err != nil {
		s.t.Fatal(err)
	}
	return s.recv()
}

func (s *cutShard) recv() *rowraftv1.WritePartReply {
	s.t.Helper()
	reply, err := s.stream.Recv()
	if err != nil {
		s.t.Fatal(rpc.FromStatus(err))
	}
	return reply
}

func (s *cutShard) prepare(shard uint32, dest string) {
	s.step(&rowraftv1.WritePartRequest{Step: &rowraftv1.WritePartRequest_Prepare{Prepare: &rowraftv1.WritePartPrepare{
		Shard: shard, Mark: make([]byte, 16), Destination: dest, Name: "by-hand",
	}}})
}

func (s *cutShard) hold() {
	s.step(&rowraftv1.WritePartRequest{Step: &rowraftv1.WritePartRequest_Hold{Hold: &rowraftv1.WritePartHold{LeaseNs: uint64(5 * time.Second)}}})
}

func (s *cutShard) mark() {
	s.step(&rowraftv1.WritePartRequest{Step: &rowraftv1.WritePartRequest_Mark{Mark: &rowraftv1.WritePartMark{}}})
}

func (s *cutShard) rows() uint64 {
	s.t.Helper()
	for {
		if done := s.recv().GetDone(); done != nil {
			return done.Rows
		}
	}
}

// TestAHeldShardLetsNoPushIn holds two shards and marks one: a push to it is not
// in the cut, so neither may be a push to the other that comes after it.
func TestAHeldShardLetsNoPushIn(t *testing.T) {
	c := start(t, localcluster.Options{Servers: 1, Shards: 2})
	cl := c.dial(client.Options{})
	table, err := cl.CreateTable(deadline(t, 30*time.Second), rowraft.Schema{
		Name: "t", Kind: rowraft.Sparse, Dim: 1, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	keys, dest := make([]rowraft.Key, 2), t.TempDir()
	conn, err := rpc.Dial(c.Servers()[0].Addr, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(deadline(t, time.Minute))
	defer cancel()
	shards := make([]*cutShard, 2)
	for i := range shards {
		if keys[i], err = cl.Map().KeyInShard(table.Schema().ID, rowraft.ShardID(i)); err != nil {
			t.Fatal(err)
		}
		if _, err := table.Push(ctx, keys[i:i+1], []float32{-1}); err != nil {
			t.Fatal(err)
		}
		shards[i] = &cutShard{t: t}
		if shards[i].stream, err = rowraftv1.NewPartsClient(conn).WritePart(ctx); err != nil {
			t.Fatal(err)
		}
		shards[i].prepare(uint32(i), dest)
	}
	shards[0].hold()
	shards[1].hold()
	shards[0].mark()
	if _, err := table.Push(ctx, []rowraft.Key{newKey(t, cl, table, 0)}, []float32{-1}); err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		_, err := table.Push(ctx, []rowraft.Key{newKey(t, cl, table, 1)}, []float32{-1})
		second <- err
	}()
	select {
	case err := <-second:
		t.Errorf("a push got into a shard that is held: %v", err)
		second <- nil
	case <-time.After(200 * time.Millisecond):
	}
	shards[1].mark()
	if err := <-second; err != nil {
		t.Errorf("the push that waited: %v", err)
	}
	for i, s := range shards {
		if n := s.rows(); n != 1 {
			t.Errorf("the cut has %d rows of shard %d, want the one from before", n, i)
		}
	}

	// A coordinator that vanishes while it holds a shard lets pushes go on.
	gone, leave := context.WithCancel(ctx)
	s := &cutShard{t: t}
	if s.stream, err = rowraftv1.NewPartsClient(conn).WritePart(gone); err != nil {
		t.Fatal(err)
	}
	s.prepare(0, dest)
	s.hold()
	leave()
	begin := time.Now()
	if _, err := table.Push(ctx, keys[:1], []float32{-1}); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("a push waited %v for a coordinator that is gone", d)
	}
	c.createCheckpoint(dest, "after")
}

// newKey returns a key of shard other than the first.
func newKey(t *testing.T, cl *client.Client, table *client.Table, shard rowraft.ShardID) rowraft.Key {
	t.Helper()
	first, err := cl.Map().KeyInShard(table.Schema().ID, shard)
	if err != nil {
		t.Fatal(err)
	}
	for k := first + 1; ; k++ {
		if cl.Map().ShardOf(clustermap.SlotOf(table.Schema().ID, rowraft.Sparse, k)) == shard {
			return k
		}
	}
}
