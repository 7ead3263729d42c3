package rowstore

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
)

const (
	benchRows  = 1_000_000
	benchBatch = 8192
)

// filled returns a table with rows 0 … n-1, pushed in batches.
func filled(tb testing.TB, schema rowraft.Schema, n int) *Table {
	tb.Helper()
	t := mustNew(tb, schema)
	keys := make([]rowraft.Key, 0, benchBatch)
	grads := make([]byte, benchBatch*schema.Dim*4)
	for k := 0; k < n; {
		keys = keys[:0]
		for ; k < n && len(keys) < benchBatch; k++ {
			keys = append(keys, rowraft.Key(k))
		}
		if err := t.Update(keys, grads[:len(keys)*schema.Dim*4], rowraft.Float32, 0.1); err != nil {
			tb.Fatal(err)
		}
	}
	return t
}

// batches draws batches of keys; zipf has exponent 1.05 over scattered keys.
func batches(dist string, rows int) [][]rowraft.Key {
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.05, 1, uint64(rows-1))
	out := make([][]rowraft.Key, 64)
	for i := range out {
		out[i] = make([]rowraft.Key, benchBatch)
		for j := range out[i] {
			if dist == "zipf" {
				out[i][j] = rowraft.Key(zipf.Uint64() * 7919 % uint64(rows))
			} else {
				out[i][j] = rowraft.Key(rng.IntN(rows))
			}
		}
	}
	return out
}

func rowsPerSecond(b *testing.B) {
	b.ReportMetric(float64(b.N)*benchBatch/b.Elapsed().Seconds()/1e6, "Mrows/s")
}

func BenchmarkPull(b *testing.B) {
	schema := testSchema(rowraft.Sparse, rowraft.Adagrad, 16)
	t := filled(b, schema, benchRows)
	for _, dist := range []string{"uniform", "zipf"} {
		keys := batches(dist, benchRows)
		dst := make([]byte, benchBatch*16*4)
		for _, dt := range []rowraft.DType{rowraft.Float32, rowraft.BFloat16} {
			b.Run(fmt.Sprintf("table/dim=16/rows=1M/%s/%s", dist, dt), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if err := t.Pull(keys[i%len(keys)], dst[:benchBatch*16*dt.Size()], dt, nil); err != nil {
						b.Fatal(err)
					}
				}
				rowsPerSecond(b)
			})
		}
	}
	b.Run("table/dim=16/rows=1M/missing", func(b *testing.B) {
		keys := make([]rowraft.Key, benchBatch)
		for i := range keys {
			keys[i] = rowraft.Key(benchRows + i)
		}
		dst := make([]byte, benchBatch*16*4)
		b.ReportAllocs()
		for b.Loop() {
			if err := t.Pull(keys, dst, rowraft.Float32, nil); err != nil {
				b.Fatal(err)
			}
		}
		rowsPerSecond(b)
	})
}

// BenchmarkPullGoMap does the same work on a Go map. It is a separate benchmark because the garbage
// collector's marking of a million pointers would slow the others.
func BenchmarkPullGoMap(b *testing.B) {
	goMap := make(map[rowraft.Key]*[16]float32, benchRows)
	for k := range benchRows {
		goMap[rowraft.Key(k)] = new([16]float32)
	}
	for _, dist := range []string{"uniform", "zipf"} {
		keys := batches(dist, benchRows)
		b.Run(fmt.Sprintf("dim=16/rows=1M/%s", dist), func(b *testing.B) {
			out := make([]float32, benchBatch*16)
			for i := 0; b.Loop(); i++ {
				for j, k := range keys[i%len(keys)] {
					copy(out[j*16:], goMap[k][:])
				}
			}
			rowsPerSecond(b)
		})
	}
}

func BenchmarkUpdate(b *testing.B) {
	for _, bc := range []struct {
		opt rowraft.OptimizerKind
		dim int
	}{{rowraft.Adagrad, 16}, {rowraft.Adagrad, 64}, {rowraft.SGD, 16}, {rowraft.Adam, 16}, {rowraft.RowWiseAdagrad, 64},
		{rowraft.FTRL, 64}} {
		t := filled(b, testSchema(rowraft.Sparse, bc.opt, bc.dim), benchRows)
		for _, dist := range []string{"uniform", "zipf"} {
			keys := batches(dist, benchRows)
			grads := make([]byte, benchBatch*bc.dim*4)
			for i := range grads {
				grads[i] = byte(i%4) * 0x11
			}
			b.Run(fmt.Sprintf("%s/dim=%d/rows=1M/%s", bc.opt, bc.dim, dist), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if err := t.Update(keys[i%len(keys)], grads, rowraft.Float32, 0.001); err != nil {
						b.Fatal(err)
					}
				}
				rowsPerSecond(b)
			})
		}
		if err := t.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkManyTables accesses 104 tables in turns, 79 rows at a time. A server with 4 shards and 26 tables does the
// same for a batch of 8,192 keys.
func BenchmarkManyTables(b *testing.B) {
	const tables, perTable, perCall = 104, benchRows / 104, 79
	schema := testSchema(rowraft.Sparse, rowraft.SGD, 16)
	owned := func(s rowraft.Slot) bool { return s < rowraft.DefaultSlots/4 }
	numbers := make([]byte, perTable*16*4)
	var rows []rowraft.Key
	ts := make([]*Table, tables)
	for i := range ts {
		t, err := New(Options{Schema: schema, Owned: owned})
		if err != nil {
			b.Fatal(err)
		}
		defer t.Close()
		for key := rowraft.Key(0); len(rows) < perTable; key++ {
			if t.Owns(t.index.slotOf(key)) {
				rows = append(rows, key)
			}
		}
		if err := t.Update(rows, numbers, rowraft.Float32, 0.1); err != nil {
			b.Fatal(err)
		}
		ts[i] = t
	}
	keys := batches("uniform", perTable)
	for _, batch := range keys {
		for i := range batch {
			batch[i] = rows[batch[i]]
		}
	}
	numbers = numbers[:perCall*16*4]
	run := func(name string, call func(t *Table, keys []rowraft.Key) error) {
		b.Run(name+"/sgd/dim=16/tables=104/keys=79", func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				from := i / tables * perCall % (benchBatch - perCall)
				if err := call(ts[i%tables], keys[i%len(keys)][from:from+perCall]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*perCall/b.Elapsed().Seconds()/1e6, "Mrows/s")
		})
	}
	run("pull", func(t *Table, keys []rowraft.Key) error { return t.Pull(keys, numbers, rowraft.Float32, nil) })
	run("update", func(t *Table, keys []rowraft.Key) error { return t.Update(keys, numbers, rowraft.Float32, 0.001) })
}

// BenchmarkCreate pushes keys that have no row.
func BenchmarkCreate(b *testing.B) {
	schema := testSchema(rowraft.Sparse, rowraft.Adagrad, 16)
	for b.Loop() {
		filled(b, schema, benchRows/4)
	}
	b.ReportMetric(float64(b.N)*benchRows/4/b.Elapsed().Seconds()/1e6, "Mrows/s")
}

func BenchmarkBeginSnapshot(b *testing.B) {
	t := filled(b, testSchema(rowraft.Sparse, rowraft.Adagrad, 16), benchRows)
	var begin time.Duration
	for b.Loop() {
		start := time.Now()
		s, err := t.BeginSnapshot()
		if err != nil {
			b.Fatal(err)
		}
		begin += time.Since(start)
		if err := s.End(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(begin.Nanoseconds())/1e3/float64(b.N), "µs/begin")
}

// BenchmarkUpdateDuringSnapshot updates while snapshots run one after the other. Each snapshot saves as
// many rows as are updated during it. The reported share of time and images are those of the snapshot,
// without a disk.
func BenchmarkUpdateDuringSnapshot(b *testing.B) {
	for _, dist := range []string{"uniform", "zipf"} {
		b.Run("adagrad/dim=64/rows=1M/"+dist, func(b *testing.B) {
			t := filled(b, testSchema(rowraft.Sparse, rowraft.Adagrad, 64), benchRows)
			keys := batches(dist, benchRows)
			grads := make([]byte, benchBatch*64*4)
			var snap *Snapshot
			var slot rowraft.Slot
			var buf []byte
			var saved, images, rounds int64
			var updating time.Duration
			for i := 0; b.Loop(); i++ {
				if snap == nil {
					var err error
					if snap, err = t.BeginSnapshot(); err != nil {
						b.Fatal(err)
					}
					slot = 0
				}
				start := time.Now()
				if err := t.Update(keys[i%len(keys)], grads, rowraft.Float32, 0.001); err != nil {
					b.Fatal(err)
				}
				updating += time.Since(start)
				for goal := saved + benchBatch; saved < goal && slot < rowraft.DefaultSlots; slot++ {
					var done bool
					if buf, done = snap.AppendSlot(buf[:0], slot, 1<<20); !done {
						b.Fatal("a slot was not done")
					}
					saved += int64(len(buf) / t.RecordBytes())
				}
				if slot == rowraft.DefaultSlots {
					images += snap.ImageBytes()
					rounds++
					if err := snap.End(); err != nil {
						b.Fatal(err)
					}
					snap = nil
				}
			}
			b.ReportMetric(float64(b.N)*benchBatch/updating.Seconds()/1e6, "Mrows_updated/s")
			b.ReportMetric(float64(saved)/(b.Elapsed()-updating).Seconds()/1e6, "Mrows_saved/s")
			if rounds > 0 {
				b.ReportMetric(100*float64(images)/float64(rounds)/float64(benchRows*t.RecordBytes()), "%images_at_peak")
			}
		})
	}
}
