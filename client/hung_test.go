package client

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// pipes is a network in memory: virtual time advances while its ends wait.
type pipes map[string]*pipeListener

type pipeListener struct {
	addr   string
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p pipes) listen(addr string) *pipeListener {
	p[addr] = &pipeListener{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
	return p[addr]
}

func (p pipes) dial(ctx context.Context, addr string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p[addr].conns <- there:
		return here, nil
	case <-p[addr].closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: l.addr, Net: "unix"} }

// leadServer is one of two servers of a shard whose leader changes from "old" to "new" while "old" hangs.
type leadServer struct {
	rowraftv1.UnimplementedClusterServer
	rowraftv1.UnimplementedTableServer
	m       *clustermap.Map
	id      string
	hung    atomic.Bool // accepts calls and answers none
	elected *atomic.Bool

	pushed, forwarded atomic.Int64
}

func (s *leadServer) GetMap(ctx context.Context, req *rowraftv1.GetMapRequest) (*rowraftv1.GetMapReply, error) {
	if s.hung.Load() || req.WaitNs > 0 && req.KnownVersion >= uint64(s.m.Version) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	hint := &rowraftv1.LeaderHint{Node: "old", Term: 1}
	if s.elected.Load() {
		hint = &rowraftv1.LeaderHint{Node: "new", Term: 2}
	}
	return &rowraftv1.GetMapReply{Map: rpc.MapToProto(s.m), Leaders: []*rowraftv1.LeaderHint{hint}}, nil
}

func (s *leadServer) IssueIncarnation(context.Context,
	*rowraftv1.IssueIncarnationRequest) (*rowraftv1.IssueIncarnationReply, error) {
	return &rowraftv1.IssueIncarnationReply{Incarnation: 1}, nil
}

func (s *leadServer) OpenSession(context.Context, *rowraftv1.OpenSessionRequest) (*rowraftv1.OpenSessionReply, error) {
	return &rowraftv1.OpenSessionReply{AppliedIndex: 1}, nil
}

func (s *leadServer) Write(ctx context.Context, _ *rowraftv1.WriteRequest) (*rowraftv1.WriteReply, error) {
	if s.hung.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	forward := len(metadata.ValueFromIncomingContext(ctx, "rowraft-forward")) > 0
	if forward {
		s.forwarded.Add(1)
	}
	if leads := s.elected.Load() == (s.id == "new"); !leads && !forward {
		return nil, &rowraft.NotLeaderError{Leader: "old", Term: 1}
	}
	s.pushed.Add(1)
	time.Sleep(time.Millisecond)
	return &rowraftv1.WriteReply{AppliedIndex: 1}, nil
}

// leadServers serves a table of one shard that "old" leads until elected is true, and dials "old".
func leadServers(t *testing.T, ctx context.Context) (table *Table, old *leadServer, elected *atomic.Bool) {
	t.Helper()
	m, err := clustermap.New(clustermap.Map{
		Cluster: "c", Version: 1, SlotsVersion: 1, Epoch: 1,
		Tables: []rowraft.Schema{{
			ID: 9, Name: "t", Kind: rowraft.Sparse, Dim: 2,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
		}},
		Nodes: []clustermap.Node{{ID: "old", Name: "old", Addr: "old:1", Scheduler: true},
			{ID: "new", Name: "new", Addr: "new:1"}},
		Shards: []clustermap.Shard{{ID: 0, Replicas: []clustermap.Replica{{ID: "r0", Node: "old"}, {ID: "r1", Node: "new"}}}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	elected = new(atomic.Bool)
	network := pipes{}
	old = &leadServer{m: m, id: "old", elected: elected}
	for _, s := range []*leadServer{old, {m: m, id: "new", elected: elected}} {
		rpctest.Serve(t, network.listen(s.id+":1"), func(server *grpc.Server) {
			rowraftv1.RegisterClusterServer(server, s)
			rowraftv1.RegisterTableServer(server, s)
		})
	}
	c, err := Dial(ctx, Options{Endpoints: []string{"old:1"}, Dial: network.dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if table, err = c.Table(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Push(ctx, []rowraft.Key{1}, []float32{1, 1}); err != nil {
		t.Fatal(err)
	}
	return table, old, elected
}

// A leader hangs with many pushes in flight; some are sent long after it began to hang. The other replicas
// elect a new leader half a second later, and no push waits for longer than 0.7 s.
func TestPushesInFlightAtAHungLeaderMoveTogether(t *testing.T) {
	const (
		writers  = 32
		election = 500 * time.Millisecond
		bar      = 700 * time.Millisecond
	)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		table, old, elected := leadServers(t, ctx)
		const hangs = 500 * time.Millisecond
		time.AfterFunc(hangs, func() { old.hung.Store(true) })
		time.AfterFunc(hangs+election, func() { elected.Store(true) })
		end := time.Now().Add(hangs + election + time.Second)
		took := make([][]time.Duration, writers)
		var pushing sync.WaitGroup
		for i := range took {
			pushing.Go(func() {
				// Half of the goroutines push without a pause, the others pause: so pushes meet the hung
				// leader at any time.
				for time.Sleep(time.Duration(i) * 7 * time.Millisecond); time.Now().Before(end); time.Sleep(
					time.Duration(i/2) * 40 * time.Millisecond) {
					begin := time.Now()
					if _, err := table.Push(ctx, []rowraft.Key{rowraft.Key(i)}, []float32{1, 1}); err != nil {
						t.Error(err)
						return
					}
					took[i] = append(took[i], time.Since(begin))
				}
			})
		}
		pushing.Wait()
		longest := make([]time.Duration, 0, writers)
		for i := range took {
			longest = append(longest, slices.Max(took[i]))
		}
		slices.Sort(longest)
		t.Logf("the longest waits of %d writers: %v", writers, longest)
		if longest[writers/2] < election/2 {
			t.Errorf("half of the writers waited %v at most: the test shows nothing", longest[writers/2])
		}
		if longest[writers-1] > bar {
			t.Errorf("a push waited %v, want at most %v", longest[writers-1], bar)
		}
	})
}

// Only the network between the client and the leader is cut. A follower that names the leader forwards, the
// leader stays the same, and calls return to the leader when it answers again.
func TestAFollowerForwardsToALeaderThatCannotBeReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		table, old, _ := leadServers(t, ctx)
		const cutAt, healAt, end = time.Second, 20 * time.Second, 25 * time.Second
		start := time.Now()
		time.AfterFunc(cutAt, func() { old.hung.Store(true) })
		time.AfterFunc(healAt, func() { old.hung.Store(false); old.pushed.Store(0) })
		var pushing sync.WaitGroup
		var mu sync.Mutex
		var longest time.Duration
		slow := 0
		const writers = 16
		for i := range writers {
			pushing.Go(func() {
				for time.Sleep(time.Duration(i) * 7 * time.Millisecond); time.Since(start) < end; time.Sleep(
					100 * time.Millisecond) {
					begin := time.Now()
					if _, err := table.Push(ctx, []rowraft.Key{rowraft.Key(i)}, []float32{1, 1}); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					took := time.Since(begin)
					if longest = max(longest, took); took > 100*time.Millisecond {
						slow++
					}
					mu.Unlock()
				}
			})
		}
		pushing.Wait()
		t.Logf("a cut of %v: the longest wait %v, %d pushes waited", healAt-cutAt, longest, slow)
		if longest < 500*time.Millisecond || longest > 1500*time.Millisecond || slow > 2*writers {
			t.Errorf("a cut of %v: the longest wait is %v, and %d pushes waited; want at most 1.5s, once a writer", healAt-cutAt,
				longest, slow)
		}
		if old.pushed.Load() == 0 {
			t.Error("after the cut the leader was not asked directly")
		}
	})
}
