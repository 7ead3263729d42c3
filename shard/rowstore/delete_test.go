package rowstore

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

func mustDelete(tb testing.TB, t *Table, keys ...rowraft.Key) {
	tb.Helper()
	if err := t.Delete(keys); err != nil {
		tb.Fatal(err)
	}
}

// TestPlacesAndIndexAreReused: rows that are created and deleted forever need only the memory of the rows
// that exist at one time.
func TestPlacesAndIndexAreReused(t *testing.T) {
	const live, rounds = 500, 200
	table := evenTable(t, rowraft.Dense, 4) // one slot
	keys, zeros := make([]rowraft.Key, live), make([]float32, 4*live)
	most := 0
	for n := range rounds {
		for i := range keys {
			keys[i] = rowraft.Key(n*live + i)
		}
		mustUpdate(t, table, keys, zeros)
		slot, _ := table.index.locate(0)
		most = max(most, len(table.index.slots[slot].whole.root.load()))
		if n%2 == 0 { // delete some rows, then all
			mustDelete(t, table, keys[:live/3]...)
		}
		mustDelete(t, table, keys...)
	}
	if table.Rows() != 0 || table.Digest() != (Digest{}) {
		t.Errorf("%d rows and digest %v are left", table.Rows(), table.Digest())
	}
	mustDelete(t, table, 1) // two changes free the retired objects
	mustDelete(t, table, 1)
	if used := table.index.slab.Stats().UsedBytes; used != 0 {
		t.Errorf("%d bytes of rows are in use without any", used)
	}
	if most > 4*live {
		t.Errorf("the index of %d rows grew to %d entries", live, most)
	}
	if mapped := table.index.slab.Stats().MappedBytes; mapped > int64(8*live*table.index.slabRecordBytes()) {
		t.Errorf("%d bytes are mapped for %d rows of %d", mapped, live, table.index.slabRecordBytes())
	}
}

// TestPullsDuringDeletes: a writer removes rows and creates them again, so that places hold other keys.
// Readers see whole rows of the keys that they asked for.
func TestPullsDuringDeletes(t *testing.T) {
	const dim, n = 16, 64
	table := evenTable(t, rowraft.Dense, dim)
	keys, odd := make([]rowraft.Key, n), make([]rowraft.Key, 0, n)
	for i := range keys {
		keys[i] = rowraft.Key(i)
		if i%2 == 1 {
			odd = append(odd, keys[i])
		}
	}
	// An assign of k + 1 to every weight creates row k.
	values := func(keys []rowraft.Key) []byte {
		var v []float32
		for _, k := range keys {
			for range dim {
				v = append(v, float32(k)+1)
			}
		}
		return appendFloats(nil, v)
	}
	all := values(keys)
	if err := table.Assign(keys, all, rowraft.Float32); err != nil {
		t.Fatal(err)
	}
	var done atomic.Bool
	var rounds atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			dst, present := make([]byte, 4*n*dim), make([]byte, n/8)
			row := make([]float32, dim)
			for !done.Load() {
				if err := table.Pull(keys, dst, rowraft.Float32, present); err != nil {
					t.Error(err)
					return
				}
				rounds.Add(1)
				for i := range keys {
					is, want := present[i/8]>>(i%8)&1 == 1, float32(0)
					if is {
						want = float32(i) + 1
					}
					for _, w := range wire.Floats(row, rowraft.Float32, dst[4*i*dim:]) {
						if w != want || !is && i%2 == 0 {
							t.Errorf("key %d, present %v, reads %v, want %v everywhere", i, is, row, want)
							return
						}
					}
				}
			}
		})
	}
	for step := 0; step < 1000 || rounds.Load() < 100 && !t.Failed(); step++ {
		for i := range odd { // in another order each time, so that places move
			j := (i*7 + step) % len(odd)
			odd[i], odd[j] = odd[j], odd[i]
		}
		mustDelete(t, table, odd...)
		if err := table.Assign(odd, values(odd), rowraft.Float32); err != nil {
			t.Fatal(err)
		}
	}
	done.Store(true)
	wg.Wait()
	if table.Rows() != n {
		t.Errorf("%d rows are left, want %d", table.Rows(), n)
	}
}

func TestDeleteOfAForeignKeyChangesNothing(t *testing.T) {
	schema := testSchema(rowraft.Sparse, rowraft.SGD, 1)
	table, err := New(Options{Schema: schema, Owned: func(s rowraft.Slot) bool { return s%2 == 0 }})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	var mine, foreign rowraft.Key
	for k := rowraft.Key(1); mine == 0 || foreign == 0; k++ {
		if slot, _ := table.index.locate(k); slot%2 == 0 {
			mine = k
		} else {
			foreign = k
		}
	}
	mustUpdate(t, table, []rowraft.Key{mine}, []float32{1})
	if err := table.Delete([]rowraft.Key{mine, foreign}); rowraft.CodeOf(err) != rowraft.CodeWrongShard ||
		table.Rows() != 1 {
		t.Errorf("%v, and %d rows are left; want WrongShard and the row", err, table.Rows())
	}
}

// TestOneRowThatComesAndGoes: a row that is created and deleted forever uses one entry of the index.
func TestOneRowThatComesAndGoes(t *testing.T) {
	table := evenTable(t, rowraft.Sparse, 1)
	mustUpdate(t, table, []rowraft.Key{5}, []float32{1})
	slot, _ := table.index.locate(5)
	seg := table.index.slots[slot].whole.root.load()
	for range 100 {
		mustDelete(t, table, 5)
		mustUpdate(t, table, []rowraft.Key{5}, []float32{1})
	}
	if now := table.index.slots[slot].whole.root.load(); &now[0] != &seg[0] ||
		table.index.slots[slot].whole.tombstones != 0 {
		t.Errorf("the segment was rebuilt: %d entries, %d of them tombstones", len(now),
			table.index.slots[slot].whole.tombstones)
	}
}

// TestDeleteInASlotThatASnapshotFoundEmpty: a snapshot that walks a slot without rows has no segment of it.
func TestDeleteInASlotThatASnapshotFoundEmpty(t *testing.T) {
	table := mustNew(t, testSchema(rowraft.Sparse, rowraft.SGD, 1))
	snap, err := table.BeginSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	slot, _ := table.index.locate(7)
	snap.begin(slot) // the reader is at this point
	snap.exit()
	if err := table.Assign([]rowraft.Key{7}, make([]byte, 4), rowraft.Float32); err != nil {
		t.Fatal(err)
	}
	if err := table.Delete([]rowraft.Key{7}); err != nil {
		t.Fatal(err)
	}
	if b, done := snap.AppendSlot(nil, slot, 16); len(b) > 0 || !done {
		t.Errorf("%d bytes of a slot that was empty, done: %v", len(b), done)
	}
	if err := snap.End(); err != nil {
		t.Error(err)
	}
}
