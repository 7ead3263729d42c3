package client

import (
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// modeServer is a cluster of one server and one table that records the modes of the requests.
type modeServer struct {
	rowraftv1.UnimplementedClusterServer
	rowraftv1.UnimplementedTableServer
	m *clustermap.Map

	mu    sync.Mutex
	modes []rowraftv1.ReadMode
}

func (s *modeServer) GetMap(ctx context.Context, req *rowraftv1.GetMapRequest) (*rowraftv1.GetMapReply, error) {
	if req.KnownVersion >= uint64(s.m.Version) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &rowraftv1.GetMapReply{Map: rpc.MapToProto(s.m)}, nil
}

func (s *modeServer) Pull(_ context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	s.mu.Lock()
	s.modes = append(s.modes, req.Mode)
	s.mu.Unlock()
	return zeros(req)
}

func TestReadModes(t *testing.T) {
	l := rpctest.Listen(t)
	schema := rowraft.Schema{
		ID: 9, Name: "t", Kind: rowraft.Sparse, Dim: 2,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}
	m, err := clustermap.New(clustermap.Map{
		Cluster: "c", Version: 1, SlotsVersion: 1, Epoch: 1, Tables: []rowraft.Schema{schema},
		Nodes:  []clustermap.Node{{ID: "n", Addr: l.Addr().String(), Scheduler: true}},
		Shards: []clustermap.Shard{{ID: 0, Replicas: []clustermap.Replica{{ID: "r", Node: "n"}}}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &modeServer{m: m}
	rpctest.Serve(t, l, func(server *grpc.Server) {
		rowraftv1.RegisterClusterServer(server, s)
		rowraftv1.RegisterTableServer(server, s)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, err := Dial(ctx, Options{Endpoints: []string{l.Addr().String()}, AttemptTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	table, err := c.Table(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	seg := Segment{
		Table: table, Keys: []rowraft.Key{1}, Values: make([]float32, 2),
		Applied: map[rowraft.ShardID]rowraft.Index{0: 9, 3: 9},
	}
	if err := c.Pull(ctx, seg); err != nil {
		t.Fatal(err)
	}
	if len(seg.Applied) != 1 || seg.Applied[0] != 1 {
		t.Errorf("Applied = %v after a reply of shard 0 at index 1", seg.Applied)
	}
	if err := c.PullLinearizable(ctx, seg); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	want := []rowraftv1.ReadMode{rowraftv1.ReadMode_READ_MODE_LEADER, rowraftv1.ReadMode_READ_MODE_LINEARIZABLE}
	if len(s.modes) != 2 || s.modes[0] != want[0] || s.modes[1] != want[1] {
		t.Errorf("Pull and PullLinearizable ask in modes %v, want %v", s.modes, want)
	}
}

// A shard refuses a slot and names no newer map. A retry cannot help: it would continue until the caller's
// context ends.
func TestAWrongShardThatNoMapExplainsIsAnError(t *testing.T) {
	s := fakeServer{pull: func(context.Context, *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
		return nil, rowraft.Errorf(rowraft.CodeWrongShard, "slot 7 is not held here")
	}}
	s.serve(t, 1)
	_, table := s.dial(t, nil)
	ctx := patience(t)
	err := table.Pull(ctx, []rowraft.Key{1}, make([]float32, 2))
	if rowraft.CodeOf(err) != rowraft.CodeWrongShard || ctx.Err() != nil {
		t.Errorf("%v (context: %v), want CodeWrongShard at once", err, ctx.Err())
	}
}
