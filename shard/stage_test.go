package shard

import (
	"bytes"
	"errors"
	"maps"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

// restoreEntries returns the entries that restore the rows of from into a shard of epoch 1, one block per chunk.
func restoreEntries(tb testing.TB, from *replica, id wire.RestoreID) (begin []byte, rows [][]byte, end []byte) {
	tb.Helper()
	h := wire.EntryHeader{Version: 1, Epoch: 1}
	rd, err := checkpoint.NewReader(bytes.NewReader(from.snapshot()))
	if err != nil {
		tb.Fatal(err)
	}
	begin = wire.RestoreBeginEntry(h, &wire.RestoreBegin{ID: id, Epoch: 2, Tables: rd.Tables()})
	for {
		b, err := rd.Next()
		if err != nil {
			break
		}
		block := wire.RestoreBlock{Table: b.Table, Slot: b.Slot.Slot, Counter: b.Counter, Rows: b.Rows,
			RecordBytes: b.RecordBytes, Records: b.Records}
		rows = append(rows, wire.RestoreRowsEntry(h, id, uint64(len(rows)+1), wire.AppendRestoreBlock(nil, &block)))
	}
	d := from.digest()
	return begin, rows, wire.RestoreCloseEntry(h,
		&wire.RestoreClose{ID: id, Epoch: 2, Chunks: uint64(len(rows)), Rows: d.Rows, Digest: d.Sum})
}

func restoreSource(t *testing.T) *replica {
	from := newReplica(t, Config{})
	from.create(markTable())
	from.mustOpen(1, 1)
	pushOnes(from, 1, 1, 2, 3, 4)
	pushOnes(from, 2, 2, 3)
	return from
}

// TestARestoreServesTheOldTablesUntilItCloses: after the close, the shard serves the new tables to new sessions.
func TestARestoreServesTheOldTablesUntilItCloses(t *testing.T) {
	from := restoreSource(t)
	begin, chunks, end := restoreEntries(t, from, wire.RestoreID{1})
	r := newReplica(t, Config{})
	r.create(markTable())
	r.mustOpen(1, 1)
	pushOnes(r, 1, 9)
	before := r.digest()
	r.apply(begin)
	for _, c := range chunks {
		r.apply(c)
	}
	if d := r.digest(); d.Sum != before.Sum || d.Rows != 1 {
		t.Errorf("while the restore is staged: %+v, want the old state", d)
	}
	testutil.WantCode(t, second(r.Snapshot()), rowraft.CodeOverloaded)
	testutil.WantCode(t, second(r.ExpectMark(wire.MarkID{1})), rowraft.CodeOverloaded)
	s, ok := r.Stage()
	if want := from.digest(); !ok || s.Next != uint64(len(chunks)+1) || s.Rows != 4 || s.Digest != want.Sum ||
		s.Err != nil {
		t.Errorf("stage %+v, %v", s, ok)
	}
	pushOnes(r, 2, 9) // uses the old tables
	if a := r.apply(end); a.Parts[0].Err != nil {
		t.Fatal(a.Parts[0].Err)
	}
	if d, want := r.digest(), from.digest(); d.Sum != want.Sum || d.Rows != want.Rows || r.Epoch() != 2 {
		t.Errorf("after it closed: %+v in epoch %d, want %+v in 2", d, r.Epoch(), want)
	}
	p := push(1, 3, payloadOf(rows{schema: markTable(), keys: []rowraft.Key{1}, values: []float32{1, 1}}))
	if res := r.parts(p); rowraft.CodeOf(res[0].Err) != rowraft.CodeSessionExpired {
		t.Errorf("a session from before the restore: %v, want SessionExpired", res[0].Err)
	}
	r.mustOpen(1, 1)
	pushOnes(r, 1, 9)
	if _, err := r.Snapshot(); err != nil {
		t.Errorf("no snapshot after the restore: %v", err)
	}
}

// TestAReplicaThatRestartsBuildsTheStageAgain: a restarted replica builds the stage again from the log
// after its snapshot.
func TestAReplicaThatRestartsBuildsTheStageAgain(t *testing.T) {
	from := restoreSource(t)
	begin, chunks, end := restoreEntries(t, from, wire.RestoreID{1})
	r := newReplica(t, Config{})
	snapshot := r.snapshot()
	log := append(append([][]byte{begin}, chunks...), end)
	for cut := range len(log) {
		r := newReplica(t, Config{})
		for _, e := range log[:cut] {
			r.apply(e)
		}
		if err := r.Restore(bytes.NewReader(snapshot)); err != nil {
			t.Fatal(err)
		}
		if _, ok := r.Stage(); ok {
			t.Fatal("a restored snapshot has a stage, but no snapshot is taken while there is one")
		}
		r.index = 0
		for _, e := range log {
			if a := r.apply(e); a.Parts[0].Err != nil {
				t.Fatal(a.Parts[0].Err)
			}
		}
		if d, want := r.digest(), from.digest(); d.Sum != want.Sum || r.Epoch() != 2 {
			t.Fatalf("cut at %d: %+v, want %+v", cut, d, want)
		}
	}
}

func TestARestoreThatDoesNotAddUpChangesNothing(t *testing.T) {
	from := restoreSource(t)
	begin, chunks, end := restoreEntries(t, from, wire.RestoreID{1})
	for name, entries := range map[string][][]byte{
		"a chunk missing": append(append([][]byte{begin}, chunks[:len(chunks)-1]...), end),
		"none at all":     {begin, end},
		"begun again": append(append([][]byte{begin}, chunks...),
			wire.RestoreDropEntry(wire.EntryHeader{Version: 1, Epoch: 1}, wire.RestoreID{1}), begin, end),
	} {
		r := newReplica(t, Config{})
		var last *Applied
		for _, e := range entries {
			last = r.apply(e)
		}
		if last.Parts[0].Err == nil || r.Epoch() != 1 || len(r.Tables()) != 0 {
			t.Errorf("%s: the restore closed (%v), epoch %d", name, last.Parts[0].Err, r.Epoch())
		}
	}
}

// TestALateBeginLeavesTheStageOfAnother: the scheduler may have decided to close the other restore already.
func TestALateBeginLeavesTheStageOfAnother(t *testing.T) {
	from := restoreSource(t)
	late, _, _ := restoreEntries(t, from, wire.RestoreID{1})
	begin, chunks, end := restoreEntries(t, from, wire.RestoreID{2})
	for cut := range len(chunks) + 1 {
		r := newReplica(t, Config{})
		r.apply(begin)
		for i, c := range chunks {
			if i == cut {
				testutil.WantCode(t, r.apply(late).Parts[0].Err, rowraft.CodeOverloaded)
			}
			r.apply(c)
		}
		if cut == len(chunks) {
			testutil.WantCode(t, r.apply(late).Parts[0].Err, rowraft.CodeOverloaded)
		}
		if a := r.apply(end); a.Parts[0].Err != nil || r.Epoch() != 2 {
			t.Errorf("a late begin before chunk %d: the restore does not close (%v), epoch %d", cut+1, a.Parts[0].Err, r.Epoch())
		}
	}
}

// TestARestoreOfOneTableLeavesTheOthers: the other tables keep their rows, and the sessions and the epoch stay.
func TestARestoreOfOneTableLeavesTheOthers(t *testing.T) {
	from := restoreSource(t)
	id := wire.RestoreID{7}
	_, chunks, _ := restoreEntries(t, from, id)
	h := wire.EntryHeader{Version: 1, Epoch: 1}
	old, other := markTable(), markTable()
	other.ID, other.Name = 77, "other"
	fresh := old
	fresh.ID = old.ID.RestoredBy(1)
	r := newReplica(t, Config{})
	r.create(old)
	r.create(other)
	r.mustOpen(1, 1)
	seq := rowraft.Seq(0)
	pushTo := func(s rowraft.Schema, key rowraft.Key) error {
		seq++
		return r.parts(push(1, seq, payloadOf(rows{schema: s, keys: []rowraft.Key{key}, values: []float32{1, 1}})))[0].Err
	}
	if err := errors.Join(pushTo(old, 9), pushTo(other, 5), pushTo(other, 6)); err != nil {
		t.Fatal(err)
	}
	snap, err := r.Snapshot() // runs while the table is replaced
	if err != nil {
		t.Fatal(err)
	}
	r.apply(wire.RestoreBeginEntry(h, &wire.RestoreBegin{ID: id, Epoch: 1, Tables: []rowraft.Schema{fresh}}))
	for i, c := range chunks {
		_, body, err := wire.ParseEntryHeader(c)
		if err != nil {
			t.Fatal(err)
		}
		var b wire.RestoreBlock
		_, _, blocks, _ := wire.ParseRestoreRows(body)
		if _, err := wire.ParseRestoreBlock(blocks, &b); err != nil {
			t.Fatal(err)
		}
		b.Table = fresh.ID
		r.apply(wire.RestoreRowsEntry(h, id, uint64(i+1), wire.AppendRestoreBlock(nil, &b)))
	}
	d := from.digest()
	end := wire.RestoreCloseEntry(h,
		&wire.RestoreClose{ID: id, Epoch: 1, Chunks: uint64(len(chunks)), Rows: d.Rows, Digest: d.Sum})
	for range 2 { // a copy changes nothing
		if a := r.apply(end); a.Parts[0].Err != nil {
			t.Fatal(a.Parts[0].Err)
		}
	}
	rows := map[rowraft.TableID]uint64{}
	for _, s := range r.Stats() {
		rows[s.ID] = s.Rows
	}
	if want := map[rowraft.TableID]uint64{fresh.ID: 4, other.ID: 2}; !maps.Equal(rows, want) || r.Epoch() != 1 {
		t.Errorf("rows %v in epoch %d, want %v in 1", rows, r.Epoch(), want)
	}
	if err := pushTo(old, 9); rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		t.Errorf("a push to the old table: %v, want TableNotFound", err)
	}
	if err := errors.Join(pushTo(other, 5), pushTo(fresh, 1)); err != nil {
		t.Errorf("the session after the restore: %v", err)
	}
	var b bytes.Buffer
	if _, err := snap.WriteTo(&b); err != nil {
		t.Errorf("the snapshot that ran during the restore: %v", err)
	}
	snap.Release()
}
