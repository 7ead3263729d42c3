package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// replicas is a cluster of three servers, with replicas of each shard. A test sets its answers.
type replicas struct {
	fakeServer
	answer func(ctx context.Context, server int, req *rowraftv1.PullRequest) error // nil: zeros, of age 1 s

	mu    sync.Mutex
	asked map[int]int
}

// replicaServer is one server of replicas.
type replicaServer struct {
	*fakeServer
	r *replicas
	i int
}

func (s *replicaServer) Pull(ctx context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	s.r.mu.Lock()
	s.r.asked[s.i]++
	s.r.mu.Unlock()
	if s.r.answer != nil {
		if err := s.r.answer(ctx, s.i, req); err != nil {
			return nil, err
		}
	}
	reply, err := zeros(req)
	if err == nil && req.Mode == rowraftv1.ReadMode_READ_MODE_BOUNDED {
		reply.AgeNs, reply.Lag = uint64(time.Second), 7
	}
	return reply, err
}

func (s *replicaServer) PullMany(stream rowraftv1.Table_PullManyServer) error {
	pulls := (&fakeServer{pull: s.Pull}).pulls()
	return pulls.Serve(countedRequests{stream, &s.fakeServer.shared})
}

// startReplicas returns replicas of so many shards, a client of them, and a segment with a key of each shard.
func startReplicas(t *testing.T, shards int,
	answer func(ctx context.Context, server int, req *rowraftv1.PullRequest) error) (*replicas, *Client, Segment) {
	t.Helper()
	r := &replicas{answer: answer, asked: map[int]int{}}
	m := clustermap.Map{
		Cluster: "c", Version: 1, SlotsVersion: 1, Epoch: 1,
		Tables: []rowraft.Schema{{
			ID: 9, Name: "t", Kind: rowraft.Sparse, Dim: 2,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
		}},
	}
	var endpoints []string
	var all []clustermap.Replica
	for i := range 3 {
		l := rpctest.Listen(t)
		id := rowraft.NodeID([]string{"a", "b", "c"}[i])
		m.Nodes = append(m.Nodes, clustermap.Node{ID: id, Addr: l.Addr().String(), Scheduler: true})
		all = append(all, clustermap.Replica{ID: rowraft.ReplicaID(id), Node: id})
		endpoints = append(endpoints, l.Addr().String())
		rpctest.Serve(t, l, func(server *grpc.Server) {
			rowraftv1.RegisterClusterServer(server, r)
			rowraftv1.RegisterTableServer(server, &replicaServer{&r.fakeServer, r, i})
		})
	}
	for i := range shards {
		m.Shards = append(m.Shards, clustermap.Shard{ID: rowraft.ShardID(i), Replicas: all})
	}
	var err error
	if r.m, err = clustermap.New(m, nil); err != nil {
		t.Fatal(err)
	}
	c, err := Dial(patience(t), Options{Endpoints: endpoints, AttemptTimeout: time.Minute}) // no second try
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	connect(t, c)
	table, err := c.Table(patience(t), "t")
	if err != nil {
		t.Fatal(err)
	}
	return r, c, Segment{Table: table, Keys: r.oneKeyPerShard(table), Values: make([]float32, 2*shards)}
}

func (r *replicas) counts() map[int]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.asked)
}

var tenSeconds = Read{Mode: Bounded, MaxAge: 10 * time.Second, MaxLag: 99}

// Bounded reads go to the replicas in turn. Requests carry the bound, and replies what was met.
func TestBoundedReadsAreSpread(t *testing.T) {
	var counts map[int]int
	for range 5 {
		if counts = spreadReads(t); min(counts[0], counts[1], counts[2]) >= 3 {
			return
		}
		t.Logf("of 30 reads the servers have got %v", counts) // on a busy machine, reads pass over a slow server
	}
	t.Errorf("of 30 reads the servers have got %v", counts)
}

// spreadReads counts how many of 30 bounded reads each server gets.
func spreadReads(t *testing.T) map[int]int {
	r, c, seg := startReplicas(t, 1, func(_ context.Context, _ int, req *rowraftv1.PullRequest) error {
		if req.Mode != rowraftv1.ReadMode_READ_MODE_BOUNDED || req.MaxAgeNs != 1e10 || req.MaxLag != 99 || req.MinIndex != 5 {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "asked for %v", req)
		}
		return nil
	})
	read := tenSeconds
	read.AtLeast = Position{Shards: map[rowraft.ShardID]rowraft.Index{0: 5}}
	for range 30 {
		met, err := c.PullWith(patience(t), read, seg)
		if err != nil || met != (Freshness{time.Second, 7}) {
			t.Fatalf("met %+v, %v", met, err)
		}
	}
	return r.counts()
}

// A bounded read passes over a replica that is too old or broken, and later reads ask it last.
func TestBoundedReadsFallBack(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
	}{
		{"too old", &rowraft.TooStaleError{Age: 11 * time.Second, MaxAge: 10 * time.Second}},
		{"gone", rowraft.Errorf(rowraft.CodeClosing, "the server is stopping")},
		{"not a replica any more", &rowraft.NotLeaderError{}},
		{"fenced", rowraft.Errorf(rowraft.CodeFenced, "differs")},
	} {
		for _, shards := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/shards=%d", tc.name, shards), func(t *testing.T) { testFallBack(t, shards, tc.err) })
		}
	}
}

func testFallBack(t *testing.T, shards int, refusal error) {
	r, c, seg := startReplicas(t, shards, func(_ context.Context, server int, _ *rowraftv1.PullRequest) error {
		if server != 1 {
			return refusal
		}
		return nil
	})
	c.spread.SetSaved(-1e6) // no hedges: a hedge would shun server 1 when it is slow
	begin := time.Now()
	for range 30 {
		if _, err := c.PullWith(patience(t), tenSeconds, seg); err != nil {
			t.Fatal(err)
		}
	}
	rounds := int(time.Since(begin) / route.ShunFor) // after each one, the shunned replicas are asked again
	if n := r.counts(); n[1] != 30*shards || max(n[0], n[2]) > shards*(1+rounds) {
		t.Errorf("30 reads of %d shards asked the servers %v times; only 1 can answer, want it %d times, and the others %d "+
			"at most", shards, n, 30*shards, shards*(1+rounds))
	}
	if shards > 1 && r.shared.Load() < 30 {
		t.Errorf("%d shared calls, want one for each read", r.shared.Load())
	}
}

// A silent replica delays a read by little more than hedgeAfter, also if it is silent for one shard of a call.
func TestBoundedReadsDoNotWaitForASilentReplica(t *testing.T) {
	for _, shards := range []int{1, 3} {
		t.Run(fmt.Sprintf("shards=%d", shards), func(t *testing.T) { testSilentReplica(t, shards) })
	}
}

func testSilentReplica(t *testing.T, shards int) {
	ended := make(chan struct{}, 1)
	r, c, seg := startReplicas(t, shards, func(ctx context.Context, server int, req *rowraftv1.PullRequest) error {
		if server == 0 && int(req.Shard) == shards-1 {
			<-ctx.Done()
			ended <- struct{}{}
			return ctx.Err()
		}
		return nil
	})
	c.spread.SetSaved(10)
	for range 9 {
		if _, err := c.PullWith(patience(t), tenSeconds, seg); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.counts(); n[0] == 0 || n[1] == 0 || n[2] == 0 {
		t.Errorf("the servers were asked %v times", n)
	}
	<-ended // the server is told that no read waits for it
}

// After every replica has answered, the error says which bound could be met, without a further wait.
func TestABoundThatNobodyMeetsIsAnError(t *testing.T) {
	ages := []time.Duration{30 * time.Second, 12 * time.Second, 0}
	r, c, seg := startReplicas(t, 1, func(_ context.Context, server int, _ *rowraftv1.PullRequest) error {
		if server == 2 {
			return rowraft.Errorf(rowraft.CodeStarting, "the server has no cluster map with shards yet")
		}
		return &rowraft.TooStaleError{Age: ages[server], MaxAge: 10 * time.Second, Applied: 40, Lag: 3}
	})
	ctx := patience(t)
	_, err := c.PullWith(ctx, tenSeconds, seg)
	stale, ok := errors.AsType[*rowraft.TooStaleError](err)
	if !ok || stale.Age != 12*time.Second || stale.MaxAge != 10*time.Second || stale.Lag != 3 || ctx.Err() != nil {
		t.Fatalf("%v (%+v), want a TooStaleError with the age of the newest replica", err, stale)
	}
	if n := r.counts(); n[0] != 1 || n[1] != 1 || n[2] != 1 {
		t.Errorf("the servers were asked %v times, want once each", n)
	}
}

// An error that every replica would return ends a read.
func TestABadBoundedReadEnds(t *testing.T) {
	r, c, seg := startReplicas(t, 1, func(context.Context, int, *rowraftv1.PullRequest) error {
		return rowraft.Errorf(rowraft.CodeSessionExpired, "the tables are of another epoch")
	})
	if _, err := c.PullWith(patience(t), tenSeconds, seg); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		t.Errorf("%v, want CodeSessionExpired", err)
	}
	if n := r.counts(); n[0]+n[1]+n[2] != 1 {
		t.Errorf("the servers were asked %v times, want once in all", n)
	}
}

func TestReadsThatMakeNoSense(t *testing.T) {
	_, c, seg := startReplicas(t, 1, nil)
	for _, read := range []Read{{Mode: Bounded}, {Mode: Bounded, MaxAge: -1}, {MaxAge: 1}, {Mode: Linearizable, MaxLag: 1},
		{Mode: 9}} {
		if _, err := c.PullWith(patience(t), read, seg); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%+v: %v, want CodeInvalidArgument", read, err)
		}
	}
}

func TestPositionsJoin(t *testing.T) {
	pos := func(epoch rowraft.TableEpoch, at ...rowraft.Index) Position {
		p := Position{Epoch: epoch, Shards: map[rowraft.ShardID]rowraft.Index{}}
		for i, x := range at {
			if x > 0 {
				p.Shards[rowraft.ShardID(i)] = x
			}
		}
		return p
	}
	for _, tc := range []struct{ a, b, want Position }{
		{pos(1, 5, 7), pos(1, 6, 0, 2), pos(1, 6, 7, 2)},
		{pos(1, 50), pos(2, 1), pos(2, 1)},
		{Position{}, pos(0, 3), pos(0, 3)},
	} {
		for _, got := range []Position{tc.a.Join(tc.b), tc.b.Join(tc.a)} {
			if got.Epoch != tc.want.Epoch || !maps.Equal(got.Shards, tc.want.Shards) {
				t.Errorf("%v with %v is %v, want %v", tc.a, tc.b, got, tc.want)
			}
		}
	}
}

// A position from before a restore names rows that no replica has any more, whatever the client has pushed
// since. The index alone would not show that: the shard has reached it.
func TestPositionsOfBeforeARestoreAreRefused(t *testing.T) {
	_, c, seg := startReplicas(t, 1, func(context.Context, int, *rowraftv1.PullRequest) error { return nil })
	c.sessions.epoch.Store(3)
	at := map[rowraft.ShardID]rowraft.Index{0: 5}
	for _, mode := range []Read{{}, {Mode: Linearizable}, {Mode: Bounded, MaxAge: time.Second}} {
		for _, tc := range []struct {
			at   Position
			want bool
		}{
			{Position{Epoch: 2, Shards: at}, false},
			{Position{Epoch: 2}, true}, // nothing
			{Position{Shards: at}, true},
			{Position{Epoch: 3, Shards: at}, true},
		} {
			mode.AtLeast = tc.at
			_, err := c.PullWith(patience(t), mode, seg)
			if (err == nil) != tc.want || err != nil && rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
				t.Errorf("mode %d at %+v: %v, want it answered: %v", mode.Mode, tc.at, err, tc.want)
			}
		}
	}
}
