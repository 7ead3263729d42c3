package shard

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

func twoTables(t *testing.T) (r *replica, a, b rowraft.Schema) {
	t.Helper()
	a, b = testTable(1, "a", 2, adagrad), testTable(2, "b", 3, sgd)
	r = newReplica(t, Config{})
	r.create(a, b)
	r.mustOpen(1, 1)
	r.parts(push(1, 1, payloadOf(rows{schema: a, keys: []rowraft.Key{1, 2, 3}},
		rows{schema: b, keys: []rowraft.Key{1, 2}})))
	return r, a, b
}

// TestADroppedTableIsGone: a drop removes the rows and their digest, and late requests are refused. Other
// tables stay, and a new table can use the name.
func TestADroppedTableIsGone(t *testing.T) {
	r, a, b := twoTables(t)
	only := newReplica(t, Config{})
	only.create(b)
	only.mustOpen(1, 1)
	only.parts(push(1, 1, payloadOf(rows{schema: b, keys: []rowraft.Key{1, 2}})))

	for range 2 { // a copy changes nothing
		if err := r.apply(wire.DropTableEntry(r.header(), a.ID)).Parts[0].Err; err != nil {
			t.Fatal(err)
		}
		if got, want := r.digest(), only.digest(); got.Sum != want.Sum || got.Rows != 2 || r.hasTable(a.ID) {
			t.Errorf("%d rows with digest %x, want 2 with %x", got.Rows, got.Sum, want.Sum)
		}
	}
	late := r.parts(push(1, 2, payloadOf(rows{schema: a, keys: []rowraft.Key{1}})))
	testutil.WantCode(t, late[0].Err, rowraft.CodeTableNotFound)
	_, _, err := r.Pull(payloadOf(rows{schema: a, keys: []rowraft.Key{1}, flags: wire.FlagNoValues}), false, 0, alloc)
	testutil.WantCode(t, err, rowraft.CodeTableNotFound)

	again := testTable(3, "a", 5, sgd)
	r.create(again)
	if w, present := r.pull(again, 1); present[0] || len(w) != 5 {
		t.Errorf("the new table has a row of %v", w)
	}
	restored := newReplica(t, Config{})
	if err := restored.Restore(bytes.NewReader(r.snapshot())); err != nil {
		t.Fatal(err)
	}
	if !sameState(restored, r) {
		t.Error("a snapshot after the drop restores to something else")
	}
}

func TestADropOfAnotherEpochIsRefused(t *testing.T) {
	r, a, _ := twoTables(t)
	h := r.header()
	h.Epoch++
	testutil.WantCode(t, r.apply(wire.DropTableEntry(h, a.ID)).Parts[0].Err, rowraft.CodeSessionExpired)
	if !r.hasTable(a.ID) {
		t.Error("the table is gone")
	}
}

// TestASnapshotOutlivesADrop: a snapshot that began before the drop has the whole table. The memory is
// freed when the last of two snapshots ends, and by Close.
func TestASnapshotOutlivesADrop(t *testing.T) {
	r, a, b := twoTables(t)
	mine, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	part, err := r.ExpectMark(wire.MarkID{1})
	if err != nil {
		t.Fatal(err)
	}
	r.apply(wire.MarkEntry(r.header(), wire.MarkID{1}))
	other, err := part.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	before := r.digest()
	held := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.mu.tables.dropped)
	}
	r.apply(wire.DropTableEntry(r.header(), a.ID))
	if held() != 1 {
		t.Fatalf("%d dropped tables are held for two snapshots, want 1", held())
	}
	var stream bytes.Buffer
	if _, err := mine.WriteTo(&stream); err != nil {
		t.Fatal(err)
	}
	mine.Release()
	if held() != 1 {
		t.Fatal("rows that the other snapshot reads were freed")
	}
	if _, err := other.WriteRows(&bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	other.Release()
	if held() != 0 {
		t.Error("no snapshot reads the dropped table, but its rows are not freed")
	}
	old := newReplica(t, Config{})
	if err := old.Restore(&stream); err != nil {
		t.Fatal(err)
	}
	if got := old.digest(); got.Sum != before.Sum || got.Rows != before.Rows {
		t.Errorf("the snapshot holds %d rows with %x, want %d with %x", got.Rows, got.Sum, before.Rows, before.Sum)
	}
	// Close frees a dropped table that a snapshot still reads.
	if _, err := r.Snapshot(); err != nil {
		t.Fatal(err)
	}
	r.apply(wire.DropTableEntry(r.header(), b.ID))
}

// TestPullsDuringDrops: readers find a table or not; they never read rows that were freed.
func TestPullsDuringDrops(t *testing.T) {
	r := newReplica(t, Config{})
	r.mustOpen(1, 1)
	keys := make([]rowraft.Key, 3*chunkRows)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	table := testTable(1, "t", 8, sgd)
	table.Initializer = rowraft.Initializer{Kind: rowraft.InitZeros}
	ask := payloadOf(rows{schema: table, keys: keys, flags: wire.FlagNoValues})
	var done atomic.Bool
	var read, missed atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !done.Load() {
				reply, _, err := r.Pull(ask, false, 0, alloc)
				switch {
				case err == nil:
					read.Add(1)
					checkRows(t, reply, 0, 8)
				case rowraft.CodeOf(err) == rowraft.CodeTableNotFound:
					missed.Add(1)
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	for n := rowraft.Seq(1); n <= 20 || (read.Load() == 0 || missed.Load() == 0) && !t.Failed(); n++ {
		r.create(table)
		if err := r.parts(push(1, n, payloadOf(rows{schema: table, keys: keys})))[0].Err; err != nil {
			t.Fatal(err)
		}
		r.apply(wire.DropTableEntry(r.header(), table.ID))
	}
	done.Store(true)
	wg.Wait()
}
