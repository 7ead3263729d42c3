package meta

import (
	"bytes"
	"testing"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/wire"
)

func cmdRaise(version uint32) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_RaiseVersion{
		RaiseVersion: &rowraftv1.MetaRaiseVersion{FormatVersion: version}}}
}

// TestGoldenVersions reads an entry and a snapshot that testdata/golden.py wrote by hand
// from docs/formats/metadata.md.
func TestGoldenVersions(t *testing.T) {
	entry := goldenCommand(t, "raise_version", cmdRaise(2))
	m := New(NewView())
	if err := m.state.init("c-1"); err != nil {
		t.Fatal(err)
	}
	if result := m.Apply(3, entry); result != nil {
		t.Fatalf("Apply: %v", result)
	}
	if got := m.view.Map(); got.FormatVersion != 2 {
		t.Errorf("the map is at %d, want 2", got.FormatVersion)
	}
	wantSnapshot(t, m, "version")
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

// A member that understands the first version only stops at an entry, and refuses a
// snapshot, of the second; one that understands both takes them.
func TestAMemberStopsAtWhatItDoesNotUnderstand(t *testing.T) {
	next := wire.NewestVersion() + 1
	entry, err := encodeFrame(entryMagic, next, cmdInit("c"))
	if err != nil {
		t.Fatal(err)
	}
	of := New(NewView())
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
	old := New(NewView())
	if fatal, ok := old.Apply(1, entry).(*raftstore.FatalError); !ok ||
		rowraft.CodeOf(fatal) != rowraft.CodeVersionTooNew || old.view.Map() != nil {
		t.Errorf("an entry of version %d: %v, want a fatal VersionTooNew, and no map", next, fatal)
	}
	if err := old.Restore(bytes.NewReader(snapshot)); rowraft.CodeOf(err) != rowraft.CodeVersionTooNew {
		t.Errorf("a snapshot of version %d: %v, want VersionTooNew", next, err)
	}
	invent(t)
	m := New(NewView())
	if got := m.Apply(1, entry); got != nil {
		t.Errorf("an entry of version %d that it understands: %v", next, got)
	}
	if err := m.Restore(bytes.NewReader(snapshot)); err != nil {
		t.Errorf("a snapshot of version %d that it understands: %v", next, err)
	}
}

// invent adds a version to those that this binary understands, until the test ends.
func invent(t *testing.T) rowraft.FormatVersion {
	next, forget := wire.InventVersion()
	t.Cleanup(forget)
	return next
}
