package rowstore

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
)

// evenTable has rows whose weights are all equal, starting at 0, as long as every
// gradient's numbers are.
func evenTable(tb testing.TB, kind rowraft.TableKind, dim int) *Table {
	s := testSchema(kind, rowraft.SGD, dim)
	s.Initializer = rowraft.Initializer{Kind: rowraft.InitZeros}
	return mustNew(tb, s)
}

// pulls reads keys over and over until done, and checks what it reads: rows are
// whole, a row never goes back, and one that was there stays.
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
			w := floats(dst[i*dim*dt.Size():], dt, row)
			for j := range w {
				if w[j] != w[0] {
					t.Errorf("key %d: half a row: weight 0 is %v, weight %d is %v", key, w[0], j, w[j])
					return
				}
			}
			if w[0] > before[i] { // every step goes down, as far as float32 counts
				t.Errorf("key %d: %v after %v: the row went back", key, w[0], before[i])
				return
			}
			before[i] = w[0]
			if is := present[i/8] >> (i % 8) & 1; is < was[i/8]>>(i%8)&1 || is == 0 && w[0] != 0 {
				t.Errorf("key %d with weight %v: presence went from %d to %d", key, w[0], was[i/8]>>(i%8)&1, is)
				return
			}
		}
		copy(was, present)
	}
}

// TestPullsBesideUpdates: readers beside a writer that changes the same rows again
// and again, creates others and makes segments grow see whole rows.
func TestPullsBesideUpdates(t *testing.T) {
	for _, tc := range []struct {
		kind rowraft.TableKind
		dt   rowraft.DType
		dim  int
		hot  int // rows that change all the time
	}{{rowraft.Sparse, rowraft.Float32, 1024, 1}, {rowraft.Dense, rowraft.Float32, 16, 8}, {rowraft.Sparse, rowraft.BFloat16, 300, 2}} {
		t.Run(fmt.Sprintf("%s %s dim %d", tc.kind, tc.dt, tc.dim), func(t *testing.T) {
			t.Parallel()
			table := evenTable(t, tc.kind, tc.dim)
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
			t.Logf("%d rounds of reads beside %d of updates, %d rows", rounds.Load(), steps, table.Rows())
		})
	}
}

// TestHeldReader: a reader that stops in the middle of a pull keeps the writer
// from nothing, and what it holds from being used again.
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
	slot, tag := table.locate(keys[7])

	e := table.grace.enter()
	seg := table.slots[slot].whole.root.load()
	for n := range 20 { // outgrows seg
		more := make([]rowraft.Key, len(keys))
		for i := range more {
			more[i] = rowraft.Key((n+1)*len(keys) + i)
		}
		mustUpdate(t, table, more, ones)
		mustUpdate(t, table, keys, ones)
	}
	if table.slots[slot].directory.Load() == nil {
		t.Fatal("the slot has one segment still")
	}
	p, _, ok := seg.next(tag, tag)
	if !ok || table.at(p).key() != uint64(keys[7]) {
		t.Fatal("the segment that the reader holds has lost an entry")
	}
	if w := floats(table.weights(table.at(p)), rowraft.Float32, table.wide)[0]; math.Abs(float64(w)+2.1) > 1e-5 {
		t.Errorf("the row behind it is %v, want -2.1", w)
	}
	held := table.blocks.Stats().UsedBytes
	index := func() (n int64) {
		for b := range table.slots[slot].buckets() {
			n += int64(8 * len(b.root.load()))
		}
		return n
	}
	table.grace.leave(e)
	mustUpdate(t, table, keys, ones)
	mustUpdate(t, table, keys, ones)
	if used, want := table.blocks.Stats().UsedBytes, index(); used != want || held <= want {
		t.Errorf("index takes %d bytes, %d while the reader held the old segments; want %d at last", used, held, want)
	}
}

// TestRetiredPlaceReadsAsGone: a reader that holds the place of a row that was
// taken out looks again, and the place is not used before it has left.
func TestRetiredPlaceReadsAsGone(t *testing.T) {
	table := evenTable(t, rowraft.Sparse, 2)
	mustUpdate(t, table, []rowraft.Key{5}, []float32{1, 1})
	slot, tag := table.locate(5)
	seg := table.slots[slot].whole.root.load()
	p, _, _ := seg.next(tag, tag)

	e := table.grace.enter()
	var c chunk
	table.lookup(&c, []rowraft.Key{5}, 8)
	mustDelete(t, table, 5)
	if table.read(&c, 0, 5, make([]byte, 8), rowraft.Float32) {
		t.Error("a row that was taken out was read")
	}
	mustUpdate(t, table, []rowraft.Key{6, 7}, []float32{1, 1, 1, 1})
	if v := table.at(p).loadVersion(); v != gone {
		t.Errorf("the place was used again, version %d, while a reader held it", v)
	}
	table.grace.leave(e)
	table.reclaim()
	table.reclaim()
	if again, err := table.rows.Alloc(); err != nil || again != p {
		t.Errorf("next place is %d, %v; want the freed %d", again, err, p)
	}
}
