package scheduler

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

func cmdRaise(apply, metadata uint32) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_RaiseVersions{RaiseVersions: &rowraftv1.MetaRaiseVersions{ApplyVersion: apply, MetadataVersion: metadata}}}
}

// TestGoldenVersions reads an entry and a snapshot of version 8 that testdata/golden.py
// wrote by hand from docs/formats/metadata.md.
func TestGoldenVersions(t *testing.T) {
	entry, err := os.ReadFile(filepath.Join("testdata", "raise_versions.entry"))
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile(filepath.Join("testdata", "versions.snapshot"))
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
	if got := m.view.Map(); got.ApplyVersion != 3 || got.MetadataVersion != 8 {
		t.Errorf("the map is at %d and %d, want 3 and 8", got.ApplyVersion, got.MetadataVersion)
	}
	if got := snapshotBytes(t, m); !bytes.Equal(got, golden) {
		t.Errorf("the snapshot encodes to %x, want %x", got, golden)
	}
	again := newMachine(NewView())
	if err := again.Restore(bytes.NewReader(golden)); err != nil || snapshotDiffers(t, again, golden) {
		t.Errorf("the snapshot is read and written otherwise (%v)", err)
	}
	if again, err := encodeCommand(cmdRaise(3, 8)); err != nil || !bytes.Equal(again, entry) {
		t.Errorf("the command encodes to %x (%v), want %x", again, err, entry)
	}
}

func snapshotDiffers(t *testing.T, m *machine, want []byte) bool {
	return !bytes.Equal(snapshotBytes(t, m), want)
}

func TestVersionsNeverGoDown(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	for _, c := range []struct{ apply, metadata, wantApply, wantMetadata uint32 }{{3, 8, 3, 8}, {2, 9, 3, 9}, {4, 7, 4, 9}, {0, 0, 4, 9}} {
		if err := a.do(cmdRaise(c.apply, c.metadata)); err != nil {
			t.Fatal(err)
		}
		if m := a.m.view.Map(); uint32(m.ApplyVersion) != c.wantApply || m.MetadataVersion != c.wantMetadata {
			t.Errorf("after %d and %d the map is at %d and %d", c.apply, c.metadata, m.ApplyVersion, m.MetadataVersion)
		}
	}
	if _, refused := a.do(cmdRaise(1<<20, 8)).(error); !refused {
		t.Error("a version that fits no entry is taken")
	}
}

// A leader that has not heard itself yet counts as what it is about to say.
func TestALeaderCountsAsWhatItAnnounces(t *testing.T) {
	s, _ := newLeader(t, 1, 1)
	reconcile(t, s)
	for _, want := range []Versions{OwnVersions(), {Apply: 2, Metadata: 6}} {
		s.opts.Announce = want
		if got, known := s.versionsOf(s.opts.Self.ID); !known || got != want {
			t.Errorf("it counts as %v, %v; want %v", got, known, want)
		}
	}
	if low, _, _ := s.lowest(s.view.Map()); low.Metadata != 6 {
		t.Errorf("the metadata group understands %v, want metadata 6", low)
	}
}

// Versions are raised when every server that counts has said what it understands, to the
// lowest of it.
func TestVersionsFollowTheServers(t *testing.T) {
	s, _ := newLeader(t, 3, 1)
	say := func(id string, apply, metadata uint32) error {
		t.Helper()
		_, err := s.RegisterNode(t.Context(), &rowraftv1.RegisterNodeRequest{
			ClusterId: s.clusterID(), Node: &rowraftv1.Node{Id: id, Name: id, Addr: id + ":1", PeerAddr: id + ":2"}, ApplyVersion: apply, MetadataVersion: metadata,
		})
		return err
	}
	for _, id := range []string{"n0", "n1", "n2"} {
		if err := say(id, 2, 7); err != nil { // n0, n1 and n2 are no members of the metadata group
			t.Fatal(err)
		}
	}
	reconcile(t, s)
	if m := s.view.Map(); m.ApplyVersion != 2 || m.MetadataVersion != MetadataVersion || len(m.Shards) != 1 {
		t.Errorf("the map is at %d and %d with %d shards", m.ApplyVersion, m.MetadataVersion, len(m.Shards))
	}
	if err := s.mayApply("it", 3); rowraft.CodeOf(err) != rowraft.CodeVersionTooNew || !strings.Contains(err.Error(), "n0") && !strings.Contains(err.Error(), "n1") && !strings.Contains(err.Error(), "n2") {
		t.Errorf("version 3 is refused with %v", err)
	}
	for i, id := range []string{"n0", "n1", "n2"} {
		if want := uint16(2); s.view.Map().ApplyVersion != want {
			t.Errorf("with %d of 3 upgraded the map is at %d", i, s.view.Map().ApplyVersion)
		}
		if err := say(id, wire.EntryVersion, MetadataVersion); err != nil {
			t.Fatal(err)
		}
		_ = s.reconcile(t.Context()) // it cannot reach the shard
	}
	if m := s.view.Map(); m.ApplyVersion != wire.EntryVersion {
		t.Errorf("with all upgraded the map is at %d", m.ApplyVersion)
	}
	if err := s.mayApply("it", 3); err != nil {
		t.Error(err)
	}
	if err := say("n1", 2, 7); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a server that the cluster has left behind: %v", err)
	}
	if err := say("n9", 0, 0); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a new server of an old binary: %v", err)
	}
}

// TestWhoHasNotSaidHoldsNobodyBack: a leader that was elected a moment ago has not heard all
// servers. What needs their word is to come again; it must not be refused for good.
func TestWhoHasNotSaidHoldsNobodyBack(t *testing.T) {
	s, l := newLeader(t, 2, 1)
	versions := map[string]uint32{"n0": wire.EntryVersion, "n1": 2}
	for id, apply := range versions {
		if _, err := s.RegisterNode(t.Context(), &rowraftv1.RegisterNodeRequest{
			ClusterId: s.clusterID(), Node: &rowraftv1.Node{Id: id, Name: id, Addr: id + ":1", PeerAddr: id + ":2"}, ApplyVersion: apply, MetadataVersion: MetadataVersion,
		}); err != nil {
			t.Fatal(err)
		}
	}
	reconcile(t, s)
	heldBack := func(id string) string {
		t.Helper()
		beat := &rowraftv1.HeartbeatRequest{ClusterId: s.clusterID(), NodeId: id, ApplyVersion: versions[id], MetadataVersion: MetadataVersion}
		if _, err := s.Heartbeat(t.Context(), beat); err != nil {
			t.Fatal(err)
		}
		_ = s.reconcile(t.Context()) // it cannot reach the shard
		reply, err := s.Heartbeat(t.Context(), beat)
		if err != nil {
			t.Fatal(err)
		}
		return reply.GetHeldBack()
	}
	const old = "server n1 understands log entries up to version 2"
	if got := heldBack("n0"); !strings.Contains(got, old) {
		t.Errorf("with n1 of an old binary: held back by %q", got)
	}
	l.elect(s.opts.Self.ID)
	if got := heldBack("n0"); got != "" {
		t.Errorf("before n1 has said anything to the next leader: held back by %q", got)
	}
	if got := heldBack("n1"); !strings.Contains(got, old) {
		t.Errorf("when it has: held back by %q", got)
	}
}

// A leader that has not heard of a server waits with what it does not know; a member of
// the metadata group that is older than a command stops it before it is logged.
func TestCommandsWaitForTheMembers(t *testing.T) {
	s, l := newLeader(t, 1, 1)
	self := string(s.opts.Self.ID)
	say := func(metadata uint32) {
		t.Helper()
		if _, err := s.RegisterNode(t.Context(), &rowraftv1.RegisterNodeRequest{
			ClusterId: s.clusterID(), Node: &rowraftv1.Node{Id: self, Addr: "a:1", PeerAddr: "a:2"}, ApplyVersion: 3, MetadataVersion: metadata,
		}); err != nil {
			t.Fatal(err)
		}
	}
	say(7)
	before := l.index
	if _, err := s.propose(t.Context(), cmdRaise(3, 8)); rowraft.CodeOf(err) != rowraft.CodeVersionTooNew || l.index != before {
		t.Errorf("a command of version 8 with a member that knows 7: %v, and %d entries", err, l.index-before)
	}
	if _, err := s.propose(t.Context(), cmdStopJob(id16(1))); rowraft.CodeOf(err) == rowraft.CodeVersionTooNew {
		t.Errorf("a command of version 7: %v", err)
	}
	say(8)
	if _, err := s.propose(t.Context(), cmdRaise(3, 8)); err != nil {
		t.Error(err)
	}
}
