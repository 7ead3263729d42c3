package rowstore

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// evenTable returns a table whose rows start with all weights 0. The weights of a row stay equal as long as
// the numbers of every gradient are equal.
func evenTable(tb testing.TB, kind rowraft.TableKind, dim int) *Table {
	s := testSchema(kind, rowraft.SGD, dim)
	s.Initializer = rowraft.Initializer{Kind: rowraft.InitZeros}
	return mustNew(tb, s)
}

// pulls reads keys until done is closed, and checks the results: no row is torn, no row returns to an older
// version, and no row disappears.
func pulls(t *testing.T, table *Table, keys []rowraft.Key, dt rowraft.DType, done *atomic.Bool, rounds *atomic.Int64) {
	dim := table.Schema().Dim
	dst := make([]byte, len(keys)*dim*dt.Size())
	row := make([]float32, dim)
	present := make([]byte, (len(keys)+7)/8)
	before := make([]float32, len(keys))
	was := make([]byte, len(present))
	for !done.Load() {
		if err := table.Pull(keys, dst, dt, present); err != nil {
			t.Error(err)
			return
		}
		rounds.Add(1)
		for i, key := range keys {
			w := wire.Floats(row, dt, dst[i*dim*dt.Size():])
			for j := range w {
				if w[j] != w[0] {
					t.Errorf("key %d: torn row: weight 0 is %v, weight %d is %v", key, w[0], j, w[j])
					return
				}
			}
			if w[0] > before[i] { // every step decreases the weight, up to the precision of float32
				t.Errorf("key %d: %v after %v: the row returned to an older version", key, w[0], before[i])
				return
			}
			before[i] = w[0]
			if is := present[i/8] >> (i % 8) & 1; is < was[i/8]>>(i%8)&1 || is == 0 && w[0] != 0 {
				t.Errorf("key %d with weight %v: presence changed from %d to %d", key, w[0], was[i/8]>>(i%8)&1, is)
				return
			}
		}
		copy(was, present)
	}
}

// TestPullsDuringUpdates: readers see whole rows while a writer changes the same rows, creates others and
// makes segments grow.
func TestPullsDuringUpdates(t *testing.T) {
	for _, tc := range []struct {
		kind rowraft.TableKind
		dt   rowraft.DType
		dim  int
		hot  int // rows that change all the time

		memory uint64
	}{{rowraft.Sparse, rowraft.Float32, 1024, 1, 0}, {rowraft.Dense, rowraft.Float32, 16, 8, 0},
		{rowraft.Sparse, rowraft.BFloat16, 300, 2, 0}, {rowraft.Sparse, rowraft.Float32, 16, 20, 1},
		{rowraft.Dense, rowraft.Float32, 16, 20, 3000}} {
		t.Run(fmt.Sprintf("%s %s dim %d memory %d", tc.kind, tc.dt, tc.dim, tc.memory), func(t *testing.T) {
			t.Parallel()
			table := evenTable(t, tc.kind, tc.dim)
			if tc.memory > 0 {
				withTier(table, tc.memory)
			}
			hot := make([]rowraft.Key, 32) // repeated, so that reader and writer meet
			for i := range hot {
				hot[i] = rowraft.Key(i % tc.hot * 64)
			}
			var done atomic.Bool
			var rounds atomic.Int64
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() { pulls(t, table, hot, tc.dt, &done, &rounds) })
			}
			grads := make([]float32, len(hot)*tc.dim)
			for i := range grads {
				grads[i] = 1
			}
			arg := appendFloats(nil, grads)
			fresh := make([]rowraft.Key, len(hot))
			steps := 0
			for ; steps < 1500 || rounds.Load() < 100 && !t.Failed(); steps++ {
				if err := table.Update(hot, arg, rowraft.Float32, 1); err != nil {
					t.Error(err)
				}
				if r := table.Tier(); r != nil {
					moveRows(t, r, nil, 8) // two rounds: the second takes rows that were pulled since
				}
				if steps%64 != 0 {
					continue
				}
				for i := range fresh {
					fresh[i] = rowraft.Key(steps/64*len(fresh) + i)
				}
				if err := table.Update(fresh, arg, rowraft.Float32, 1); err != nil {
					t.Error(err)
				}
			}
			done.Store(true)
			wg.Wait()
			t.Logf("%d rounds of reads during %d of updates, %d rows", rounds.Load(), steps, table.Rows())
		})
	}
}

// TestHeldReader: a reader that stops in the middle of a pull does not block the writer, and the memory
// that it holds is not reused.
func TestHeldReader(t *testing.T) {
	table := evenTable(t, rowraft.Dense, 4)
	keys := make([]rowraft.Key, 1000)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	ones := make([]float32, 4*len(keys))
	for i := range ones {
		ones[i] = 1
	}
	mustUpdate(t, table, keys, ones)
	slot, tag := table.index.locate(keys[7])

	e := table.index.grace.Enter()
	seg := table.index.slots[slot].whole.root.load()
	for n := range 20 { // the slot outgrows seg
		more := make([]rowraft.Key, len(keys))
		for i := range more {
			more[i] = rowraft.Key((n+1)*len(keys) + i)
		}
		mustUpdate(t, table, more, ones)
		mustUpdate(t, table, keys, ones)
	}
	if table.index.slots[slot].directory.Load() == nil {
		t.Fatal("the slot still has one segment")
	}
	p, _, ok := seg.next(tag, tag)
	if !ok || table.index.at(p).key() != uint64(keys[7]) {
		t.Fatal("the segment that the reader holds has lost an entry")
	}
	w := wire.Floats(table.wide, rowraft.Float32, table.index.weights(table.index.at(p)))[0]
	if math.Abs(float64(w)+2.1) > 1e-5 {
		t.Errorf("the row that it points to is %v, want -2.1", w)
	}
	held := table.index.blocks.Stats().UsedBytes
	index := func() (n int64) {
		for b := range table.index.slots[slot].buckets() {
			n += int64(8 * len(b.root.load()))
		}
		return n
	}
	table.index.grace.Leave(e)
	mustUpdate(t, table, keys, ones)
	mustUpdate(t, table, keys, ones)
	if used, want := table.index.blocks.Stats().UsedBytes, index(); used != want || held <= want {
		t.Errorf("index uses %d bytes, %d while the reader held the old segments; want %d at the end", used, held, want)
	}
}

// TestRetiredPlaceReadsAsGone: a reader that holds the place of a removed row searches the index again, and
// the place is not reused before the reader has left.
func TestRetiredPlaceReadsAsGone(t *testing.T) {
	table := evenTable(t, rowraft.Sparse, 2)
	mustUpdate(t, table, []rowraft.Key{5}, []float32{1, 1})
	slot, tag := table.index.locate(5)
	seg := table.index.slots[slot].whole.root.load()
	p, _, _ := seg.next(tag, tag)

	e := table.index.grace.Enter()
	var c lookups
	if err := table.index.prefetchRoots(&c, 0, []rowraft.Key{5}); err != nil {
		t.Fatal(err)
	}
	table.index.prefetchEntries(&c, 0, 1)
	table.index.prefetchRecords(&c, 0, 1, 8)
	mustDelete(t, table, 5)
	if table.index.read(&c, 0, 5, make([]byte, 8), rowraft.Float32, noVersion) != 0 {
		t.Error("a row that was taken out was read")
	}
	mustUpdate(t, table, []rowraft.Key{6, 7}, []float32{1, 1, 1, 1})
	if v := table.index.at(p).loadVersion(); v != gone {
		t.Errorf("the place was reused, version %d, while a reader held it", v)
	}
	table.index.grace.Leave(e)
	table.index.reclaim()
	table.index.reclaim()
	if again, err := table.index.slab.Alloc(); err != nil || again != p {
		t.Errorf("next place is %d, %v; want the freed %d", again, err, p)
	}
}
