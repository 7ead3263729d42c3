package scheduler

import (
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
	"github.com/rowraft/rowraft/wire"
)

// A leader that has not sent its version to itself yet counts as what it announces.
func TestALeaderCountsAsWhatItAnnounces(t *testing.T) {
	next := invent(t)
	s, _ := newLeader(t, 1, 1)
	reconcile(t, s)
	for announce, want := range map[rowraft.FormatVersion]rowraft.FormatVersion{0: next, 1: 1} {
		s.opts.Announce = announce
		if got, known := s.versionOf(s.opts.Self.ID); !known || got != want {
			t.Errorf("announcing %d it counts as %v, %v; want %v", announce, got, known, want)
		}
	}
	s.opts.Announce = 1
	if low, _, _ := s.lowest(s.view.Map()); low != 1 {
		t.Errorf("the cluster understands %v, want 1", low)
	}
}

// sayVersion registers a server that understands formats up to a version.
func sayVersion(t *testing.T, s *Scheduler, id string, v rowraft.FormatVersion) error {
	t.Helper()
	_, err := s.RegisterNode(t.Context(), &rowraftv1.RegisterNodeRequest{
		ClusterId: s.clusterID(), Node: &rowraftv1.Node{Id: id, Name: id, Addr: id + ":1", PeerAddr: id + ":2"},
		FormatVersion: uint32(v),
	})
	return err
}

// The version rises when every server that counts has sent what it understands, to the
// lowest of it. Until then nothing of a later version is logged; then a server
// that understands less is refused.
func TestVersionsFollowTheServers(t *testing.T) {
	next := invent(t)
	s, l := newLeader(t, 3, 1)
	for _, id := range []string{"n0", "n1", "n2"} {
		if err := sayVersion(t, s, id, wire.FirstVersion); err != nil {
			t.Fatal(err)
		}
	}
	reconcile(t, s)
	if m := s.view.Map(); FormatVersion(m) != wire.FirstVersion || len(m.Shards) != 1 {
		t.Errorf("the map is at %d with %d shards", m.FormatVersion, len(m.Shards))
	}
	for i, id := range []string{"n0", "n1", "n2"} {
		_, err := s.entryOf(next, metacmd.IssueIncarnation())
		if rowraft.CodeOf(err) != rowraft.CodeVersionTooNew || !strings.Contains(err.Error(), "upgrade it") ||
			!strings.Contains(err.Error(), []string{"n0", "n1", "n2"}[i]) {
			t.Errorf("with %d of 3 upgraded a command of version %d: %v", i, next, err)
		}
		if got := FormatVersion(s.view.Map()); got != wire.FirstVersion {
			t.Errorf("with %d of 3 upgraded the map is at %d", i, got)
		}
		if err := sayVersion(t, s, id, next); err != nil {
			t.Fatal(err)
		}
		_ = s.reconcile(t.Context()) // it cannot reach the shard
	}
	if got := FormatVersion(s.view.Map()); got != next {
		t.Errorf("with all upgraded the map is at %d", got)
	}
	if entry, err := s.entryOf(next, metacmd.IssueIncarnation()); err != nil {
		t.Error(err)
	} else if result, err := l.Propose(t.Context(), entry); err != nil || result != rowraft.Incarnation(1) {
		t.Errorf("a command of version %d: %v, %v; want incarnation 1", next, result, err)
	}
	if err := sayVersion(t, s, "n1", wire.FirstVersion); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
		!strings.Contains(err.Error(), "upgrade") {
		t.Errorf("a server that the cluster has left behind: %v", err)
	}
	if err := sayVersion(t, s, "n9", 0); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a new server that sends no version: %v", err)
	}
}

// A leader that was elected a moment ago has not heard all servers. What needs their
// word is tried again; it must not be refused for good.
func TestASilentServerHoldsNothingBackForGood(t *testing.T) {
	next := invent(t)
	s, l := newLeader(t, 2, 1)
	versions := map[string]rowraft.FormatVersion{"n0": next, "n1": wire.FirstVersion}
	for id, v := range versions {
		if err := sayVersion(t, s, id, v); err != nil {
			t.Fatal(err)
		}
	}
	reconcile(t, s)
	oldest := func(id string) string {
		t.Helper()
		beat := &rowraftv1.HeartbeatRequest{ClusterId: s.clusterID(), NodeId: id, FormatVersion: uint32(versions[id])}
		if _, err := s.Heartbeat(t.Context(), beat); err != nil {
			t.Fatal(err)
		}
		_ = s.reconcile(t.Context()) // it cannot reach the shard
		reply, err := s.Heartbeat(t.Context(), beat)
		if err != nil {
			t.Fatal(err)
		}
		return reply.GetOldestServer()
	}
	const old = "server n1 understands formats up to version 1"
	if got := oldest("n0"); !strings.Contains(got, old) {
		t.Errorf("with n1 of an old binary the oldest is %q", got)
	}
	l.elect(s.opts.Self.ID)
	if got := oldest("n0"); got != "" {
		t.Errorf("before n1 has sent anything to the next leader the oldest is %q", got)
	}
	if err := s.mayLog(next); rowraft.CodeOf(err) != rowraft.CodeStarting || !strings.Contains(err.Error(), "n1") {
		t.Errorf("before n1 has sent anything to the next leader: %v, want Starting", err)
	}
	if got := oldest("n1"); !strings.Contains(got, old) {
		t.Errorf("when it has the oldest is %q", got)
	}
	if err := s.mayLog(next); rowraft.CodeOf(err) != rowraft.CodeVersionTooNew {
		t.Errorf("when it has: %v, want VersionTooNew", err)
	}
}
