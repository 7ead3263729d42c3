package rowstore

import (
	"testing"

	"github.com/rowraft/rowraft"
)

// TestKeptCandidatesAreCounted: what a snapshot keeps of candidates that changed is
// memory of the table, and is gone once it has been read.
func TestKeptCandidatesAreCounted(t *testing.T) {
	schema := testSchema(rowraft.Sparse, rowraft.SGD, 1)
	schema.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 5}
	table := mustNew(t, schema)
	keys := someKeys(3, 5000)
	push := func() { mustUpdate(t, table, keys, make([]float32, len(keys))) }
	push()
	snap, err := table.BeginSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.End()
	if snap.Rows() != 0 || snap.Candidates() != len(keys) {
		t.Errorf("the snapshot has %d rows and %d candidates, want 0 and %d", snap.Rows(), snap.Candidates(), len(keys))
	}
	before := table.Bytes()
	push() // counts change, their tables stay
	kept := table.Bytes() - before
	if least := int64(len(keys)) * CandidateBytes; kept < least || snap.ImageBytes() != kept {
		t.Errorf("%d bytes more, %d by the snapshot, for %d candidates that were kept: want %d at least", kept, snap.ImageBytes(), len(keys), least)
	}
	push()
	if again := table.Bytes() - before; again != kept {
		t.Errorf("%d bytes after a second change, %d after the first", again, kept)
	}
	read := 0
	for slot := range rowraft.Slot(rowraft.NumSlots) {
		for done := false; !done; {
			_, done = snap.AppendSlot(nil, slot, 512)
		}
		read += len(snap.AppendCandidates(nil, slot)) / CandidateBytes
	}
	if left := table.Bytes() - before; left != 0 || read != len(keys) || snap.ImageBytes() != kept {
		t.Errorf("%d bytes are kept of what was read, %d candidates, %d bytes at most", left, read, snap.ImageBytes())
	}
}
