package scheduler

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/wire"
)

// voter and learner are members whose replica is called as their node.
func voter(node string) raftstore.MemberStatus {
	return raftstore.MemberStatus{Member: raftstore.Member{Replica: rowraft.ReplicaID(node), Node: rowraft.NodeID(node)},
		Voter: true, CaughtUp: true}
}

func learner(node string, caughtUp bool) raftstore.MemberStatus {
	m := voter(node)
	m.Voter, m.CaughtUp = false, caughtUp
	return m
}

func TestNextSeat(t *testing.T) {
	for _, tc := range []struct {
		name     string
		seats    int
		members  []raftstore.MemberStatus
		lost     string
		standbys []rowraft.NodeID
		want     seatChange
	}{
		{"no member is lost: standbys wait", 3, []raftstore.MemberStatus{voter("a"), voter("b"), voter("c")}, "",
			[]rowraft.NodeID{"d"}, seatChange{}},
		{"there is no standby", 3, []raftstore.MemberStatus{voter("a"), voter("b"), voter("c")}, "c", nil, seatChange{}},
		{"the first standby comes", 3, []raftstore.MemberStatus{voter("a"), voter("b"), voter("c")}, "c",
			[]rowraft.NodeID{"d", "e"}, seatChange{add: "d"}},
		{"it catches up", 3, []raftstore.MemberStatus{voter("a"), voter("b"), voter("c"), learner("d", false)}, "c",
			[]rowraft.NodeID{"d", "e"}, seatChange{}},
		{"it has caught up", 3, []raftstore.MemberStatus{voter("a"), voter("b"), voter("c"), learner("d", true)}, "c",
			[]rowraft.NodeID{"d", "e"}, seatChange{promote: "d"}},
		{"it is gone before", 3, []raftstore.MemberStatus{voter("a"), voter("b"), voter("c"), learner("d", false)}, "c",
			[]rowraft.NodeID{"e"}, seatChange{remove: "d"}},
		{"the lost one leaves", 3, []raftstore.MemberStatus{voter("a"), voter("b"), voter("c"), voter("d")}, "c",
			[]rowraft.NodeID{"e"}, seatChange{remove: "c"}},
		{"the lost one is back before the standby votes", 3, []raftstore.MemberStatus{voter("a"), voter("b"), voter("c"),
			learner("d", true)}, "", []rowraft.NodeID{"d"}, seatChange{remove: "d"}},
		{"the lost one is back after the standby votes", 3, []raftstore.MemberStatus{voter("a"), voter("b"), voter("c"),
			voter("d")}, "", []rowraft.NodeID{"e"}, seatChange{}},
		{"a seat is empty", 3, []raftstore.MemberStatus{voter("a"), voter("b")}, "", []rowraft.NodeID{"d"},
			seatChange{add: "d"}},
	} {
		lost := func(id rowraft.NodeID) bool { return string(id) == tc.lost }
		if got := nextSeat(tc.seats, tc.members, lost, tc.standbys); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

// threeFounders is the leader of a group of three: this server, b and c.
func threeFounders(t *testing.T) (*Scheduler, *fakeLog) {
	t.Helper()
	dir, err := identity.Open(vfs.OS, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	self := dir.Identity().Node
	if err := dir.Join("cluster", []identity.Member{{Node: self, Addr: "self:1"}, {Node: "b", Name: "b", Addr: "b:1"},
		{Node: "c", Name: "c", Addr: "c:1"}}); err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Identity: dir, Self: clustermap.Node{Name: "a", Addr: "self:1", PeerAddr: "self:2",
		Scheduler: true}, Servers: 9, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.soft.clock = stillClock()
	l := &fakeLog{m: s.machine, self: self, leader: self, term: 1}
	for _, id := range []rowraft.NodeID{self, "b", "c"} {
		l.members = append(l.members, raftstore.MemberStatus{Member: raftstore.Member{Replica: identity.MetaReplicaOf(id),
			Node: id}, Voter: true, CaughtUp: true})
	}
	s.Attach(l)
	return s, l
}

// TestAStandbyTakesTheSeatOfALostMember: each step under a new leader, which knows nothing but
// the configuration, the map and who is up. The same for processes that are schedulers only.
func TestAStandbyTakesTheSeatOfALostMember(t *testing.T) {
	for name, only := range map[string]bool{"servers": false, "schedulers": true} {
		t.Run(name, func(t *testing.T) { testStandby(t, only) })
	}
}

func testStandby(t *testing.T, only bool) {
	s, l := threeFounders(t)
	reconcile(t, s)
	self := string(s.opts.Self.ID)
	for _, id := range []string{self, "b", "c", "d"} {
		if _, err := s.RegisterNode(t.Context(), &rowraftv1.RegisterNodeRequest{
			ClusterId: s.clusterID(), Node: &rowraftv1.Node{Id: id, Name: id, Addr: id + ":1", PeerAddr: id + ":2",
				Scheduler: true, NoShards: only}, FormatVersion: uint32(wire.NewestVersion()),
		}); err != nil {
			t.Fatal(err)
		}
	}
	beat := func(up ...string) {
		t.Helper()
		for _, id := range append(up, self) {
			if _, err := s.Heartbeat(t.Context(), &rowraftv1.HeartbeatRequest{ClusterId: s.clusterID(), NodeId: id,
				FormatVersion: uint32(wire.NewestVersion()), MetadataReplica: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
	turn := func(up ...string) {
		t.Helper()
		beat(up...)
		silence(s, DownAfter)
		if err := s.placeLoop.round(t.Context(), &placeMemory{}); err != nil {
			t.Fatal(err)
		}
		l.elect(s.opts.Self.ID)
		if _, _, err := s.leading(); err != nil {
			t.Fatal(err)
		}
	}
	turn("b", "c", "d")
	if n, _ := s.view.Map().Node("d"); l.seats() != 3 || n.Scheduler != only {
		t.Fatalf("members %v, on the map %+v: a standby has no seat by itself", l.members, n)
	}
	turn("b", "d") // c is down, and not decommissioned
	if l.seats() != 3 || !l.seat("c") {
		t.Fatalf("members %v: who may come back keeps its seat", l.members)
	}
	beat("b", "c", "d")
	change(t, s, &rowraftv1.ChangeNodeRequest{Node: "c", Intent: rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION})
	turn("b", "c", "d")
	if l.seats() != 3 || !l.seat("c") {
		t.Fatalf("members %v: who is up keeps its seat", l.members)
	}
	for range 5 {
		turn("b", "d")
	}
	if l.seats() != 3 || !l.seat("d") || l.seat("c") {
		t.Errorf("members %v: want d for c", l.members)
	}
	if want := []string{"add d", "promote d", "remove c"}; !slices.Equal(l.changes, want) {
		t.Errorf("the group went through %v, want %v", l.changes, want)
	}
	for _, n := range s.view.Map().Nodes {
		if !n.Scheduler || n.NoShards != only || n.ID == "c" {
			t.Errorf("on the map is %+v", n)
		}
	}
	_, err := s.RegisterNode(t.Context(), &rowraftv1.RegisterNodeRequest{ClusterId: s.clusterID(),
		FormatVersion: uint32(wire.NewestVersion()), Node: &rowraftv1.Node{Id: "c", Addr: "x:1", PeerAddr: "x:2"}})
	testutil.WantCode(t, err, rowraft.CodeIdentity, "was decommissioned")
}

// TestTheSeatOfAFounderThatNeverRegistered: its disk was lost as the cluster formed, and it came
// back under another id. The map does not know the old id, so no command can decommission it.
func TestTheSeatOfAFounderThatNeverRegistered(t *testing.T) {
	s, l := threeFounders(t)
	reconcile(t, s)
	self := string(s.opts.Self.ID)
	come := func(id, addr string) {
		t.Helper()
		if _, err := s.RegisterNode(t.Context(), &rowraftv1.RegisterNodeRequest{
			ClusterId: s.clusterID(), Node: &rowraftv1.Node{Id: id, Name: id, Addr: addr, PeerAddr: id + ":2"},
			FormatVersion: uint32(wire.NewestVersion()),
		}); err != nil {
			t.Fatal(err)
		}
	}
	turn := func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			if _, err := s.Heartbeat(t.Context(), &rowraftv1.HeartbeatRequest{ClusterId: s.clusterID(), NodeId: id,
				FormatVersion: uint32(wire.NewestVersion()), MetadataReplica: true}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.placeLoop.round(t.Context(), &placeMemory{}); err != nil {
			t.Fatal(err)
		}
	}
	come(self, "self:1")
	come("b", "b:1")
	come("d", "d:1")
	silence(s, DownAfter)
	turn(self, "b", "d")
	if len(l.changes) > 0 {
		t.Fatalf("the group went through %v: c may come yet", l.changes)
	}
	come("e", "c:1")
	for deadline := time.Now().Add(time.Minute); l.seat("c") && time.Now().Before(deadline); {
		turn(self, "b", "d", "e")
	}
	if l.seats() != 3 || l.seat("c") {
		t.Errorf("the group went through %v, want another one for c, at whose address e is", l.changes)
	}
}

// TestAStandbyOfAnOlderVersionGetsNoSeat: it could not read what the group logs.
func TestAStandbyOfAnOlderVersionGetsNoSeat(t *testing.T) {
	s, l := threeFounders(t)
	now, err := l.Members()
	if err != nil {
		t.Fatal(err)
	}
	m := &clustermap.Map{FormatVersion: 12, Nodes: []clustermap.Node{{ID: "d"}, {ID: "e"}}}
	if _, _, err := s.leading(); err != nil {
		t.Fatal(err)
	}
	for id, v := range map[rowraft.NodeID]rowraft.FormatVersion{"d": 11, "e": 12} {
		s.soft.versions[id] = v
		s.soft.heard(id, &rowraftv1.HeartbeatRequest{MetadataReplica: true})
	}
	if got := s.placeLoop.standbys(m, &now); !slices.Equal(got, []rowraft.NodeID{"e"}) {
		t.Errorf("standbys %v, want e", got)
	}
}

// Members of a fakeLog are its server alone, unless a test has named others.
func (l *fakeLog) Members() (raftstore.Membership, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.members == nil {
		return raftstore.Membership{Index: 1,
			Members: []raftstore.MemberStatus{{Member: raftstore.Member{Replica: identity.MetaReplicaOf(l.self), Node: l.self},
				Voter: true, CaughtUp: true}}}, nil
	}
	return raftstore.Membership{Index: rowraft.Index(1 + len(l.changes)), Members: slices.Clone(l.members)}, nil
}

func (l *fakeLog) seat(node rowraft.NodeID) bool {
	return slices.ContainsFunc(l.members, func(m raftstore.MemberStatus) bool { return m.Node == node && m.Voter })
}

func (l *fakeLog) seats() int {
	return count(l.members, func(m raftstore.MemberStatus) bool { return m.Voter })
}

// changed makes a change that was decided on the present members.
func (l *fakeLog) changed(prev rowraft.Index, what string, change func(i int),
	id rowraft.ReplicaID) (raftstore.Membership, error) {
	now, err := l.Members()
	if err != nil {
		return now, err
	}
	if now.Index != prev {
		return now, rowraft.Errorf(rowraft.CodePrecondition, "decided on %d, there is %d", prev, now.Index)
	}
	l.mu.Lock()
	i := slices.IndexFunc(l.members, func(m raftstore.MemberStatus) bool { return m.Replica == id })
	if i >= 0 {
		what += " " + string(l.members[i].Node)
	}
	change(i)
	l.changes = append(l.changes, what)
	l.mu.Unlock()
	return l.Members()
}

func (l *fakeLog) AddLearner(_ context.Context, m raftstore.Member, prev rowraft.Index) (raftstore.Membership, error) {
	return l.changed(prev, "add "+string(m.Node), func(int) {
		l.members = append(l.members,
			raftstore.MemberStatus{Member: m, CaughtUp: true})
	}, m.Replica)
}

func (l *fakeLog) Promote(_ context.Context, id rowraft.ReplicaID, prev rowraft.Index) (raftstore.Membership, error) {
	return l.changed(prev, "promote", func(i int) { l.members[i].Voter = true }, id)
}

func (l *fakeLog) Remove(_ context.Context, id rowraft.ReplicaID, prev rowraft.Index) (raftstore.Membership, error) {
	return l.changed(prev, "remove", func(i int) { l.members = slices.Delete(l.members, i, i+1) }, id)
}

// The seat of a member whose disk was rolled back is lost while its server is up, and it is no standby.
func TestTheSeatOfARolledBackMemberIsLost(t *testing.T) {
	s, _ := leaderOfShards(t, 1, "127.0.0.1:1")
	m := s.view.Map()
	id := m.Nodes[0].ID
	if id == s.opts.Self.ID {
		t.Fatalf("node %s is this one", id)
	}
	say := func(why string) {
		s.soft.heard(id, &rowraftv1.HeartbeatRequest{MetadataReplica: true, MetadataRolledBack: why})
	}
	if say(""); s.placeLoop.lostSeat(id) {
		t.Error("the seat of a member that is well is lost")
	}
	if say("rolled back"); !s.placeLoop.lostSeat(id) {
		t.Error("the seat of a member whose disk was rolled back is not lost")
	}
	l := s.liveness(id)
	if n, _ := m.Node(id); s.placeLoop.standby(&raftstore.Membership{}, &n, &l) {
		t.Error("it is a standby")
	}
}
