package scheduler

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// fakeGroup is the Raft group of one shard: its members, who leads, and a
// configuration index that every change must name. Every second change or transfer
// takes effect and returns an error, as if its outcome were unknown.
type fakeGroup struct {
	mu      sync.Mutex
	leader  string
	index   uint64
	members []*rowraftv1.MemberStatus
	asked   int
	changes []string
}

// fakeNode is the Admin service of one node of the group.
type fakeNode struct {
	rowraftv1.UnimplementedReplicasServer
	g  *fakeGroup
	id string
}

// lead locks the group for a call of its leader.
func (n *fakeNode) lead() (unlock func(), err error) {
	n.g.mu.Lock()
	if n.g.leader != n.id {
		n.g.mu.Unlock()
		return nil, &rowraft.NotLeaderError{Leader: rowraft.NodeID(n.g.leader), Term: 2}
	}
	return n.g.mu.Unlock, nil
}

func (g *fakeGroup) size() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.members)
}

func (g *fakeGroup) maybe(what string) error {
	g.changes = append(g.changes, what)
	if g.asked++; g.asked%2 == 1 {
		return rowraft.Errorf(rowraft.CodeLeadershipLost, "who knows")
	}
	return nil
}

func (n *fakeNode) Members(context.Context, *rowraftv1.MembersRequest) (*rowraftv1.MembersReply, error) {
	unlock, err := n.lead()
	if err != nil {
		return nil, err
	}
	defer unlock()
	return &rowraftv1.MembersReply{ConfigIndex: n.g.index, Members: n.g.members}, nil
}

func (n *fakeNode) ChangeMembers(_ context.Context,
	req *rowraftv1.ChangeMembersRequest) (*rowraftv1.ChangeMembersReply, error) {
	unlock, err := n.lead()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if req.PrevIndex != n.g.index {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "configuration %d, not %d", n.g.index, req.PrevIndex)
	}
	n.g.index++
	what := ""
	switch c := req.Change.(type) {
	case *rowraftv1.ChangeMembersRequest_AddLearner:
		what = "add " + c.AddLearner.Node
		n.g.members = append(slices.Clone(n.g.members), &rowraftv1.MemberStatus{ReplicaId: c.AddLearner.Id,
			Node: c.AddLearner.Node, CaughtUp: true})
	case *rowraftv1.ChangeMembersRequest_Promote:
		what = "promote"
		for _, m := range n.g.members {
			m.Voter = m.Voter || m.ReplicaId == c.Promote
		}
	case *rowraftv1.ChangeMembersRequest_Remove:
		i := slices.IndexFunc(n.g.members, func(m *rowraftv1.MemberStatus) bool { return m.ReplicaId == c.Remove })
		if n.g.members[i].Node == n.id {
			return nil, rowraft.Errorf(rowraft.CodePrecondition, "it leads")
		}
		what = "remove " + n.g.members[i].Node
		n.g.members = slices.Delete(slices.Clone(n.g.members), i, i+1)
	}
	return &rowraftv1.ChangeMembersReply{}, n.g.maybe(what)
}

func (n *fakeNode) TransferLeader(_ context.Context,
	req *rowraftv1.TransferLeaderRequest) (*rowraftv1.TransferLeaderReply, error) {
	unlock, err := n.lead()
	if err != nil {
		return nil, err
	}
	defer unlock()
	n.g.leader = req.ToNode
	return &rowraftv1.TransferLeaderReply{}, n.g.maybe("transfer to " + req.ToNode)
}

// movingCluster is a scheduler that leads a cluster of nodes a to d, and the group
// of its one shard, on a, b and c and led by a.
func movingCluster(t *testing.T) (*Scheduler, *fakeLog, *fakeGroup) {
	t.Helper()
	s, l := newLeader(t, 4, 1)
	g := &fakeGroup{leader: "a", index: 1}
	for _, id := range []string{"a", "b", "c", "d"} {
		addr := serveServices(t, func(srv *grpc.Server) { rowraftv1.RegisterReplicasServer(srv, &fakeNode{g: g, id: id}) })
		if id == "a" {
			reconcile(t, s)
		}
		register(t, s, id, addr)
	}
	reconcile(t, s)
	for _, r := range s.view.Map().Shards[0].Replicas {
		g.members = append(g.members, &rowraftv1.MemberStatus{ReplicaId: string(r.ID), Node: string(r.Node), Voter: true,
			CaughtUp: true})
	}
	heartbeat(t, s, "d")
	return s, l, g
}

// driveTurns gives the moves turns, each under a new leader of the scheduler.
func driveTurns(t *testing.T, s *Scheduler, l *fakeLog, until func() bool) {
	t.Helper()
	for range 50 {
		if until() {
			return
		}
		var wg sync.WaitGroup
		s.driver.round(t.Context(), &wg)
		wg.Wait()
		l.elect(s.opts.Self.ID)
	}
	t.Fatal("the move does not end")
}

func TestAMoveSurvivesANewDriverInEveryStep(t *testing.T) {
	s, l, g := movingCluster(t)
	reply, err := s.MoveReplica(t.Context(), &rowraftv1.MoveReplicaRequest{FromNode: "a", ToNode: "d"})
	if err != nil {
		t.Fatal(err)
	}
	driveTurns(t, s, l, func() bool { _, finished := s.machine.Moves(); return len(finished) == 1 })
	if got, want := strings.Join(g.changes, ", "), "add d, promote, transfer to d, remove a"; got != want {
		t.Errorf("the group went through %q, want %q, each once", got, want)
	}
	sh := s.view.Map().Shards[0]
	if on(sh.Replicas) != "dbc" || len(sh.Learners) != 0 || len(sh.Removed) != 1 || g.leader != "d" {
		t.Errorf("in the end %+v, led by %s", sh, g.leader)
	}
	if _, finished := s.machine.Moves(); finished[0].ID != reply.Move.Id || finished[0].Phase != meta.PhaseDone {
		t.Errorf("finished %+v", finished)
	}
}

// TestTheSchedulerChoosesTheTargetOfAMove, or says what to do if no server can take the replica.
func TestTheSchedulerChoosesTheTargetOfAMove(t *testing.T) {
	s, _, _ := movingCluster(t)
	alone, _ := restoringCluster(t)
	for _, tc := range []struct {
		s    *Scheduler
		req  *rowraftv1.MoveReplicaRequest
		code rowraft.Code
		says string
	}{
		{s, &rowraftv1.MoveReplicaRequest{FromNode: "a", Shard: 7}, rowraft.CodeNotFound, "no shard 7"},
		{s, &rowraftv1.MoveReplicaRequest{FromNode: "x"}, rowraft.CodeNotFound, `no server "x"`},
		{s, &rowraftv1.MoveReplicaRequest{FromNode: "d"}, rowraft.CodeNotFound, "d has no replica"},
		{alone, &rowraftv1.MoveReplicaRequest{FromNode: "a"}, rowraft.CodePrecondition, "transfer-leader 0"},
	} {
		_, err := tc.s.MoveReplica(t.Context(), tc.req)
		testutil.WantCode(t, err, tc.code, tc.says)
	}
	reply, err := s.MoveReplica(t.Context(), &rowraftv1.MoveReplicaRequest{FromNode: "a"})
	if err != nil || reply.GetMove().GetTo().GetNode() != "d" {
		t.Fatalf("%v, %v; want a move to d", reply, err)
	}
	_, err = s.MoveReplica(t.Context(), &rowraftv1.MoveReplicaRequest{FromNode: "b"})
	testutil.WantCode(t, err, rowraft.CodeAlreadyExists, "another change")
}

// A call of an earlier leader that comes late may add a replica that has left: it is
// removed again, and only then, after its server has said so, forgotten.
func TestAReplicaThatLeftIsRemovedAgain(t *testing.T) {
	s, l, g := movingCluster(t)
	if _, err := s.MoveReplica(t.Context(), &rowraftv1.MoveReplicaRequest{FromNode: "b", ToNode: "d"}); err != nil {
		t.Fatal(err)
	}
	driveTurns(t, s, l, func() bool { _, finished := s.machine.Moves(); return len(finished) == 1 })
	sh := s.view.Map().Shards[0]
	left := sh.Removed[0]
	g.members = append(g.members, &rowraftv1.MemberStatus{ReplicaId: string(left.ID), Node: "b"})
	g.index++
	report := func() {
		heartbeat(t, s, "a", &rowraftv1.ReplicaStatus{Shard: 0, ReplicaId: string(sh.Replicas[0].ID), Role: "leader", Term: 2,
			ConfigIndex: g.index, Members: g.members})
	}
	if err := s.driver.collectRemoved(t.Context()); err != nil { // from now on it is known
		t.Fatal(err)
	}
	report()
	testutil.Eventually(t, "it is removed again", func() bool { // a call that takes too long is made again
		if err := s.driver.collectRemoved(t.Context()); err != nil {
			t.Log(err)
		}
		return g.size() == 3
	})
	g.mu.Lock() // the call that took too long may still come
	last := g.changes[len(g.changes)-1]
	g.mu.Unlock()
	if last != "remove b" {
		t.Errorf("last change %q", last)
	}
	if len(s.view.Map().Shards[0].Removed) != 1 {
		t.Error("the map has forgotten it before its server said that it is gone")
	}
}

// A report from before a late call could have come says nothing about it.
func TestAReplicaIsForgottenOnALateReportOnly(t *testing.T) {
	s, l, g := movingCluster(t)
	if _, err := s.MoveReplica(t.Context(), &rowraftv1.MoveReplicaRequest{FromNode: "b", ToNode: "d"}); err != nil {
		t.Fatal(err)
	}
	driveTurns(t, s, l, func() bool { _, finished := s.machine.Moves(); return len(finished) == 1 })
	sh := s.view.Map().Shards[0]
	left, now := sh.Removed[0], s.soft.now()
	known := now.Add(-2 * forgetAfter)
	collect := func(reported time.Time) (forgotten bool) {
		if _, _, err := s.leading(); err != nil { // in this term from now on
			t.Fatal(err)
		}
		s.driver.mu.Lock()
		s.driver.removed = map[rowraft.ReplicaID]time.Time{left.ID: known}
		s.driver.mu.Unlock()
		s.soft.mu.Lock()
		s.soft.beats["a"] = beat{at: reported, replicas: []*rowraftv1.ReplicaStatus{
			{Shard: 0, ReplicaId: string(sh.Replicas[0].ID), Role: "leader", Term: 2, ConfigIndex: g.index, Members: g.members},
		}}
		s.soft.beats["b"] = beat{at: now, mapVersion: left.Version}
		s.soft.mu.Unlock()
		if err := s.driver.collectRemoved(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(s.view.Map().Shards[0].Removed) == 0
	}
	if collect(known.Add(forgetAfter - 1)) {
		t.Error("forgotten on a report that a late call may have followed")
	}
	if !collect(known.Add(forgetAfter)) {
		t.Error("not forgotten on a report after all late calls")
	}
}

// A group that does not answer for a replica that left holds up no other move.
func TestABurialHoldsUpNoMove(t *testing.T) {
	s, l, g := movingCluster(t)
	if _, err := s.MoveReplica(t.Context(), &rowraftv1.MoveReplicaRequest{FromNode: "b", ToNode: "d"}); err != nil {
		t.Fatal(err)
	}
	driveTurns(t, s, l, func() bool { _, finished := s.machine.Moves(); return len(finished) == 1 })
	var wg sync.WaitGroup
	s.driver.round(t.Context(), &wg) // from now on it is known
	wg.Wait()
	sh := s.view.Map().Shards[0]
	g.members = append(g.members, &rowraftv1.MemberStatus{ReplicaId: string(sh.Removed[0].ID), Node: "b"})
	heartbeat(t, s, "a", &rowraftv1.ReplicaStatus{Shard: 0, ReplicaId: string(sh.Replicas[0].ID), Role: "leader", Term: 2,
		ConfigIndex: g.index, Members: g.members})

	g.mu.Lock() // the group answers no call
	s.driver.round(t.Context(), &wg)
	waits := !s.driver.claim(collecting)
	g.mu.Unlock()
	wg.Wait()
	if !waits {
		t.Error("the moves had to wait until the group had answered")
	}
	testutil.Eventually(t, "it is removed again", func() bool { // a call that takes too long is made again
		s.driver.round(t.Context(), &wg)
		wg.Wait()
		return g.size() == 3
	})
}

// A new leader of the scheduler whose machine lags would answer from an old
// map, and drive a move that has ended: it does neither.
func TestANewLeaderReadsBeforeItAnswers(t *testing.T) {
	s, l := newLeader(t, 1, 1)
	reconcile(t, s)
	l.elect(s.opts.Self.ID)
	l.behind = true
	_, err := s.Status(t.Context(), &rowraftv1.StatusRequest{})
	testutil.WantCode(t, err, rowraft.CodeStarting, "still reads")
	_, err = s.MoveReplica(t.Context(), &rowraftv1.MoveReplicaRequest{})
	testutil.WantCode(t, err, rowraft.CodeStarting)
	_, err = s.CancelMove(t.Context(), &rowraftv1.CancelMoveRequest{})
	testutil.WantCode(t, err, rowraft.CodeStarting)
	if _, term, _ := s.leading(); s.inSync(t.Context(), l, term) {
		t.Error("it would drive moves")
	}
	l.behind = false
	if _, err := s.Status(t.Context(), &rowraftv1.StatusRequest{}); err != nil {
		t.Error(err)
	}
}
