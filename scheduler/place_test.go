package scheduler

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/diagnosis"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/wire"
)

// report has the nodes of a fakeGroup send their heartbeats.
func (g *fakeGroup) report(t *testing.T, s *Scheduler, nodes ...string) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range nodes {
		var reps []*rowraftv1.ReplicaStatus
		for _, m := range g.members {
			if m.Node == id {
				st := &rowraftv1.ReplicaStatus{ReplicaId: m.ReplicaId, Role: "follower", Term: 2}
				if g.leader == id {
					st.Role = diagnosis.Leader
				}
				reps = append(reps, st)
			}
		}
		heartbeat(t, s, id, reps...)
	}
}

// placeTurns gives placement and its moves turns, each under a new leader of the
// scheduler's group, which has heard of the nodes that are up and of nothing else.
func placeTurns(t *testing.T, s *Scheduler, l *fakeLog, g *fakeGroup, up []string, before func(), until func() bool) {
	t.Helper()
	for range 60 {
		g.report(t, s, up...)
		if before != nil {
			before()
		}
		if until() {
			return
		}
		var p placeMemory
		if err := s.placeLoop.round(t.Context(), &p); err != nil {
			t.Log(err) // every second call returns an error of unknown outcome
		}
		var wg sync.WaitGroup
		s.driver.round(t.Context(), &wg)
		wg.Wait()
		l.elect(s.opts.Self.ID)
		if _, _, err := s.leading(); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("it does not end: group %v; operations %+v", g.changes, s.machine.Operations())
}

func change(t *testing.T, s *Scheduler, req *rowraftv1.ChangeNodeRequest) *rowraftv1.ChangeNodeReply {
	t.Helper()
	req.ExpectAny = true
	reply, err := s.ChangeNode(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func (s *Scheduler) ended(id uint64) bool {
	return slices.ContainsFunc(s.machine.Operations(), func(o meta.Operation) bool {
		return o.ID == id && o.State == meta.OpDone
	})
}

func TestADecommissionSurvivesANewLeaderInEveryStep(t *testing.T) {
	s, l, g := movingCluster(t)
	g.report(t, s, "a", "b", "c", "d")
	reply := change(t, s, &rowraftv1.ChangeNodeRequest{Node: "a", Intent: rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION})
	if !reply.Accepted || reply.Operation.GetTotal() != 1 || reply.Operation.GetLeft() != 1 {
		t.Fatalf("%v", reply)
	}
	placeTurns(t, s, l, g, []string{"a", "b", "c", "d"}, nil, func() bool { return s.ended(reply.Operation.Id) })
	if sh := s.view.Map().Shards[0]; on(sh.Replicas) != "dbc" || g.leader == "a" {
		t.Errorf("in the end %+v, led by %s", sh, g.leader)
	}
	_, finished := s.machine.Moves()
	if len(finished) != 1 || finished[0].Reason != rowraftv1.MoveReason_MOVE_REASON_DECOMMISSION {
		t.Errorf("moves %+v, want one", finished)
	}
	if n := count(g.changes, func(c string) bool { return c == "add d" || c == "promote" || c == "remove a" }); n != 3 {
		t.Errorf("the group went through %v, want each change once", g.changes)
	}
	// The server runs until the operator stops it. Then the map forgets it.
	g.report(t, s, "a", "b", "c", "d")
	if _, known := s.view.Map().Node("a"); !known {
		t.Error("it is forgotten while it runs")
	}
	placeTurns(t, s, l, g, []string{"b", "c", "d"}, func() { silence(s, DownAfter) },
		func() bool { _, known := s.view.Map().Node("a"); return !known })
	_, err := s.RegisterNode(t.Context(), &rowraftv1.RegisterNodeRequest{ClusterId: s.clusterID(),
		FormatVersion: uint32(wire.NewestVersion()), Node: &rowraftv1.Node{Id: "a", Addr: "x:1", PeerAddr: "x:2"}})
	testutil.WantCode(t, err, rowraft.CodeIdentity, "was decommissioned")
}

// silence makes the scheduler's leader believe that it has led for so long.
func silence(s *Scheduler, d time.Duration) {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	s.soft.since = s.soft.since.Add(-d)
}

func TestADecommissionIsUndone(t *testing.T) {
	s, l, g := movingCluster(t)
	s.opts.NoRebalance = true
	g.report(t, s, "a", "b", "c", "d")
	op := change(t, s, &rowraftv1.ChangeNodeRequest{Node: "b",
		Intent: rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION}).Operation
	if err := s.placeLoop.round(t.Context(), &placeMemory{}); err != nil {
		t.Fatal(err)
	}
	running, _ := s.machine.Moves()
	if len(running) != 1 {
		t.Fatalf("moves %+v", running)
	}
	_, err := s.ChangeNode(t.Context(), &rowraftv1.ChangeNodeRequest{Node: "b", ExpectAny: true, Operation: op.Id + 7})
	testutil.WantCode(t, err, rowraft.CodePrecondition, "does not run on b")
	_, err = s.ChangeNode(t.Context(), &rowraftv1.ChangeNodeRequest{Node: "b",
		Expect: rowraftv1.NodeIntent_NODE_INTENT_DRAIN})
	testutil.WantCode(t, err, rowraft.CodePrecondition, "b is decommissioned")
	change(t, s, &rowraftv1.ChangeNodeRequest{Node: "b", Operation: op.Id})
	if n, _ := s.view.Map().Node("b"); n.Intent != clustermap.Serve {
		t.Errorf("it is %s", meta.IntentName(n.Intent))
	}
	// The move that has begun ends or goes back; nothing else follows.
	placeTurns(t, s, l, g, []string{"a", "b", "c", "d"}, nil, func() bool {
		running, _ := s.machine.Moves()
		return len(running) == 0
	})
	if o := s.machine.Operations(); len(o) != 1 || o[0].State != meta.OpCancelled {
		t.Errorf("operations %+v", o)
	}
}

func TestADeadServerIsReplaced(t *testing.T) {
	s, l, g := movingCluster(t)
	g.report(t, s, "a", "b", "c", "d")
	up := []string{"a", "b", "d"}
	late := func() { silence(s, DefaultReplaceAfter-time.Minute) }
	for range 3 { // a little less than dead
		g.report(t, s, up...)
		l.elect(s.opts.Self.ID)
		g.report(t, s, up...)
		late()
		if err := s.placeLoop.round(t.Context(), &placeMemory{}); err != nil {
			t.Fatal(err)
		}
	}
	if ops := s.machine.Operations(); len(ops) != 0 {
		t.Fatalf("operations %+v before it counts as dead", ops)
	}
	dead := func() { silence(s, DefaultReplaceAfter) }
	placeTurns(t, s, l, g, up, dead, func() bool {
		return len(s.machine.Operations()) == 1 && s.ended(s.machine.Operations()[0].ID)
	})
	sh := s.view.Map().Shards[0]
	if on(sh.Replicas) != "abd" || s.machine.Operations()[0].Kind != meta.OpReplace {
		t.Errorf("in the end %+v, operations %+v", sh, s.machine.Operations())
	}
	if _, known := s.view.Map().Node("c"); !known {
		t.Error("it is forgotten; it may come back")
	}
	if r := sh.Removed; len(r) != 1 || r[0].Node != "c" {
		t.Errorf("removed %+v: when it comes back it must hear that its replica is gone", r)
	}
}

// The disk of a fenced replica is evidence: it is replaced no sooner than a dead server,
// counted by each leader of the scheduler from when it first hears of the fence.
func TestAFencedReplicaIsReplacedLate(t *testing.T) {
	s, _, g := movingCluster(t)
	g.report(t, s, "a", "b", "c", "d")
	for i, st := range s.soft.beats["b"].replicas {
		st.Fenced, st.Role = "it differs from the majority", "fenced"
		s.soft.beats["b"].replicas[i] = st
	}
	var p placeMemory
	place := func() int {
		t.Helper()
		if err := s.placeLoop.round(t.Context(), &p); err != nil {
			t.Fatal(err)
		}
		running, _ := s.machine.Moves()
		return len(running)
	}
	if n := place(); n != 0 || len(p.fenced) != 1 {
		t.Fatalf("%d moves and %d known fences after the first turn, want 0 and 1", n, len(p.fenced))
	}
	for id, since := range p.fenced {
		p.fenced[id] = since.Add(-DefaultReplaceAfter + time.Minute)
	}
	if n := place(); n != 0 {
		t.Errorf("%d moves a minute too early", n)
	}
	for id, since := range p.fenced {
		p.fenced[id] = since.Add(-time.Minute)
	}
	if n := place(); n != 1 {
		t.Fatalf("%d moves in the end, want 1", n)
	}
	running, _ := s.machine.Moves()
	if m := running[0]; m.From.Node != "b" || m.To.Node != "d" || m.Reason != rowraftv1.MoveReason_MOVE_REASON_FENCED {
		t.Errorf("move %+v", m)
	}
}

// The answer to a drain names what could be lost, for example a fenced replica.
func TestAServerIsDrainedWithAFencedReplica(t *testing.T) {
	s, _, g := movingCluster(t)
	g.report(t, s, "a", "b", "c", "d")
	for i, st := range s.soft.beats["b"].replicas {
		st.Fenced, st.Role = "it differs from the majority", "fenced"
		s.soft.beats["b"].replicas[i] = st
	}
	reply := change(t, s, &rowraftv1.ChangeNodeRequest{Node: "a", Intent: rowraftv1.NodeIntent_NODE_INTENT_DRAIN})
	if len(reply.Risks) != 1 || !strings.Contains(reply.Risks[0], "1 of its 2 other replicas") || reply.Accepted {
		t.Errorf("%v, want the risk that b does not count", reply)
	}
}

// standStill has s find that its process stood still until now.
func standStill(s *Scheduler, d time.Duration) {
	s.pulse.mu.Lock()
	defer s.pulse.mu.Unlock()
	s.pulse.last = time.Now().Add(-d - pulseInterval)
}

// A worker does not lose its lease because the scheduler was suspended.
func TestASuspensionDoesNotCountAsSilenceOfAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newLeader(t, 1, 1)
		reconcile(t, s)
		register(t, s, "n0", "n0:1")
		if _, err := s.Jobs().Enter(t.Context(), &rowraftv1.EnterRequest{
			Job: "ctr", Worker: "w", Instance: make([]byte, 16), Workers: 1, Data: &rowraftv1.JobData{},
		}); err != nil {
			t.Fatal(err)
		}
		s.pulse.begin()
		time.Sleep(time.Hour)
		leader{s.group}.CheckPause()
		info := s.Jobs().Info(s.machine.RunOf("ctr"))
		if silence := time.Duration(info.GetMembers()[0].GetSinceHeardNs()); silence != pulseInterval {
			t.Errorf("after an hour of suspension the worker is silent for %v, want %v", silence, pulseInterval)
		}
	})
}

// What a busy machine does takes nothing off a silence.
func TestAPulse(t *testing.T) {
	start := time.Unix(1000, 0)
	for late, want := range map[time.Duration]time.Duration{
		-pulseInterval: 0, 0: 0, pulseLate: 0, pulseLate + 1: pulseLate + 1, time.Hour: time.Hour,
	} {
		p := pulse{last: start}
		now := start.Add(pulseInterval + late)
		if got := p.beat(now); got != want || p.last != now {
			t.Errorf("a beat that is %v late lost %v, want %v", late, got, want)
		}
	}
	if got := new(pulse).beat(start); got != 0 {
		t.Errorf("before the first beat %v was lost", got)
	}
}

// A scheduler that was suspended has received no heartbeat, but that says nothing about the servers.
// Otherwise it would rebuild their replicas, and forget the decommissioned ones, before their next
// heartbeat.
func TestASuspendedSchedulerTakesNoServerForDead(t *testing.T) {
	const asleep = time.Hour
	s, _, g := movingCluster(t)
	g.report(t, s, "a", "b", "c", "d")
	dead := func() (n int) {
		for _, id := range []rowraft.NodeID{"a", "b", "c", "d", "e"} { // e has said nothing yet
			if l := s.liveness(id); s.isDead(&l) {
				n++
			}
		}
		return n
	}
	silence(s, asleep)
	s.soft.mu.Lock()
	for id, b := range s.soft.beats {
		b.at = b.at.Add(-asleep)
		s.soft.beats[id] = b
	}
	s.soft.mu.Unlock()
	if n := dead(); n != 5 {
		t.Fatalf("%d are dead before it knows, want 5", n)
	}
	standStill(s, 0)
	if n := dead(); n != 5 {
		t.Errorf("%d are dead after a beat in time, want 5", n)
	}
	standStill(s, asleep)
	if n := dead(); n != 0 {
		t.Errorf("%d are dead, of whom it could hear nothing", n)
	}
	heartbeat(t, s, "a")
	standStill(s, asleep)
	if l := s.liveness("a"); l.beat.at.After(time.Now()) {
		t.Errorf("the heartbeat of a is of the future: %v", l.beat.at)
	}
}

func TestADeadServerThatIsBackKeepsItsReplicas(t *testing.T) {
	s, l, g := movingCluster(t)
	l.elect(s.opts.Self.ID)
	g.report(t, s, "a", "b")
	silence(s, DefaultReplaceAfter) // c and d are dead: there is nowhere to go
	if err := s.placeLoop.round(t.Context(), &placeMemory{}); err != nil {
		t.Fatal(err)
	}
	ops := s.machine.Operations()
	if len(ops) != 1 || ops[0].Node != "c" || ops[0].State != meta.OpRunning {
		t.Fatalf("operations %+v", ops)
	}
	st := &rowraftv1.StatusReply{}
	s.placeLoop.addOperations(s.view.Map(), st)
	if w := st.Operations[0].GetWaitingFor(); !strings.Contains(w, "a server that can take a replica") {
		t.Errorf("it waits for %q", w)
	}
	g.report(t, s, "a", "b", "c")
	if err := s.placeLoop.round(t.Context(), &placeMemory{}); err != nil {
		t.Fatal(err)
	}
	if ops := s.machine.Operations(); ops[0].State != meta.OpCancelled || len(ops) != 1 {
		t.Errorf("operations %+v", ops)
	}
	if sh := s.view.Map().Shards[0]; on(sh.Replicas) != "abc" {
		t.Errorf("%+v", sh)
	}
}

func TestADrainedServerLeadsNothing(t *testing.T) {
	s, l, g := movingCluster(t)
	g.report(t, s, "a", "b", "c", "d")
	op := change(t, s, &rowraftv1.ChangeNodeRequest{Node: "a", Intent: rowraftv1.NodeIntent_NODE_INTENT_DRAIN}).Operation
	if op.GetTotal() != 1 {
		t.Errorf("%v, want one lead to hand over", op)
	}
	up := []string{"a", "b", "c", "d"}
	placeTurns(t, s, l, g, up, nil, func() bool { return s.ended(op.Id) })
	if g.leader == "a" || on(s.view.Map().Shards[0].Replicas) != "abc" {
		t.Errorf("led by %s, %+v", g.leader, s.view.Map().Shards[0])
	}
	g.mu.Lock()
	g.leader = "a" // an election
	g.mu.Unlock()
	placeTurns(t, s, l, g, up, nil, func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.leader != "a" })
}

// What could cost a majority is refused without force, and changes nothing.
func TestRisksAreTold(t *testing.T) {
	s, _, g := movingCluster(t)
	const drain, gone = rowraftv1.NodeIntent_NODE_INTENT_DRAIN, rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION
	g.report(t, s, "a", "b", "d") // c is silent
	for _, tc := range []struct {
		name   string
		req    *rowraftv1.ChangeNodeRequest
		risk   string
		intent clustermap.Intent
	}{
		{name: "a dry run changes nothing", req: &rowraftv1.ChangeNodeRequest{Node: "d", Intent: drain, DryRun: true}},
		{name: "a second one of three", req: &rowraftv1.ChangeNodeRequest{Node: "a", Intent: drain},
			risk: "Shard 0 would have no majority without a"},
		{name: "with force in a dry run", req: &rowraftv1.ChangeNodeRequest{Node: "a", Intent: drain, Force: true,
			DryRun: true}, risk: "no majority"},
		{name: "with force", req: &rowraftv1.ChangeNodeRequest{Node: "a", Intent: drain, Force: true}, risk: "no majority",
			intent: clustermap.Drain},
		{name: "one without replicas", req: &rowraftv1.ChangeNodeRequest{Node: "d", Intent: gone},
			intent: clustermap.Decommission},
		{name: "one whose replicas no server can receive", req: &rowraftv1.ChangeNodeRequest{Node: "b", Intent: gone},
			risk: "shard 0 cannot move"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			version := s.view.Map().Version
			reply := change(t, s, tc.req)
			n, _ := s.view.Map().Node(rowraft.NodeID(tc.req.Node))
			if risks := strings.Join(reply.Risks, " "); !strings.Contains(risks, tc.risk) || tc.risk == "" && risks != "" {
				t.Errorf("risks %q, want %q", risks, tc.risk)
			}
			if n.Intent != tc.intent || reply.Accepted != (tc.risk == "" || tc.req.Force) {
				t.Errorf("accepted: %v, it is %s", reply.Accepted, meta.IntentName(n.Intent))
			}
			if changed := s.view.Map().Version != version; changed != (tc.intent != clustermap.Serve) {
				t.Errorf("the map changed: %v", changed)
			}
		})
	}
}

// A wiped disk comes back as a new server under the old name: the old one's replicas are
// rebuilt at once, and it is forgotten.
func TestAWipedServerTakesItsName(t *testing.T) {
	s, l, g := movingCluster(t)
	old, _ := s.view.Map().Node("c")
	fresh := &rowraftv1.RegisterNodeRequest{ClusterId: s.clusterID(), FormatVersion: uint32(wire.NewestVersion()),
		Node: &rowraftv1.Node{Id: "c2", Name: "c", Addr: old.Addr, PeerAddr: old.PeerAddr}}
	g.report(t, s, "a", "b", "c", "d")
	_, err := s.RegisterNode(t.Context(), fresh)
	testutil.WantCode(t, err, rowraft.CodeAlreadyExists, "has the name c already") // who is up keeps its name
	l.elect(s.opts.Self.ID)
	g.report(t, s, "a", "b", "d")
	silence(s, DownAfter)
	elsewhere := &rowraftv1.RegisterNodeRequest{ClusterId: s.clusterID(), FormatVersion: uint32(wire.NewestVersion()),
		Node: &rowraftv1.Node{Id: "c2", Name: "c", Addr: "elsewhere:1", PeerAddr: "elsewhere:2"}}
	_, err = s.RegisterNode(t.Context(), elsewhere)
	testutil.WantCode(t, err, rowraft.CodeAlreadyExists) // who may come back, too
	if _, err := s.RegisterNode(t.Context(), fresh); err != nil {
		t.Fatal(err)
	}
	if n, _ := s.view.Map().Node("c2"); n.Name != "c" || n.Intent != clustermap.Serve {
		t.Errorf("%+v", n)
	}
	if n, _ := s.view.Map().Node("c"); n.Name != "c-c" || n.Intent != clustermap.Decommission {
		t.Errorf("%+v", n)
	}
	placeTurns(t, s, l, g, []string{"a", "b", "d"}, func() { silence(s, DownAfter) },
		func() bool { _, known := s.view.Map().Node("c"); return !known })
	if sh := s.view.Map().Shards[0]; on(sh.Replicas) != "abd" || len(sh.Removed) != 0 {
		t.Errorf("%+v", sh)
	}
}

func TestThePlanCountsItsShards(t *testing.T) {
	for want, shards := range map[string][]rowraft.ShardID{"shard 2": {2}, "shards 1, 3": {1, 3}} {
		if got := list(shards); got != want {
			t.Errorf("%v: %q, want %q", shards, got, want)
		}
	}
}
