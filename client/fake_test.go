package client

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// fakeServer is a cluster of one server with one table of dim 2. A test sets the functions that reply to
// calls; a nil function succeeds.
type fakeServer struct {
	rowraftv1.UnimplementedClusterServer
	rowraftv1.UnimplementedTableServer
	m    *clustermap.Map
	news func() *clustermap.Map // returns the current map; nil: m

	issued atomic.Uint64         // incarnations
	shared atomic.Int64          // requests that may have several batches
	table  rowraftv1.TableServer // serves in place of the fakeServer; nil: none
	close  func(context.Context, *rowraftv1.CloseSessionRequest) error
	open   func(context.Context, *rowraftv1.OpenSessionRequest) error
	push   func(context.Context, *rowraftv1.WriteRequest) error
	step   func(context.Context, *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply, error)
	clock  func(*rowraftv1.WaitClockRequest) (*rowraftv1.WaitClockReply, error)
	pull   func(context.Context, *rowraftv1.PullRequest) (*rowraftv1.PullReply, error)
	remove func(context.Context, *rowraftv1.WriteRequest) error
	scan   func(*rowraftv1.ScanRequest, grpc.ServerStreamingServer[rowraftv1.ScanReply]) error
	create func(*rowraftv1.CreateTableRequest) (*rowraftv1.CreateTableReply, error)
	jobs   rowraftv1.JobsServer // nil: none
}

func (s *fakeServer) GetMap(ctx context.Context, req *rowraftv1.GetMapRequest) (*rowraftv1.GetMapReply, error) {
	m := s.m
	if s.news != nil {
		m = s.news()
	}
	if req.WaitNs > 0 && req.KnownVersion >= uint64(m.Version) && req.ClusterId == string(m.Cluster) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &rowraftv1.GetMapReply{Map: rpc.MapToProto(m)}, nil
}

func (s *fakeServer) IssueIncarnation(context.Context,
	*rowraftv1.IssueIncarnationRequest) (*rowraftv1.IssueIncarnationReply, error) {
	return &rowraftv1.IssueIncarnationReply{Incarnation: s.issued.Add(1)}, nil
}

func (s *fakeServer) OpenSession(ctx context.Context,
	req *rowraftv1.OpenSessionRequest) (*rowraftv1.OpenSessionReply, error) {
	if req.Ticket == 0 {
		return &rowraftv1.OpenSessionReply{AppliedIndex: 1, Ticket: 1}, nil
	}
	if s.open != nil {
		if err := s.open(ctx, req); err != nil {
			return nil, err
		}
	}
	return &rowraftv1.OpenSessionReply{AppliedIndex: 1}, nil
}

func (s *fakeServer) CloseSession(ctx context.Context,
	req *rowraftv1.CloseSessionRequest) (*rowraftv1.CloseSessionReply, error) {
	if s.close != nil {
		return &rowraftv1.CloseSessionReply{}, s.close(ctx, req)
	}
	return &rowraftv1.CloseSessionReply{}, nil
}

func (s *fakeServer) Write(ctx context.Context, req *rowraftv1.WriteRequest) (*rowraftv1.WriteReply, error) {
	do := s.push
	if req.Op == rowraftv1.WriteOp_WRITE_OP_DELETE {
		do = s.remove
	}
	if do != nil {
		if err := do(ctx, req); err != nil {
			return nil, err
		}
	}
	return &rowraftv1.WriteReply{AppliedIndex: 1}, nil
}

func (s *fakeServer) WriteMany(req *rowraftv1.WriteManyRequest,
	stream grpc.ServerStreamingServer[rowraftv1.WriteReply]) error {
	s.shared.Add(1)
	return rpc.WriteMany(rpc.NewWorkers(), req, stream, s.Write)
}

func (s *fakeServer) PullMany(stream rowraftv1.Table_PullManyServer) error {
	return s.pulls().Serve(countedRequests{stream, &s.shared})
}

// pulls answers streams as Pull answers single pulls.
func (s *fakeServer) pulls() *rpc.Pulls {
	return &rpc.Pulls{Workers: rpc.NewWorkers(), Stopping: context.Background(),
		Check: func(context.Context) error { return nil },
		Ready: func(*rowraftv1.PullRequest) bool { return false },
		Pull: func(ctx context.Context, q *rowraftv1.PullRequest) (c rpc.Counted, err error) {
			c.Reply, err = s.Pull(ctx, q)
			return c, err
		}}
}

// countedRequests counts the requests of a stream.
type countedRequests struct {
	rowraftv1.Table_PullManyServer
	n *atomic.Int64
}

func (s countedRequests) Recv() (*rowraftv1.PullManyRequest, error) {
	req, err := s.Table_PullManyServer.Recv()
	if err == nil {
		s.n.Add(1)
	}
	return req, err
}

func (s *fakeServer) PushStep(ctx context.Context, req *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply, error) {
	return s.step(ctx, req)
}

func (s *fakeServer) PushStepMany(req *rowraftv1.PushStepManyRequest,
	stream grpc.ServerStreamingServer[rowraftv1.PushStepReply]) error {
	s.shared.Add(1)
	return rpc.PushStepMany(rpc.NewWorkers(), req, stream, s.step)
}

func (s *fakeServer) WaitClock(_ context.Context, req *rowraftv1.WaitClockRequest) (*rowraftv1.WaitClockReply, error) {
	return s.clock(req)
}

func (s *fakeServer) Pull(ctx context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	return s.pull(ctx, req)
}

func (s *fakeServer) Scan(req *rowraftv1.ScanRequest, stream grpc.ServerStreamingServer[rowraftv1.ScanReply]) error {
	return s.scan(req, stream)
}

func (s *fakeServer) CreateTable(_ context.Context,
	req *rowraftv1.CreateTableRequest) (*rowraftv1.CreateTableReply, error) {
	return s.create(req)
}

// zeros replies to a pull of one segment.
func zeros(req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	seg, _, _, err := wire.ParseSegment(req.Payload)
	if err != nil {
		return nil, err
	}
	seg.Flags = wire.FlagNoKeys
	payload := make([]byte, seg.Size())
	seg.Put(payload)
	return &rowraftv1.PullReply{AppliedIndex: 1, Payload: payload}, nil
}

// serve runs s as a cluster of the given number of shards until the test ends.
func (s *fakeServer) serve(t *testing.T, shards int) {
	t.Helper()
	l := rpctest.Listen(t)
	m := clustermap.Map{
		Cluster: "c", Version: 1, SlotsVersion: 1, Epoch: 1,
		Tables: []rowraft.Schema{{
			ID: 9, Name: "t", Kind: rowraft.Sparse, Dim: 2,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
		}},
		Nodes: []clustermap.Node{{ID: "n", Addr: l.Addr().String(), Scheduler: true}},
	}
	for i := range shards {
		m.Shards = append(m.Shards, clustermap.Shard{ID: rowraft.ShardID(i),
			Replicas: []clustermap.Replica{{ID: "r", Node: "n"}}})
	}
	var err error
	if s.m, err = clustermap.New(m, nil); err != nil {
		t.Fatal(err)
	}
	rpctest.Serve(t, l, func(server *grpc.Server) {
		rowraftv1.RegisterClusterServer(server, s)
		if s.table == nil {
			s.table = s
		}
		rowraftv1.RegisterTableServer(server, s.table)
		if s.jobs != nil {
			rowraftv1.RegisterJobsServer(server, s.jobs)
		}
	})
}

// dial connects a client to s; change, if not nil, changes its options.
func (s *fakeServer) dial(t *testing.T, change func(*Options)) (*Client, *Table) {
	t.Helper()
	opts := Options{Endpoints: []string{s.m.Nodes[0].Addr}, AttemptTimeout: time.Minute} // no second try
	if change != nil {
		change(&opts)
	}
	c, err := Dial(patience(t), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	connect(t, c)
	table, err := c.Table(patience(t), "t")
	if err != nil {
		t.Fatal(err)
	}
	return c, table
}

// connect makes all connections of c. Without it, on a busy machine, a try may end while it waits for its
// connection, and the client cannot know that the try sent nothing.
func connect(t *testing.T, c *Client) {
	t.Helper()
	ctx := patience(t)
	for _, n := range c.Map().Nodes {
		if _, err := c.conns.Get(n.Addr); err != nil {
			t.Fatal(err)
		}
		for _, conn := range c.conns.All(n.Addr) {
			for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
				conn.Connect()
				if !conn.WaitForStateChange(ctx, state) {
					t.Fatalf("no connection to %s", n.Addr)
				}
			}
		}
	}
}

// keyOf returns a key of the shard.
func (s *fakeServer) keyOf(table *Table, shard rowraft.ShardID) rowraft.Key {
	for k := rowraft.Key(1); ; k++ {
		if s.m.ShardOf(table.Slot(k)) == shard {
			return k
		}
	}
}

// patience is how long a call may take before the test fails.
func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
