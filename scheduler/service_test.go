package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/scheduler/diagnosis"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
	"github.com/rowraft/rowraft/wire"
)

// fakeLog applies to one machine what is proposed, while it leads.
type fakeLog struct {
	mu     sync.Mutex
	m      *meta.Machine
	index  rowraft.Index
	leader rowraft.NodeID
	self   rowraft.NodeID
	term   rowraft.Term
	behind bool // the machine lacks what earlier terms logged

	members []raftstore.MemberStatus // nil: this server alone (seats_test.go)
	changes []string                 // of members
}

func (l *fakeLog) Propose(_ context.Context, entry []byte) (any, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leader != l.self {
		return nil, &rowraft.NotLeaderError{Leader: l.leader, Term: l.term}
	}
	l.index++
	return l.m.Apply(l.index, entry), nil
}

func (l *fakeLog) Leader() (rowraft.NodeID, rowraft.Term, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leader, l.term, l.leader == l.self
}

func (l *fakeLog) Barrier(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.behind {
		return rowraft.Errorf(rowraft.CodeNoLeader, "behind")
	}
	return nil
}

func (l *fakeLog) elect(node rowraft.NodeID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leader = node
	l.term++
}

// newLeader is a scheduler that leads a cluster of one founder.
func newLeader(t *testing.T, servers, shards int) (*Scheduler, *fakeLog) {
	t.Helper()
	dir, err := identity.Open(vfs.OS, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	s, err := New(Options{Identity: dir, Self: clustermap.Node{Addr: "self:1", PeerAddr: "self:2", Scheduler: true},
		Servers: servers, Shards: shards, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.soft.clock, s.tables.callTimeout = stillClock(), time.Minute // or a call that takes long is made again
	if _, err := s.Form(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := &fakeLog{m: s.machine, self: s.opts.Self.ID, leader: s.opts.Self.ID, term: 1}
	s.Attach(l)
	return s, l
}

// stillClock is a clock that advances only when it is read, by a nanosecond: no server is silent,
// however slow the machine is.
func stillClock() func() time.Time {
	start := time.Now()
	var reads atomic.Int64
	return func() time.Time { return start.Add(time.Duration(reads.Add(1))) }
}

func (s *Scheduler) clusterID() string { return string(s.opts.Identity.Identity().Cluster) }

func register(t *testing.T, s *Scheduler, id, addr string) {
	t.Helper()
	_, err := s.RegisterNode(t.Context(), &rowraftv1.RegisterNodeRequest{
		ClusterId: s.clusterID(), Node: &rowraftv1.Node{Id: id, Name: id, Addr: addr, PeerAddr: addr},
		FormatVersion: uint32(wire.NewestVersion()),
	})
	if err != nil {
		t.Fatal(err)
	}
}

func reconcile(t *testing.T, s *Scheduler) {
	t.Helper()
	if err := s.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func heartbeat(t *testing.T, s *Scheduler, id string, replicas ...*rowraftv1.ReplicaStatus) {
	t.Helper()
	if _, err := s.Heartbeat(t.Context(), &rowraftv1.HeartbeatRequest{
		ClusterId: s.clusterID(), NodeId: id, Replicas: replicas, FormatVersion: uint32(wire.NewestVersion()),
	}); err != nil {
		t.Fatal(err)
	}
}

func TestShardsAreMadeWhenTheServersAreThere(t *testing.T) {
	s, _ := newLeader(t, 3, 6)
	for i, id := range []string{"n0", "n1", "n2"} {
		reconcile(t, s)
		if m := s.view.Map(); len(m.Shards) != 0 {
			t.Fatalf("shards were made with %d servers of 3", i)
		}
		register(t, s, id, id+":1")
	}
	reconcile(t, s)
	reconcile(t, s)
	m := s.view.Map()
	if len(m.Shards) != 6 {
		t.Fatalf("%d shards, want 6", len(m.Shards))
	}
	held, first, ids := map[rowraft.NodeID]int{}, map[rowraft.NodeID]int{}, map[rowraft.ReplicaID]bool{}
	for _, sh := range m.Shards {
		first[sh.Replicas[0].Node]++
		for _, r := range sh.Replicas {
			held[r.Node]++
			ids[r.ID] = true
		}
	}
	for _, n := range m.Nodes {
		if held[n.ID] != 6 || first[n.ID] != 2 {
			t.Errorf("node %s holds %d replicas, %d of them first; want 6 and 2", n.ID, held[n.ID], first[n.ID])
		}
	}
	if len(ids) != 18 {
		t.Errorf("%d replica ids, want 18", len(ids))
	}
}

func TestOnlyTheLeaderAnswers(t *testing.T) {
	s, l := newLeader(t, 1, 1)
	reconcile(t, s)
	register(t, s, "n0", "n0:1")
	l.elect("n0")
	ctx := t.Context()
	calls := map[string]func() error{
		"RegisterNode": func() error {
			_, err := s.RegisterNode(ctx, &rowraftv1.RegisterNodeRequest{ClusterId: s.clusterID(),
				Node: &rowraftv1.Node{Id: "n", Addr: "a", PeerAddr: "b"}})
			return err
		},
		"Heartbeat": func() error {
			_, err := s.Heartbeat(ctx, &rowraftv1.HeartbeatRequest{ClusterId: s.clusterID(), NodeId: "n0"})
			return err
		},
		"CreateTable": func() error {
			schema := metacmd.SGD("t", 4)
			_, err := s.CreateTable(ctx, &rowraftv1.CreateTableRequest{Table: rpc.SchemaToProto(&schema)})
			return err
		},
		"IssueIncarnation": func() error {
			_, err := s.IssueIncarnation(ctx, &rowraftv1.IssueIncarnationRequest{ClientId: make([]byte, 16)})
			return err
		},
		"Status": func() error { _, err := s.Status(ctx, &rowraftv1.StatusRequest{}); return err },
	}
	for name, call := range calls {
		testutil.WantCode(t, fmt.Errorf("%s: %w", name, call()), rowraft.CodeNotLeader, "n0", "n0:1")
	}
	l.elect("")
	for name, call := range calls {
		testutil.WantCode(t, fmt.Errorf("%s: %w", name, call()), rowraft.CodeNoLeader)
	}
	if h, err := s.Hello(ctx, &rowraftv1.HelloRequest{}); err != nil || h.NodeId != string(s.opts.Self.ID) {
		t.Errorf("Hello: %v (%v)", h, err)
	}
	if r, err := s.GetMap(ctx, &rowraftv1.GetMapRequest{}); err != nil || len(r.GetMap().GetNodes()) != 1 {
		t.Errorf("GetMap: %v (%v)", r, err)
	}
}

func TestGetMapWaitsForANewerOne(t *testing.T) {
	s, _ := newLeader(t, 2, 1)
	reconcile(t, s)
	version := s.mapVersion()
	if r, err := s.GetMap(t.Context(), &rowraftv1.GetMapRequest{KnownVersion: version,
		WaitNs: uint64(time.Millisecond)}); err != nil || r.Map != nil {
		t.Fatalf("without a newer map: %v (%v)", r, err)
	}
	got := make(chan *rowraftv1.GetMapReply, 1)
	go func() {
		r, _ := s.GetMap(context.Background(), &rowraftv1.GetMapRequest{KnownVersion: version, WaitNs: ^uint64(0)})
		got <- r
	}()
	register(t, s, "n0", "n0:1")
	if r := <-got; r.GetMap().GetVersion() != version+1 {
		t.Errorf("woke with %v, want version %d", r, version+1)
	}
}

func leads(shard uint32, replica rowraft.ReplicaID, term, index uint64) *rowraftv1.ReplicaStatus {
	return &rowraftv1.ReplicaStatus{Shard: shard, ReplicaId: string(replica), Role: diagnosis.Leader, Term: term,
		CommitIndex: index, AppliedIndex: index}
}

func follows(shard uint32, replica rowraft.ReplicaID, leader string, term, index uint64) *rowraftv1.ReplicaStatus {
	return &rowraftv1.ReplicaStatus{Shard: shard, ReplicaId: string(replica), Role: "follower", Term: term,
		LeaderNode: leader, AppliedIndex: index}
}

func TestTheHintOfTheHighestTermWins(t *testing.T) {
	s, _ := newLeader(t, 3, 1)
	reconcile(t, s)
	for _, n := range []string{"n0", "n1", "n2"} {
		register(t, s, n, n+":1")
	}
	heartbeat(t, s, "n0", leads(0, "a", 4, 9))
	heartbeat(t, s, "n1", follows(0, "b", "n2", 5, 9))
	s.opts.Hints = func() []LeaderHint { return []LeaderHint{{0, "n0", 3}, {1, "n1", 1}, {2, "", 9}} }
	want := []LeaderHint{{0, "n2", 5}, {1, "n1", 1}}
	if got := s.hints(); !slices.Equal(got, want) {
		t.Errorf("hints %v, want %v", got, want)
	}
}

// TestStatusFollowsHeartbeats runs in virtual time.
func TestStatusFollowsHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newLeader(t, 3, 1)
		s.soft.clock = time.Now
		reconcile(t, s)
		for _, n := range []string{"n0", "n1", "n2"} {
			register(t, s, n, n+":1")
		}
		reconcile(t, s)
		r := s.view.Map().Shards[0].Replicas
		check := func(states string, problems ...string) {
			t.Helper()
			st, err := s.Status(t.Context(), &rowraftv1.StatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, n := range st.Nodes {
				got = append(got, n.State)
			}
			if strings.Join(got, " ") != states {
				t.Errorf("states %v, want %s", got, states)
			}
			if len(st.Problems) != len(problems) {
				t.Errorf("problems %q, want %d", st.Problems, len(problems))
			}
			for _, p := range problems {
				if !slices.ContainsFunc(st.Problems, func(q string) bool { return strings.Contains(q, p) }) {
					t.Errorf("no problem says %q: %q", p, st.Problems)
				}
			}
		}
		beatAll := func(lagging uint64) {
			heartbeat(t, s, "n0", leads(0, r[0].ID, 2, 5000))
			heartbeat(t, s, "n1", follows(0, r[1].ID, "n0", 2, 5000-lagging))
			heartbeat(t, s, "n2", follows(0, r[2].ID, "n0", 2, 5000))
		}
		check("up up up") // nothing is known yet, which is a note
		beatAll(0)
		check("up up up")
		beatAll(4000)
		check("up up up", "n1 trails the leader by 4000 entries")
		beatAll(0)
		time.Sleep(SuspectAfter)
		heartbeat(t, s, "n0", leads(0, r[0].ID, 2, 5000))
		heartbeat(t, s, "n2", follows(0, r[2].ID, "n0", 2, 5000))
		check("up suspect up", "n1 at n1:1 is suspect, with the replica it holds",
			"Shard 0: not every replica is complete (2 of 3)")
		time.Sleep(DownAfter)
		heartbeat(t, s, "n1", follows(0, r[1].ID, "n0", 2, 5000))
		heartbeat(t, s, "n2", follows(0, r[2].ID, "n0", 2, 5000))
		check("down up up", "n0 at n0:1 is down, with the replica it holds", "no leader")
		beatAll(0)
		stopped := follows(0, r[2].ID, "n0", 2, 5000)
		stopped.Error = "disk is full."
		heartbeat(t, s, "n2", stopped)
		check("up up up", "n2 has stopped: disk is full.", "Shard 0: not every replica is complete (2 of 3)")

		// A new term has no heartbeat yet and calls no server down at once.
		l.elect(s.opts.Self.ID)
		check("up up up") // nothing is known yet, which is a note
	})
}

// shardServer answers EnsureTable for a node, as its answer function says.
type shardServer struct {
	rowraftv1.UnimplementedReplicasServer
	mu     sync.Mutex
	tables map[string]int // "shard table" → calls
	answer func(call int, req *rowraftv1.EnsureTableRequest) error
	calls  int

	drops      []string // "shard table epoch" of each DropShardTable
	dropAnswer func(call int) error
}

func (a *shardServer) EnsureTable(_ context.Context,
	req *rowraftv1.EnsureTableRequest) (*rowraftv1.EnsureTableReply, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
	if a.answer != nil {
		if err := a.answer(a.calls, req); err != nil {
			return nil, err
		}
	}
	a.tables[fmt.Sprint(req.Shard, " ", req.Table.Name)]++
	return &rowraftv1.EnsureTableReply{}, nil
}

func startShardServer(t *testing.T) (*shardServer, string) {
	t.Helper()
	a := &shardServer{tables: make(map[string]int)}
	return a, serveServices(t, func(g *grpc.Server) { rowraftv1.RegisterReplicasServer(g, a) })
}

// serveServices serves what register registers until the test ends, and returns where.
func serveServices(t *testing.T, register func(*grpc.Server)) (addr string) {
	t.Helper()
	l := rpctest.Listen(t)
	rpctest.Serve(t, l, register)
	return l.Addr().String()
}

// leaderOfShards is a scheduler that leads a cluster of so many shards, all on server a, which
// is at addr.
func leaderOfShards(t *testing.T, shards int, addr string) (*Scheduler, *fakeLog) {
	t.Helper()
	s, l := newLeader(t, 1, shards)
	reconcile(t, s)
	register(t, s, "a", addr)
	reconcile(t, s)
	return s, l
}

func TestCreateTableReachesEveryShardThroughItsLeader(t *testing.T) {
	s, l := newLeader(t, 2, 3)
	reconcile(t, s)
	a, addrA := startShardServer(t)
	b, addrB := startShardServer(t)
	register(t, s, "a", addrA)
	register(t, s, "b", addrB)
	schema := metacmd.SGD("user", 8)
	req := &rowraftv1.CreateTableRequest{Table: rpc.SchemaToProto(&schema)}
	ctx := testutil.Context(t)
	_, err := s.CreateTable(ctx, req)
	testutil.WantCode(t, err, rowraft.CodeStarting, "no shards yet")
	reconcile(t, s)

	// a leads nothing and says who does; b has no leader to begin with.
	a.answer = func(_ int, r *rowraftv1.EnsureTableRequest) error {
		return &rowraft.NotLeaderError{Shard: rowraft.ShardID(r.Shard), Leader: "b", Term: 2}
	}
	b.answer = func(call int, r *rowraftv1.EnsureTableRequest) error {
		if call <= 2 {
			return rowraft.Errorf(rowraft.CodeNoLeader, "electing")
		}
		return nil
	}
	reply, err := s.CreateTable(ctx, req)
	if err != nil || !reply.Created || reply.Table.Id == 0 || reply.MapVersion != s.mapVersion() {
		t.Fatalf("CreateTable: %v (%v)", reply, err)
	}
	for shard := range 3 {
		if b.tables[fmt.Sprint(shard, " user")] != 1 {
			t.Errorf("shard %d was told %d times, want once: %v", shard, b.tables[fmt.Sprint(shard, " user")], b.tables)
		}
	}
	_, err = s.CreateTable(ctx, req)
	testutil.WantCode(t, err, rowraft.CodeTableExists, "user")
	if strings.Contains(err.Error(), "create table") {
		t.Errorf("%v: it names the call, as the caller does", err)
	}
	req.IfNotExists = true
	if again, err := s.CreateTable(ctx, req); err != nil || again.Created || again.Table.Id != reply.Table.Id {
		t.Errorf("again: %v (%v), want table %d", again, err, reply.Table.Id)
	}
	req.Table.Dim = 9
	_, err = s.CreateTable(ctx, req)
	testutil.WantCode(t, err, rowraft.CodeTableExists, "dim 8", "dim 9")
	req.Table.Dim = 0
	_, err = s.CreateTable(ctx, req)
	testutil.WantCode(t, err, rowraft.CodeInvalidArgument, "dim 0")

	// The leader of another term does not know what was done and does it again,
	// in the background too.
	l.elect(s.opts.Self.ID)
	reconcile(t, s)
	if b.tables["0 user"] != 2 || b.tables["2 user"] != 2 {
		t.Errorf("a new leader did not drive the table again: %v", b.tables)
	}
	reconcile(t, s)
	if b.tables["0 user"] != 2 {
		t.Errorf("the table is driven again though it is known to be there: %v", b.tables)
	}
}

func TestCreateTableThatCannotFinishSaysSo(t *testing.T) {
	a, addr := startShardServer(t)
	s, _ := leaderOfShards(t, 1, addr)
	schema := metacmd.SGD("user", 8)
	refuse := true
	a.answer = func(int, *rowraftv1.EnsureTableRequest) error {
		if refuse {
			return rowraft.Errorf(rowraft.CodeNoLeader, "electing")
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := s.CreateTable(ctx, &rowraftv1.CreateTableRequest{Table: rpc.SchemaToProto(&schema)})
	if err == nil || !rowraft.CodeOf(err).Retryable() {
		t.Fatalf("error %v with code %v, want one that may be retried", err, rowraft.CodeOf(err))
	}
	a.mu.Lock()
	refuse = false
	a.mu.Unlock()
	reconcile(t, s)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tables["0 user"] == 0 { // 2: a try of the call that ended came late
		t.Errorf("the background pass did not repair the table: %v", a.tables)
	}
}

// briefLead is a log whose lead is lost with the first entry.
type briefLead struct{ *fakeLog }

func (l briefLead) Propose(ctx context.Context, entry []byte) (any, error) {
	result, err := l.fakeLog.Propose(ctx, entry)
	l.elect("another")
	return result, err
}

// NotLeader says that nothing was done: a client that heard it for a table that is logged
// took its own table for one of another when it asked the next leader.
func TestCreateTableThatIsLoggedIsNotRefused(t *testing.T) {
	_, addr := startShardServer(t)
	s, l := leaderOfShards(t, 1, addr)
	s.Attach(briefLead{l})
	schema := metacmd.SGD("user", 8)
	_, err := s.CreateTable(testutil.Context(t), &rowraftv1.CreateTableRequest{Table: rpc.SchemaToProto(&schema)})
	testutil.WantCode(t, err, rowraft.CodeLeadershipLost, "table user is created")
	if s.view.Map().Tables[0].Name != "user" {
		t.Error("the table was not logged")
	}
}

func TestIncarnationsGrow(t *testing.T) {
	s, _ := newLeader(t, 1, 1)
	last := uint64(0)
	for range 5 {
		r, err := s.IssueIncarnation(t.Context(), &rowraftv1.IssueIncarnationRequest{ClientId: make([]byte, 16)})
		if err != nil || r.Incarnation <= last {
			t.Fatalf("incarnation %v after %d (%v)", r, last, err)
		}
		last = r.Incarnation
	}
	_, err := s.IssueIncarnation(t.Context(), &rowraftv1.IssueIncarnationRequest{ClientId: make([]byte, 15)})
	testutil.WantCode(t, err, rowraft.CodeInvalidArgument, "15 bytes")
}
