package client

import (
	"context"
	"fmt"
	"log/slog"
	"net"
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

// hintServer is a replica that names a leader of all shards. A silent one accepts pulls and never answers those of
// the last shard, as if that shard had no quorum.
type hintServer struct {
	rowraftv1.UnimplementedClusterServer
	rowraftv1.UnimplementedTableServer
	m      *clustermap.Map
	leader rowraft.NodeID
	term   uint64
	silent bool
	asked  func()        // called for every pull
	knows  chan struct{} // not nil: the server knows no leader before this is closed
	told   func()        // not nil: called for every request for the map
}

func (s *hintServer) GetMap(ctx context.Context, req *rowraftv1.GetMapRequest) (*rowraftv1.GetMapReply, error) {
	if req.WaitNs > 0 && req.KnownVersion >= uint64(s.m.Version) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if s.told != nil {
		s.told()
	}
	reply := &rowraftv1.GetMapReply{Map: rpc.MapToProto(s.m)}
	if s.knows != nil {
		select {
		case <-s.knows:
		default:
			return reply, nil
		}
	}
	for i := range s.m.Shards {
		reply.Leaders = append(reply.Leaders, &rowraftv1.LeaderHint{Shard: uint32(i), Node: string(s.leader), Term: s.term})
	}
	return reply, nil
}

func (s *hintServer) Pull(ctx context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	s.asked()
	if s.silent && int(req.Shard) == len(s.m.Shards)-1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return zeros(req)
}

func (s *hintServer) PullMany(stream rowraftv1.Table_PullManyServer) error {
	return (&fakeServer{pull: s.Pull}).PullMany(stream)
}

// hintServers serves the given servers, nodes "old" and "new" of so many shards, and dials "old". The segment has a
// key of each shard.
func hintServers(t *testing.T, ctx context.Context, shards int, log *slog.Logger,
	servers ...*hintServer) (*Client, Segment) {
	t.Helper()
	schema := rowraft.Schema{
		ID: 9, Name: "t", Kind: rowraft.Sparse, Dim: 2,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}
	listeners := []net.Listener{rpctest.Listen(t), rpctest.Listen(t)}
	both := []clustermap.Replica{{ID: "r0", Node: "old"}, {ID: "r1", Node: "new"}}
	all := make([]clustermap.Shard, shards)
	for i := range all {
		all[i] = clustermap.Shard{ID: rowraft.ShardID(i), Replicas: both}
	}
	m, err := clustermap.New(clustermap.Map{
		Cluster: "c", Version: 1, SlotsVersion: 1, Epoch: 1, Tables: []rowraft.Schema{schema},
		Nodes: []clustermap.Node{
			{ID: "old", Name: "old", Addr: listeners[0].Addr().String(), Scheduler: true},
			{ID: "new", Name: "new", Addr: listeners[1].Addr().String()},
		},
		Shards: all,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range servers {
		s.m = m
		rpctest.Serve(t, listeners[i], func(server *grpc.Server) {
			rowraftv1.RegisterClusterServer(server, s)
			rowraftv1.RegisterTableServer(server, s)
		})
	}
	c, err := Dial(ctx, Options{Endpoints: []string{listeners[0].Addr().String()}, AttemptTimeout: time.Hour, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	table, err := c.Table(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	return c, Segment{Table: table, Keys: (&fakeServer{m: m}).oneKeyPerShard(table), Values: make([]float32, 2*shards)}
}

// A try may last an hour here, so only a hint of the new leader can end it. With three shards it is that of a call
// that has answered the others.
func TestASilentLeaderIsLeftForTheNextOne(t *testing.T) {
	for _, shards := range []int{1, 3} {
		t.Run(fmt.Sprintf("shards=%d", shards), func(t *testing.T) { testSilentLeader(t, shards) })
	}
}

func testSilentLeader(t *testing.T, shards int) {
	asked := make(chan struct{})
	old := &hintServer{leader: "old", term: 1, silent: true, asked: sync.OnceFunc(func() { close(asked) })}
	next := &hintServer{leader: "new", term: 2, asked: func() {}, knows: asked} // or it might never ask "old"
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c, segment := hintServers(t, ctx, shards, nil, old, next)
	if err := c.Pull(ctx, segment); err != nil {
		t.Fatal(err)
	}
	select {
	case <-asked:
	default:
		t.Error("the first leader was never asked: the test shows nothing")
	}
}

// slowLog is a log handler that takes 100 ms for a line.
type slowLog struct{ slog.Handler }

func (slowLog) Enabled(context.Context, slog.Level) bool { return true }

func (slowLog) Handle(context.Context, slog.Record) error {
	time.Sleep(100 * time.Millisecond) //tidy:allow sleep the goroutine that logs outlives its caller
	return nil
}

// Close ends a try that may last an hour. The goroutines that look for another leader have ended when Close
// returns.
func TestCloseEndsASilentTry(t *testing.T) {
	for _, shards := range []int{1, 3} {
		t.Run(fmt.Sprintf("shards=%d", shards), func(t *testing.T) { testCloseEndsASilentTry(t, shards) })
	}
}

func testCloseEndsASilentTry(t *testing.T, shards int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	old := &hintServer{leader: "old", term: 1, silent: true, asked: func() {}}
	next := &hintServer{leader: "old", term: 1, asked: func() {}, told: func() { <-ctx.Done() }}
	c, segment := hintServers(t, ctx, shards, slog.New(slowLog{slog.DiscardHandler}), old, next)
	asking := &c.router.leaders.at(rowraft.ShardID(shards - 1)).asking
	pulled := make(chan error, 1)
	go func() { pulled <- c.Pull(ctx, segment) }()
	for !asking.Load() {
		if ctx.Err() != nil {
			t.Fatal("no goroutine looks for another leader")
		}
		time.Sleep(time.Millisecond) //tidy:allow sleep polls
	}
	c.Close()
	if ctx.Err() != nil {
		t.Error("Close waited for the try")
	}
	if asking.Load() {
		t.Error("Close returned, and a goroutine looks for another leader")
	}
	if err := <-pulled; rowraft.CodeOf(err) != rowraft.CodeClosing {
		t.Errorf("the pull ended with %v, want CodeClosing", err)
	}
}

// The client asks a named leader again if it was not ready, but not while it does not answer.
func TestTriesFollowTheLeaderThatOthersName(t *testing.T) {
	m, err := clustermap.New(clustermap.Map{
		Cluster: "c", Version: 1, SlotsVersion: 1, Epoch: 1,
		Nodes: []clustermap.Node{{ID: "a", Addr: "a:1", Scheduler: true}, {ID: "b", Addr: "b:1"}, {ID: "c", Addr: "c:1"}},
		Shards: []clustermap.Shard{{ID: 0, Replicas: []clustermap.Replica{{ID: "ra", Node: "a"}, {ID: "rb", Node: "b"},
			{ID: "rc", Node: "c"}}}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	unnamed := &rowraft.NotLeaderError{}
	named := &rowraft.NotLeaderError{Leader: "c", Term: 2}
	gone := rowraft.Errorf(rowraft.CodeUnknown, "connection refused")
	for _, tc := range []struct {
		name    string
		before  func(*router)
		answers []error // the errors of the tries in order; then the call succeeds
		want    string
	}{
		{"a new leader at once", nil, []error{unnamed, named}, "abc"},
		{"a leader that is not ready", nil, []error{unnamed, named, rowraft.Errorf(rowraft.CodeStarting, "not yet"), named},
			"abcac"},
		{"a leader that is gone", nil, []error{unnamed, named, gone, named, named}, "abcaab"},
		{"a leader that is back", nil, []error{unnamed, named, gone, named, named, named, unnamed, named}, "abcaabcac"},
		// The client's process was suspended: it learns of the new leader first, and then reads an answer
		// that the old leader gave before.
		{"a leader that was taken for the next one", func(r *router) { r.learnLeader(0, "c", 2); r.noteLeader(0, "a") },
			[]error{gone, named}, "abc"},
		{"a replica that does not know of the last leader", func(r *router) { r.learnLeader(0, "a", 3) },
			[]error{gone, named}, "abc"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newClient(Options{Logger: slog.New(slog.DiscardHandler)}, nil)
			defer c.Close()
			c.cluster.Store(m)
			c.router.learnLeader(0, "a", 1)
			if tc.before != nil {
				tc.before(c.router)
			}
			var asked string
			maybe, err := c.router.onLeader(patience(t), m.Cluster, 0, callKind{}, func(at server) error {
				asked += string(at.node)
				if len(asked) <= len(tc.answers) {
					return tc.answers[len(asked)-1]
				}
				return nil
			})
			if err != nil || maybe || asked != tc.want {
				t.Errorf("asked %s, want %s (%v)", asked, tc.want, err)
			}
		})
	}
}
