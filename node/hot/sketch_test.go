package hot

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/wire"
)

// request returns segments of one table with keys.
func request(table rowraft.TableID, keys ...rowraft.Key) []byte {
	seg := wire.Segment{Table: table, DType: rowraft.Float32, Dim: 1, N: len(keys), Flags: wire.FlagNoValues}
	b := make([]byte, seg.Size())
	body := seg.Put(b)
	for i, k := range keys {
		for j := range 8 {
			body.Keys[8*i+j] = byte(k >> (8 * j))
		}
	}
	return b
}

// TestSketchFindsTheHotKeys: with keys by Zipf, far more than counters, the sketch has the hottest keys with shares
// within their bounds, for small requests and for large ones. No time passes, so no count halves on a slow machine.
func TestSketchFindsTheHotKeys(t *testing.T) { synctest.Test(t, findTheHotKeys) }

func findTheHotKeys(t *testing.T) {
	for _, batch := range []int{1, 64, 4096} {
		rng := rand.New(rand.NewPCG(1, uint64(batch)))
		zipf := rand.NewZipf(rng, 1.2, 1, 1<<20)
		s := NewSketch(func() int { return 1 })
		truth, total := make(map[rowraft.Key]float64), 0.0
		for range 1 << 21 / batch {
			keys := make([]rowraft.Key, batch)
			for i := range keys {
				keys[i] = rowraft.Key(clustermap.Mix64(zipf.Uint64()))
				truth[keys[i]]++
				total++
			}
			s.Add(request(7, keys...), batch == 64)
		}
		v := s.View(7, 50)
		if len(v.Tables) != 1 || v.Tables[0].Pulled+v.Tables[0].Pushed != total {
			t.Fatalf("batches of %d: totals %+v, want %v accesses to one table", batch, v.Tables, total)
		}
		samples := total * total / v.Tables[0].Weights
		for i, c := range v.Keys[:10] {
			got, want := c.Count/total, truth[c.Key]/total
			off := max(got-want-c.Error/total, want-got)
			if sigma := want / samples; off*off > 25*sigma { // five standard deviations of the sample
				t.Errorf("batches of %d: key %d: share %.4f (error %.4f), want %.4f", batch, i, got, c.Error/total, want)
			}
		}
		hottest := rowraft.Key(clustermap.Mix64(0))
		if v.Keys[0].Key != hottest {
			t.Errorf("batches of %d: first key %#x, want %#x", batch, v.Keys[0].Key, hottest)
		}
		if v.Floor < v.Keys[49].Count*0.5 {
			t.Errorf("batches of %d: floor %v below the counts of further keys", batch, v.Floor)
		}
		if other := s.View(8, 50); len(other.Keys)+len(other.Tables) > 0 {
			t.Errorf("another table has %+v", other)
		}
	}
}

// TestSketchForgets: counts halve with time, as does the time that they stand for, so the rate of a steady load stays.
func TestSketchForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSketch(func() int { return 1 })
		if v := s.View(0, 10); v.Over != 0 || len(v.Keys) > 0 {
			t.Errorf("an empty sketch shows %+v", v)
		}
		add := func(key rowraft.Key, seconds int) {
			for range seconds * 100 {
				time.Sleep(10 * time.Millisecond)
				s.Add(request(1, key), false)
			}
		}
		add(1, 600)
		v := s.View(0, 10)
		if rate := v.Tables[0].Pulled / v.Over.Seconds(); rate < 99 || rate > 101 {
			t.Errorf("%.1f rows/s over %v, want 100", rate, v.Over)
		}
		add(2, 300)
		if v = s.View(0, 10); v.Keys[0].Key != 2 || len(v.Keys) > 1 && v.Keys[1].Count > v.Keys[0].Count/100 {
			t.Errorf("after 300 s of key 2: %+v", v.Keys)
		}
		time.Sleep(time.Hour)
		if v = s.View(0, 10); len(v.Keys)+len(v.Tables) > 0 {
			t.Errorf("after an hour without requests: %+v", v)
		}
	})
}

// TestABusySketchTakesFewSamples: the number of samples of a second has a bound, whatever the load, and the strides
// follow the load down again.
func TestABusySketchTakesFewSamples(t *testing.T) {
	t.Run("shards=1", func(t *testing.T) { testBusySketch(t, 1, samplesPerSecond) })
	t.Run("shards=64", func(t *testing.T) { testBusySketch(t, 64, serverSamples/64) })
}

func testBusySketch(t *testing.T, shards, want int) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSketch(func() int { return shards })
		// load returns the samples per second, on average of the last 40 of 60 seconds: which keys are counted is random.
		load := func(requests int) float64 {
			segments, samples := request(1, make([]rowraft.Key, 512)...), 0
			for second := range 60 {
				for range requests {
					time.Sleep(time.Second / time.Duration(requests))
					before := s.samples
					s.Add(segments, false)
					if s.samples < before { // they were compared with the limit
						before = 0
					}
					if second >= 20 {
						samples += s.samples - before
					}
				}
			}
			return float64(samples) / 40
		}
		if n, most := load(2000), float64(want); n < most/4 || n > 2*most {
			t.Errorf("%v samples in a second of 2000 requests, want about %v", n, most)
		}
		if load(1); s.stride != minStride {
			t.Errorf("with a request a second one of %d keys is counted, want %d", s.stride, minStride)
		}
	})
}

// BenchmarkSketch is the cost of a request of small and large pulls.
func BenchmarkSketch(b *testing.B) {
	for _, batch := range []int{64, 8192} {
		b.Run(map[int]string{64: "keys=64", 8192: "keys=8192"}[batch], func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			zipf := rand.NewZipf(rng, 1.2, 1, 1<<20)
			var reqs [][]byte
			for range 1024 {
				keys := make([]rowraft.Key, batch)
				for i := range keys {
					keys[i] = rowraft.Key(clustermap.Mix64(zipf.Uint64()))
				}
				reqs = append(reqs, request(7, keys...))
			}
			s := NewSketch(func() int { return 1 })
			for i := 0; b.Loop(); i++ {
				s.Add(reqs[i%len(reqs)], false)
			}
		})
	}
}
