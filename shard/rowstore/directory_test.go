package rowstore

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
)

// checkDirectory checks that each row of slot is in the bucket of its tag, and that the counts of the
// buckets are right.
func checkDirectory(t *testing.T, table *Table, slot rowraft.Slot) {
	t.Helper()
	s := &table.index.slots[slot]
	rows, tag := 0, uint64(0)
	for b := range s.buckets() {
		n, dead := 0, 0
		for _, e := range b.root.load() {
			if isRow(e) {
				n++
				if b.bits > 0 && e>>32>>(32-b.bits) != tag>>(32-b.bits) {
					t.Fatalf("a row with tag %08x is in the bucket of %d bits of %08x", e>>32, b.bits, tag)
				}
			} else if e == tombstone {
				dead++
			}
		}
		if n != int(b.rows) || dead != int(b.tombstones) {
			t.Fatalf("the bucket of %08x has %d rows and %d tombstones in %d entries, and counts %d and %d",
				tag, n, dead, len(b.root.load()), b.rows, b.tombstones)
		}
		rows += n
		tag += 1 << (32 - b.bits)
	}
	if rows != int(s.rows) || tag != 1<<32 {
		t.Fatalf("%d rows in buckets of %x tags, want %d in %x", rows, tag, s.rows, uint64(1)<<32)
	}
}

// TestDirectory grows one slot by many splits, removes most rows, and looks up all keys.
func TestDirectory(t *testing.T) {
	schema := testSchema(rowraft.Dense, rowraft.SGD, 1)
	table, m := mustNew(t, schema), newModel(schema)
	table.index.longest = 64
	slot, _ := table.index.locate(0)
	for k := rowraft.Key(0); k < 5000; k++ {
		mustUpdate(t, table, []rowraft.Key{k}, []float32{float32(k)})
		m.update(k, []float32{float32(k)}, 0.1)
		if k%500 == 499 {
			checkDirectory(t, table, slot)
		}
	}
	checkAgainst(t, table, m)
	if d := table.index.slots[slot].directory.Load(); d == nil || len(d.buckets) < 5000/64 {
		t.Fatalf("directory %v", d)
	}
	for k := rowraft.Key(0); k < 5000; k++ {
		if k%10 != 0 {
			mustDelete(t, table, k)
		}
	}
	checkDirectory(t, table, slot)
	for k := rowraft.Key(5000); k < 7000; k++ {
		mustUpdate(t, table, []rowraft.Key{k}, []float32{1})
	}
	checkDirectory(t, table, slot)
	for k := rowraft.Key(0); k < 7000; k++ {
		if want := k >= 5000 || k%10 == 0; table.Contains(k) != want {
			t.Fatalf("key %d: in the table: %v, want %v", k, !want, want)
		}
	}
}

// TestEqualTagsDoNotSplitForever: a split cannot separate keys with equal tags, so the directory stays
// small and the segment grows.
func TestEqualTagsDoNotSplitForever(t *testing.T) {
	schema := testSchema(rowraft.Sparse, rowraft.SGD, 1)
	table := mustNew(t, schema)
	table.index.longest = 16
	const slot = 5
	keys := equalTags(table, slot, 3000)
	mustUpdate(t, table, keys, make([]float32, len(keys)))
	checkDirectory(t, table, slot)
	d := table.index.slots[slot].directory.Load()
	if len(d.buckets) > len(keys) || len(d.at(77).root.load()) < len(keys) {
		t.Errorf("%d positions, %d entries", len(d.buckets), len(d.at(77).root.load()))
	}
	for _, k := range keys {
		if !table.Contains(k) {
			t.Fatalf("key %d is lost", k)
		}
	}
}

// TestHeldBucketKeepsItsRows: a reader that has loaded a bucket finds the bucket's rows in it after any split.
func TestHeldBucketKeepsItsRows(t *testing.T) {
	table := mustNew(t, testSchema(rowraft.Dense, rowraft.SGD, 1))
	table.index.longest = 16
	defer table.index.grace.Leave(table.index.grace.Enter())
	type held struct {
		key rowraft.Key
		tag uint32
		b   *bucket
	}
	var rows []held
	for k := rowraft.Key(0); k < 300; k++ {
		mustUpdate(t, table, []rowraft.Key{k}, []float32{1})
		slot, tag := table.index.locate(k)
		rows = append(rows, held{k, tag, table.index.slots[slot].bucket(tag)})
		for _, h := range rows {
			found := false
			for i := h.tag; !found; {
				p, after, ok := h.b.root.load().next(i, h.tag)
				if !ok {
					t.Fatalf("after %d rows: row %d is not in the bucket that it was put into", k+1, h.key)
				}
				found, i = table.index.at(p).key() == uint64(h.key), after
			}
		}
	}
}

// TestPullsDuringSplits: existing rows are found at all times while their buckets split and the directory doubles.
func TestPullsDuringSplits(t *testing.T) {
	for range 4 {
		table := evenTable(t, rowraft.Dense, 2)
		table.index.longest = 16
		keys := make([]rowraft.Key, 200)
		ones := make([]float32, 2*len(keys))
		for i := range keys {
			keys[i] = rowraft.Key(i)
		}
		mustUpdate(t, table, keys, ones)
		var done atomic.Bool
		var rounds atomic.Int64
		var wg sync.WaitGroup
		wg.Go(func() {
			dst, present := make([]byte, 8*len(keys)), make([]byte, len(keys)/8)
			for !done.Load() {
				if err := table.Pull(keys, dst, rowraft.Float32, present); err != nil {
					t.Error(err)
				}
				for i, b := range present {
					if b != 0xFF {
						t.Errorf("rows %d … are missing: %08b", 8*i, b)
						return
					}
				}
				rounds.Add(1)
			}
		})
		for n := 1; n < 200 || rounds.Load() < 20 && !t.Failed(); n++ {
			fresh := make([]rowraft.Key, 50)
			for i := range fresh {
				fresh[i] = rowraft.Key(n*200 + i)
			}
			mustUpdate(t, table, fresh, ones[:100])
		}
		done.Store(true)
		wg.Wait()
	}
}

// TestSlotsDoNotAllGrowAtOnce: of the slots with an equal number of rows, some have grown and some have not.
func TestSlotsDoNotAllGrowAtOnce(t *testing.T) {
	table := mustNew(t, testSchema(rowraft.Sparse, rowraft.SGD, 1))
	for k := rowraft.Key(0); k < 11*rowraft.DefaultSlots; k++ {
		mustUpdate(t, table, []rowraft.Key{k}, []float32{1})
	}
	lengths := map[uint32]map[int]bool{} // of segments, by rows
	for i := range table.index.slots {
		s := &table.index.slots[i]
		if lengths[s.rows] == nil {
			lengths[s.rows] = map[int]bool{}
		}
		lengths[s.rows][len(s.whole.root.load())] = true
	}
	for _, tc := range []struct {
		rows uint32
		want int // different lengths
	}{{8, 1}, {11, 2}, {13, 1}} {
		if got := len(lengths[tc.rows]); got != tc.want {
			t.Errorf("slots of %d rows have segments of %d lengths, want %d", tc.rows, got, tc.want)
		}
	}
}
