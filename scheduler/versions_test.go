package scheduler

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/wire"
)

func cmdRaise(version uint32) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_RaiseVersion{RaiseVersion: &rowraftv1.MetaRaiseVersion{FormatVersion: version}}}
}

// invent adds a version to those that this binary understands, until the test ends.
func invent(t *testing.T) rowraft.FormatVersion {
	next, forget := wire.InventVersion()
	t.Cleanup(forget)
	return next
}

// TestGoldenVersions reads an entry and a snapshot that testdata/golden.py wrote by hand
// from docs/formats/metadata.md.
func TestGoldenVersions(t *testing.T) {
	entry, err := os.ReadFile(filepath.Join("testdata", "raise_version.entry"))
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile(filepath.Join("testdata", "version.snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(NewView())
	if err := m.state.init("c-1"); err != nil {
		t.Fatal(err)
	}
	if result := m.Apply(3, entry); result != nil {
		t.Fatalf("Apply: %v", result)
	}
	if got := m.view.Map(); got.FormatVersion != 2 {
		t.Errorf("the map is at %d, want 2", got.FormatVersion)
	}
	if got := snapshotBytes(t, m); !bytes.Equal(got, golden) {
		t.Errorf("the snapshot encodes to %x, want %x", got, golden)
	}
	again := newMachine(NewView())
	if err := again.Restore(bytes.NewReader(golden)); err != nil || !bytes.Equal(snapshotBytes(t, again), golden) {
		t.Errorf("the snapshot is read and written otherwise (%v)", err)
	}
	if again, err := encodeCommand(cmdRaise(2)); err != nil || !bytes.Equal(again, entry) {
		t.Errorf("the command encodes to %x (%v), want %x", again, err, entry)
	}
}

func TestVersionsNeverGoDown(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	for _, c := range []struct{ raise, want uint32 }{{3, 3}, {2, 3}, {4, 4}, {0, 4}} {
		if err := a.do(cmdRaise(c.raise)); err != nil {
			t.Fatal(err)
		}
		if m := a.m.view.Map(); uint32(m.FormatVersion) != c.want {
			t.Errorf("after %d the map is at %d, want %d", c.raise, m.FormatVersion, c.want)
		}
	}
	if _, refused := a.do(cmdRaise(1 << 20)).(error); !refused {
		t.Error("a version that fits no entry is taken")
	}
}

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
		ClusterId: s.clusterID(), Node: &rowraftv1.Node{Id: id, Name: id, Addr: id + ":1", PeerAddr: id + ":2"}, FormatVersion: uint32(v),
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
		before := l.index
		_, err := s.proposeVersion(t.Context(), next, cmdIncarnation())
		if rowraft.CodeOf(err) != rowraft.CodeVersionTooNew || !strings.Contains(err.Error(), "upgrade it") || !strings.Contains(err.Error(), []string{"n0", "n1", "n2"}[i]) || l.index != before {
			t.Errorf("with %d of 3 upgraded a command of version %d: %v, and %d entries", i, next, err, l.index-before)
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
	if _, err := s.proposeVersion(t.Context(), next, cmdIncarnation()); err != nil {
		t.Error(err)
	}
	if err := sayVersion(t, s, "n1", wire.FirstVersion); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(err.Error(), "upgrade") {
		t.Errorf("a server that the cluster has left behind: %v", err)
	}
	if err := sayVersion(t, s, "n9", 0); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a new server that sends no version: %v", err)
	}
}

// A member that understands the first version only stops at an entry, and refuses a
// snapshot, of the second; one that understands both takes them.
func TestAMemberStopsAtWhatItDoesNotUnderstand(t *testing.T) {
	next := wire.NewestVersion() + 1
	entry, err := encodeFrame(entryMagic, next, cmdInit("c"))
	if err != nil {
		t.Fatal(err)
	}
	of := newMachine(NewView())
	if err := of.state.init("c"); err != nil {
		t.Fatal(err)
	}
	state, err := of.state.toProto()
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := encodeFrame(snapshotMagic, next, state)
	if err != nil {
		t.Fatal(err)
	}
	old := newMachine(NewView())
	if fatal, ok := old.Apply(1, entry).(*raftstore.FatalError); !ok || rowraft.CodeOf(fatal) != rowraft.CodeVersionTooNew || old.view.Map() != nil {
		t.Errorf("an entry of version %d: %v, want a fatal VersionTooNew, and no map", next, fatal)
	}
	if err := old.Restore(bytes.NewReader(snapshot)); rowraft.CodeOf(err) != rowraft.CodeVersionTooNew {
		t.Errorf("a snapshot of version %d: %v, want VersionTooNew", next, err)
	}
	invent(t)
	m := newMachine(NewView())
	if got := m.Apply(1, entry); got != nil {
		t.Errorf("an entry of version %d that it understands: %v", next, got)
	}
	if err := m.Restore(bytes.NewReader(snapshot)); err != nil {
		t.Errorf("a snapshot of version %d that it understands: %v", next, err)
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
