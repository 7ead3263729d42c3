package cache

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

func newCache(t testing.TB, bytes int64, dim int) *Cache {
	t.Helper()
	c, err := New(bytes, dim)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var indices = func() []int32 {
	list := make([]int32, 8192)
	for i := range list {
		list[i] = int32(i)
	}
	return list
}()

func TestGetReturnsNoOlderCopy(t *testing.T) {
	c := newCache(t, MinBytes, 2)
	get := func(key rowraft.Key, atLeast uint64) float32 {
		dst := []float32{-1, -1}
		missed := c.Get([]rowraft.Key{key}, atLeast, dst)
		if (len(missed) == 0) != (dst[0] != -1) || dst[0] != dst[1] {
			t.Fatalf("key %d: %v", key, dst)
		}
		return dst[0]
	}
	for _, step := range []struct {
		put, get uint64 // 0: no put
		want     float32
	}{
		{0, 1, -1}, // a miss
		{5, 5, 5}, {0, 1, 5},
		{0, 6, -1}, // too old
		{9, 6, 9},
		{7, 9, 9}, // a slow pull does not replace a newer copy
		{9, 9, 9},
	} {
		if step.put > 0 {
			v := float32(step.put)
			c.Put([]rowraft.Key{3}, step.put, []float32{v, v})
		}
		if got := get(3, step.get); got != step.want {
			t.Errorf("put %d, asked for %d: %v, want %v", step.put, step.get, got, step.want)
		}
	}
	if got := get(4, 0); got != -1 {
		t.Errorf("key 4 was never put: %v", got)
	}
	if got, want := c.Stats(), (Stats{Hits: 5, Stale: 1, Misses: 2}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

// A copy that is too old comes with its version. One that has the version still is as new as the pull that found that,
// and keeps its weights.
func TestVersionsOfCopies(t *testing.T) {
	c := newCache(t, MinBytes, 1)
	keys, versions := []rowraft.Key{1, 2, 3, 4}, []uint32{7, wire.NoVersion, 9, 0}
	c.putSome(keys, []int32{0, 1, 2}, 5, []float32{10, 20, 30, 40}, versions)
	dst, known := []float32{-1, -1, -1, -1}, []uint32{1, 1, 1, 1}
	found := c.get(keys, 0, 6, dst, known)
	if !slices.Equal(found.Old, []int32{0, 2}) || !slices.Equal(found.Missed, []int32{1, 3}) ||
		!slices.Equal(dst, []float32{10, -1, 30, -1}) || !slices.Equal(known, []uint32{7, 1, 9, 1}) {
		t.Errorf("old %d, missed %d, rows %v, versions %d", found.Old, found.Missed, dst, known)
	}
	// Row 1 is unchanged, row 3 has another version. Row 2 came without a version, which says nothing.
	c.putSome(keys, []int32{0, 1, 2}, 8, []float32{-10, -20, -30, 0}, []uint32{7, wire.NoVersion, 10, 0})
	found = c.get(keys, 0, 8, dst, known)
	if len(found.Old) != 0 || !slices.Equal(found.Missed, []int32{3}) || !slices.Equal(dst, []float32{10, -20, -30, -1}) {
		t.Errorf("old %d, missed %d, rows %v", found.Old, found.Missed, dst)
	}
	// A slow pull of the same version is no newer.
	c.putSome(keys, []int32{0}, 7, []float32{10}, []uint32{7})
	if missed := c.Get(keys[:1], 8, dst); len(missed) != 0 {
		t.Error("a pull from before made a copy older")
	}
}

// Versions are asked for while they save bytes, and of some keys while they do not.
func TestVersionsAreWorthTheirBytes(t *testing.T) {
	var table Table
	keys := make([]rowraft.Key, 8192)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	const some = 8192 / sampleOf
	want := func(when string, least, most, rowBytes int) {
		t.Helper()
		with, without := table.Versioned(keys, indices, rowBytes)
		if n := len(with); n < least || n > most || n+len(without) != len(keys) {
			t.Errorf("%s: %d of %d keys with versions and %d without, want %d to %d", when, len(with), len(keys), len(without),
				least, most)
		}
	}
	want("at first", 8192, 8192, 64)
	for range 10 {
		table.Asked(4096, 4096/20)
	}
	want("5 % unchanged", some/2, 2*some, 64)
	want("5 % unchanged, long rows", 8192, 8192, 512)
	for range 10 {
		table.Asked(4096, 2048)
	}
	want("half unchanged", 8192, 8192, 64)
	want("half unchanged, short rows", some/2, 2*some, 8)
}

// A full cache keeps what is read again, also if much more passes through it.
func TestHotRowsStay(t *testing.T) {
	c := newCache(t, MinBytes, 16)
	rows := len(c.lines)
	one, row, asOf := []rowraft.Key{0}, make([]float32, 16), uint64(0)
	r := rand.New(rand.NewPCG(1, 2))
	var hits, asked int
	for i := range 50 * rows {
		asOf++
		key := rowraft.Key(1<<32 + i) // once
		if hot := i%4 == 0; hot {
			key = rowraft.Key(r.IntN(rows / 4))
			if i > 10*rows {
				asked++
			}
		}
		if one[0] = key; len(c.Get(one, 0, row)) == 0 {
			if i > 10*rows {
				hits++
			}
			continue
		}
		c.Put(one, asOf, row)
	}
	t.Logf("%d rows: %.3f of the hot keys' reads", rows, float64(hits)/float64(asked))
	if hits < asked*9/10 {
		t.Errorf("%d of %d reads of hot keys, a quarter of the cache, were answered: want 0.9", hits, asked)
	}
}

// Ids with a stride would share few sets if the hash were weak.
func TestStridesDoNotLowerTheHitRatio(t *testing.T) {
	ratio := func(stride int) float64 {
		c := newCache(t, MinBytes, 16)
		z := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, 1<<16)
		row := make([]float32, 16)
		for i := range 300_000 {
			k := []rowraft.Key{rowraft.Key(int(z.Uint64()) * stride)}
			if len(c.Get(k, 0, row)) > 0 {
				c.Put(k, uint64(i+1), row)
			}
		}
		s := c.Stats()
		return float64(s.Hits) / float64(s.Hits+s.Misses)
	}
	dense, strided := ratio(1), ratio(1<<14)
	t.Logf("hit ratio %.3f, with a stride %.3f", dense, strided)
	if dense < 0.7 || strided < dense-0.03 {
		t.Errorf("hit ratio %.3f, with a stride of 16384 %.3f: want about the same, above 0.7", dense, strided)
	}
}

func TestBytesAreBounded(t *testing.T) {
	const limit = 16 << 20
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for _, dim := range []int{1, 16, 128, rowraft.MaxDim} {
		before := heap()
		c := newCache(t, limit, dim)
		one, row := []rowraft.Key{0}, make([]float32, dim)
		allocs := testing.AllocsPerRun(1, func() {
			for i := range 3 * len(c.lines) {
				one[0] = rowraft.Key(i)
				c.Put(one, 1, row)
			}
		})
		took := heap() - before
		t.Logf("dim %d: %d bytes of %d", dim, took, limit)
		if took > limit+1<<16 || took < limit*9/10 || allocs > 0 {
			t.Errorf("dim %d: the copies take %d bytes and %v allocations: want at most %d, and none", dim, took, allocs, limit)
		}
		runtime.KeepAlive(c)
	}
}

// A row is whole, and as new as asked for, while others put it.
func TestConcurrentUse(t *testing.T) {
	c := newCache(t, MinBytes, 8)
	for key := range 97 {
		c.Put([]rowraft.Key{rowraft.Key(key)}, 1, []float32{1, 1, 1, 1, 1, 1, 1, 1})
	}
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			row, want := make([]float32, 8), make([]float32, 8)
			for i := range 20_000 {
				key, now := []rowraft.Key{rowraft.Key(i % 97)}, uint64(i+1)
				if g%2 == 0 {
					for j := range row {
						row[j] = float32(now)
					}
					c.Put(key, now, row)
					continue
				}
				if len(c.Get(key, now/2, row)) > 0 {
					continue
				}
				for j := range want {
					want[j] = row[0]
				}
				if !slices.Equal(row, want) || row[0] < float32(now/2) {
					t.Errorf("asked for %d: %v", now/2, row)
					return
				}
			}
		})
	}
	all.Wait()
	if c.Stats().Hits == 0 {
		t.Error("nothing was read")
	}
}

func TestClear(t *testing.T) {
	c := newCache(t, MinBytes, 1)
	for key := range 5000 {
		c.Put([]rowraft.Key{rowraft.Key(key)}, 1, []float32{1})
	}
	c.Clear()
	for key := range 5000 {
		if len(c.Get([]rowraft.Key{rowraft.Key(key)}, 0, []float32{0})) == 0 {
			t.Fatalf("key %d is still there", key)
		}
	}
}

func TestEvictionsAreCounted(t *testing.T) {
	c := newCache(t, MinBytes, 1)
	one, row, present := []rowraft.Key{0}, []float32{1}, 0
	keys := 2 * len(c.lines)
	for range 2 { // the second time some keys have a copy, and those of others make room again
		for key := range keys {
			one[0] = rowraft.Key(key)
			if len(c.Get(one, 1, row)) > 0 {
				c.Put(one, 1, row)
			}
		}
	}
	puts := c.Stats().Misses
	for key := range keys {
		one[0] = rowraft.Key(key)
		present += 1 - len(c.Get(one, 1, row))
	}
	if got, want := c.Stats().Evicted, puts-uint64(present); got != want {
		t.Errorf("%d copies evicted, want %d: of %d, %d are there", got, want, puts, present)
	}
}

func TestTooSmall(t *testing.T) {
	if _, err := New(MinBytes-1, 16); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a cache of %d bytes: %v", MinBytes-1, err)
	}
}

// The keys of a batch: 8,192 of 400,000, ascending.
func batches(n int) (out [][]rowraft.Key) {
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		keys := make([]rowraft.Key, 8192)
		for i := range keys {
			keys[i] = rowraft.Key(r.IntN(400_000))
		}
		slices.Sort(keys)
		out = append(out, keys)
	}
	return out
}

func BenchmarkGet(b *testing.B) {
	c, rows := newCache(b, 64<<20, 16), make([]float32, 8192*16)
	all := batches(64)
	for _, keys := range all {
		c.Put(keys, 1, rows)
	}
	n := 0
	for b.Loop() {
		c.Get(all[n%64], 0, rows)
		n++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*8192), "ns/row")
}

func BenchmarkPut(b *testing.B) {
	c, rows := newCache(b, 64<<20, 16), make([]float32, 8192*16)
	all := batches(64)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		c.Put(all[n%64], uint64(n), rows)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*8192), "ns/row")
}
