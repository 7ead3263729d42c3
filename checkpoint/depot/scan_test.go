package depot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/vfs"
)

// TestBrokenCheckpointsAreFound by the files that lie there and by what a verification has left, also
// below a delta; directories of others hide none.
func TestBrokenCheckpointsAreFound(t *testing.T) {
	root := t.TempDir()
	d := NewDir(vfs.OS, root)
	whole := putWhole(t, d, "whole", nil)
	putWhole(t, d, "delta", whole)
	missing := putWhole(t, d, "missing", nil)
	putWhole(t, d, "on-missing", missing)
	putWhole(t, d, "short", nil)
	putWhole(t, d, "damaged", nil)
	putWhole(t, d, "verified", nil)
	for file, content := range map[string]string{"damaged/" + damagedFile: "slot 7 has another digest\n", "verified/" +
		verifiedFile: "id\n"} {
		if err := d.Put(t.Context(), file, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	rows := func(name string) string {
		f, err := filepath.Glob(filepath.Join(root, name, "*.rows"))
		if err != nil || len(f) == 0 {
			t.Fatal(f, err)
		}
		return f[0]
	}
	if err := os.Remove(rows("missing")); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(rows("short"), 0); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"lost+found", ".snapshot"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0); err != nil {
			t.Fatal(err)
		}
	}
	found, err := Scan(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"whole": "", "delta": "", "verified": "", "missing": "is missing",
		"on-missing": "stands on missing", "short": "has 0 bytes", "damaged": "slot 7"}
	if len(found) != len(want) {
		t.Errorf("%d checkpoints, want %d", len(found), len(want))
	}
	for _, f := range found {
		switch says, ok := want[f.Name]; {
		case !ok:
			t.Errorf("%s is no checkpoint", f.Name)
		case says == "" && !f.Usable():
			t.Errorf("%s: %v", f.Name, f.Err)
		case says != "" && (f.Usable() || !strings.Contains(f.Err.Error(), says)):
			t.Errorf("%s: %v, want %q", f.Name, f.Err, says)
		}
		if f.Verified != (f.Name == "verified") {
			t.Errorf("%s is verified: %v", f.Name, f.Verified)
		}
	}
}

// TestVerifyLeavesWhatItFound for Scan.
func TestVerifyLeavesWhatItFound(t *testing.T) {
	d := NewDir(vfs.OS, t.TempDir())
	putWhole(t, d, "a", nil) // its files are no streams
	if _, _, err := Verify(t.Context(), d, "a", nil); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Fatalf("%v, want CodeCorrupt", err)
	}
	found, err := Scan(t.Context(), d)
	if err != nil || len(found) != 1 || found[0].Usable() || !strings.Contains(found[0].Err.Error(), "verification") {
		t.Errorf("%v, %v; want a checkpoint that is known to be damaged", found, err)
	}
}

// putWhole puts a checkpoint whose files lie there, and returns what a delta to it names.
func putWhole(t *testing.T, d Depot, name string, parent *checkpoint.Parent) *checkpoint.Parent {
	t.Helper()
	m := &checkpoint.Manifest{ID: uuid.NewString(), Created: time.Unix(1e9, 0), Cluster: "c", Epoch: 1, HashVers: 1,
		Slots: rowraft.DefaultSlots, Parent: parent}
	m.Shards = []checkpoint.ShardFile{{Stream: checkpoint.File{Name: "shard-0000.rows", Bytes: 4},
		Sums: checkpoint.File{Name: "shard-0000.sums", Bytes: 4}}}
	for slot := range rowraft.DefaultSlots {
		m.Shards[0].Slots = append(m.Shards[0].Slots, rowraft.Slot(slot))
	}
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for file, b := range map[string][]byte{"/shard-0000.rows": []byte("rows"), "/shard-0000.sums": []byte("sums"),
		"/MANIFEST": b} {
		if err := d.Put(t.Context(), name+file, b); err != nil {
			t.Fatal(err)
		}
	}
	return &checkpoint.Parent{Name: name, ID: m.ID}
}
