package rowstore

import (
	"testing"

	"github.com/rowraft/rowraft"
)

// TestKeptCandidatesAreCounted: the candidates that a snapshot keeps count as memory of the table, until
// the snapshot has read them.
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
	push() // changes counts; the tables of candidates keep their size
	kept := table.Bytes() - before
	if least := int64(len(keys)) * CandidateBytes; kept < least || snap.ImageBytes() != kept {
		t.Errorf("%d bytes more, %d by the snapshot, for %d kept candidates: want at least %d",
			kept, snap.ImageBytes(), len(keys), least)
	}
	push()
	if again := table.Bytes() - before; again != kept {
		t.Errorf("%d bytes after a second change, %d after the first", again, kept)
	}
	read := 0
	for slot := range rowraft.Slot(rowraft.DefaultSlots) {
		for done := false; !done; {
			_, done = snap.AppendSlot(nil, slot, 512)
		}
		read += len(snap.AppendCandidates(nil, slot)) / CandidateBytes
	}
	if left := table.Bytes() - before; left != 0 || read != len(keys) || snap.ImageBytes() != kept {
		t.Errorf("after the read %d bytes are kept; %d candidates were read, with at most %d bytes",
			left, read, snap.ImageBytes())
	}
}
