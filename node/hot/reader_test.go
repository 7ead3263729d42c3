package hot

import (
	"context"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// slowReplica answers CopyRows late, with rows of zeros of a given age and epoch.
type slowReplica struct {
	rowraftv1.UnimplementedReplicasServer
	takes, age time.Duration
	epoch      uint64
	asked      int
}

func (s *slowReplica) CopyRows(ctx context.Context, q *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.asked++
	seg, _, _, err := wire.ParseSegment(q.Payload)
	if err != nil {
		return nil, err
	}
	seg.Flags = wire.FlagNoKeys
	b := make([]byte, seg.Size())
	seg.Put(b)
	return &rowraftv1.PullReply{TableEpoch: s.epoch, AppliedIndex: 7, Payload: b, AgeNs: uint64(s.age)}, nil
}

// copiesFrom returns copies whose only replica is s, and a read of one row.
func copiesFrom(t *testing.T, s *slowReplica) (*Reader, *rowraftv1.PullRequest) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	rowraftv1.RegisterReplicasServer(srv, s)
	go srv.Serve(l)
	t.Cleanup(srv.Stop)
	pool := route.NewPool(nil, nil, 1)
	t.Cleanup(func() { pool.Close() })
	m := &clustermap.Map{Nodes: []clustermap.Node{{ID: "r", Addr: l.Addr().String()}},
		Shards: []clustermap.Shard{{Replicas: []clustermap.Replica{{ID: "a", Node: "r"}}}},
		Tables: []rowraft.Schema{{ID: 5, Name: "t", Dim: 2}}}
	c := NewReader(Options{Node: "me", Map: func() *clustermap.Map { return m }, Bytes: 8 << 20,
		Cluster: func() rowraft.ClusterID { return "c" }, Held: func(rowraft.ShardID) bool { return false },
		Conn: func(rowraft.NodeID) (*grpc.ClientConn, error) { return pool.Get(l.Addr().String()) }})
	t.Cleanup(c.Close)
	seg := wire.Segment{Table: 5, N: 1, Dim: 2, DType: rowraft.BFloat16, Flags: wire.FlagNoValues}
	b := make([]byte, seg.Size())
	seg.Put(b)
	return c, &rowraftv1.PullRequest{Mode: rowraftv1.ReadMode_READ_MODE_BOUNDED, Payload: b}
}

// TestCopyIsAsOldAsItsQuestion: the age of a copy counts from before the replica was asked, with the age that the
// replica proved. A reply that comes too late for the bound is not passed on.
func TestCopyIsAsOldAsItsQuestion(t *testing.T) {
	s := &slowReplica{takes: 50 * time.Millisecond, age: 5 * time.Second, epoch: 1}
	c, req := copiesFrom(t, s)
	ctx := testutil.Context(t)
	req.MaxAgeNs = uint64(time.Hour)
	for range 2 {
		reply, err := c.Pull(ctx, req)
		if err != nil || reply.AgeNs < uint64(s.age+s.takes) || reply.AppliedIndex > 7 {
			t.Fatalf("%v, %v, want an age of %v or more", reply, err, s.age+s.takes)
		}
	}
	if s.asked != 1 {
		t.Fatalf("the replica was asked %d times, want once", s.asked)
	}
	req.MaxAgeNs = uint64(s.age + s.takes/2)
	for _, lag := range []uint64{0, 9} { // with copies, and passed on
		req.MaxLag = lag
		if reply, err := c.Pull(ctx, req); rowraft.CodeOf(err) != rowraft.CodeTooStale {
			t.Errorf("with a bound of %v: %v, %v, want TooStale", time.Duration(req.MaxAgeNs), reply, err)
		}
	}
}

// TestReplyIsOfOneEpoch: copies of an older epoch are not mixed with rows of a newer one.
func TestReplyIsOfOneEpoch(t *testing.T) {
	s := &slowReplica{epoch: 3}
	c, req := copiesFrom(t, s)
	ctx := testutil.Context(t)
	c.rows.Put(5, 2, []rowraft.Key{0}, c.rows.Now(), []float32{1, 1}, 2)
	req.MaxAgeNs = uint64(time.Hour)
	ask := func() *rowraftv1.PullReply {
		t.Helper()
		reply, err := c.Pull(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	if r := ask(); r.TableEpoch != 2 || r.Fetched != 0 {
		t.Errorf("%v, want the copy of epoch 2", r)
	}
	req.TableEpoch = 3
	if r := ask(); r.TableEpoch != 3 || r.Fetched != 1 {
		t.Errorf("a read of epoch 3: %v, want the row of the replica", r)
	}
	req.TableEpoch = 0
	if r := ask(); r.TableEpoch != 3 || r.Fetched != 0 {
		t.Errorf("%v, want the copy of epoch 3", r)
	}
	// A restore between the check of the epoch by a replica and its read.
	c, req = copiesFrom(t, s)
	c.rows.Put(5, 2, []rowraft.Key{0}, c.rows.Now(), []float32{1, 1}, 2)
	req.MaxAgeNs = uint64(time.Hour)
	seg := wire.Segment{Table: 5, N: 2, Dim: 2, DType: rowraft.Float32, Flags: wire.FlagNoValues}
	req.Payload = make([]byte, seg.Size())
	binary.LittleEndian.PutUint64(seg.Put(req.Payload).Keys[8:], 1)
	r := ask()
	_, body, _, err := wire.ParseSegment(r.Payload)
	if err != nil {
		t.Fatal(err)
	}
	if rows := [4]float32{}; r.TableEpoch != 3 {
		t.Errorf("epoch %d, want that of the replica", r.TableEpoch)
	} else if wire.GetFloats(rows[:], rowraft.Float32, body.Values); rows != [4]float32{} {
		t.Errorf("a reply of epoch 3 has %v, with a copy of epoch 2", rows)
	}
}
