package shard

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/wire"
)

const (
	benchRows = 1_000_000
	benchPart = 8_192
)

// benchKey returns the key of row i. The keys of a batch ascend, and their rows are in no order in memory.
func benchKey(i int) rowraft.Key { return rowraft.Key(clustermap.Mix64(uint64(i))) }

// benchMachine returns a machine with a table of dim 16 and benchRows rows.
func benchMachine(b *testing.B, opt rowraft.Optimizer) (*replica, rowraft.Schema) {
	table := testTable(3, "bench", 16, opt)
	r := newReplica(b, Config{})
	r.create(table)
	r.mustOpen(1, 1)
	seq := rowraft.Seq(0)
	for from := 0; from < benchRows; from += benchPart {
		keys := make([]rowraft.Key, min(benchPart, benchRows-from))
		for i := range keys {
			keys[i] = benchKey(from + i)
		}
		slices.Sort(keys)
		seq++
		p := push(1, seq, payloadOf(rows{schema: table, keys: keys}))
		p.Floor = seq - 1
		if err := r.parts(p)[0].Err; err != nil {
			b.Fatal(err)
		}
	}
	r.mustOpen(2, 1)
	return r, table
}

func randomKeys(rng *rand.Rand, n int) []rowraft.Key {
	keys := make([]rowraft.Key, 0, n+n/8)
	for len(keys) < n {
		for len(keys) < cap(keys) {
			keys = append(keys, benchKey(rng.IntN(benchRows)))
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
	}
	return keys[:n]
}

func BenchmarkApply(b *testing.B) {
	client := byte(2)
	eachBenchTable(b, func(b *testing.B, r *replica, table rowraft.Schema, dt rowraft.DType) {
		client++
		r.mustOpen(client, 1)
		rng := rand.New(rand.NewPCG(1, 2))
		entries := make([][]byte, 32)
		for i := range entries {
			p := push(client, 1, payloadOf(rows{schema: table, dtype: dt, keys: randomKeys(rng, benchPart)}))
			entries[i] = entryOf(r.header(), p)
		}
		perRow(b, func(i int) {
			e := entries[i%len(entries)]
			// the number and the floor of the only part
			le.PutUint64(e[wire.EntryHeaderSize+24:], uint64(i)+1)
			le.PutUint64(e[wire.EntryHeaderSize+32:], uint64(i))
			if got := r.apply(e).Parts[0]; got.Err != nil || got.Duplicate {
				b.Fatal(got)
			}
		})
	})
}

func BenchmarkPull(b *testing.B) {
	eachBenchTable(b, func(b *testing.B, r *replica, table rowraft.Schema, dt rowraft.DType) {
		rng := rand.New(rand.NewPCG(1, 2))
		asks := make([][]byte, 32)
		for i := range asks {
			asks[i] = payloadOf(rows{schema: table, dtype: dt, flags: wire.FlagNoValues, keys: randomKeys(rng, benchPart)})
		}
		buf := make([]byte, 1<<20)
		alloc := func(n int) []byte { return buf[:n] }
		perRow(b, func(i int) {
			if _, _, err := r.Pull(asks[i%len(asks)], false, 0, alloc); err != nil {
				b.Fatal(err)
			}
		})
	})
}

func eachBenchTable(b *testing.B, run func(*testing.B, *replica, rowraft.Schema, rowraft.DType)) {
	for _, opt := range []rowraft.Optimizer{adagrad, sgd} {
		b.Run(fmt.Sprintf("%s/dim=16/rows=1M/part=%d", opt.Kind, benchPart), func(b *testing.B) {
			r, table := benchMachine(b, opt)
			for _, dt := range []rowraft.DType{rowraft.Float32, rowraft.BFloat16} {
				b.Run(dt.String(), func(b *testing.B) { run(b, r, table, dt) })
			}
		})
	}
}

// perRow runs do, which processes benchPart rows, and reports the CPU time of a row: of all calls, and of the fastest
// four calls in a row. On a busy machine wall time measures the other processes, and they also slow this one down.
func perRow(b *testing.B, do func(i int)) {
	const few = 4
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.ReportAllocs()
	best := int64(math.MaxInt64)
	start := threadTime()
	part := start
	for i := 0; b.Loop(); i++ {
		do(i)
		if i%few == few-1 {
			now := threadTime()
			best, part = min(best, now-part), now
		}
	}
	b.ReportMetric(float64(threadTime()-start)/float64(b.N)/benchPart, "cpu-ns/row")
	if b.N >= few {
		b.ReportMetric(float64(best)/few/benchPart, "best-ns/row")
	}
}

// threadTime returns the CPU time of this thread in nanoseconds.
func threadTime() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // an error leaves 0
	return t.Nano()
}

// BenchmarkSnapshot measures the pause of Apply (begin and release), and the time until all rows are
// written and restored.
func BenchmarkSnapshot(b *testing.B) {
	r, _ := benchMachine(b, adagrad)
	b.Run("begin/rows=1M", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s, err := r.Snapshot()
			if err != nil {
				b.Fatal(err)
			}
			s.Release()
		}
	})
	stream := r.snapshot()
	b.Run("write/rows=1M", func(b *testing.B) {
		for b.Loop() {
			s, err := r.Snapshot()
			if err != nil {
				b.Fatal(err)
			}
			if _, err := s.WriteTo(io.Discard); err != nil {
				b.Fatal(err)
			}
			s.Release()
		}
		b.ReportMetric(float64(b.N)*benchRows/b.Elapsed().Seconds(), "rows/s")
		b.SetBytes(int64(len(stream)))
	})
	b.Run("restore/rows=1M", func(b *testing.B) {
		other := newReplica(b, Config{})
		for b.Loop() {
			if err := other.Restore(bytes.NewReader(stream)); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)*benchRows/b.Elapsed().Seconds(), "rows/s")
		b.SetBytes(int64(len(stream)))
	})
}

// BenchmarkMark measures how long Apply takes to record a digest; BenchmarkScrub measures a pass over all rows.
func BenchmarkMark(b *testing.B) {
	r, _ := benchMachine(b, adagrad)
	entry := wire.ProofEntry(r.header(), &wire.Proof{Step: wire.ProofMark})
	for b.Loop() {
		r.apply(entry)
	}
}

func BenchmarkScrub(b *testing.B) {
	r, _ := benchMachine(b, adagrad)
	for b.Loop() {
		for pass := r.scrub.passes; r.scrub.passes == pass; {
			if err := r.Scrub(1 << 30); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(benchRows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(benchRows)*152*float64(b.N)/b.Elapsed().Seconds()/1e6, "MB/s")
}

// BenchmarkPart writes the part of a checkpoint: all rows, or a delta after some rows were pushed since its base.
func BenchmarkPart(b *testing.B) {
	r, table := benchMachine(b, adagrad)
	rng := rand.New(rand.NewPCG(1, 2))
	seq := rowraft.Seq(0)
	for _, touched := range []int{benchRows, benchRows / 100, benchRows / 10} {
		base := make(map[rowraft.Slot]uint64)
		snap, err := r.Snapshot()
		if err != nil {
			b.Fatal(err)
		}
		sums, err := snap.Sums()
		if err != nil {
			b.Fatal(err)
		}
		for _, s := range sums {
			base[s.Slot] = s.Counter
		}
		snap.Release()
		name := "full"
		if touched < benchRows {
			name = fmt.Sprintf("delta/touched=%d%%", 100*touched/benchRows)
			for keys := range slices.Chunk(randomKeys(rng, touched), benchPart) {
				seq++
				p := push(2, seq, payloadOf(rows{schema: table, keys: keys}))
				p.Floor = seq - 1
				if err := r.parts(p)[0].Err; err != nil {
					b.Fatal(err)
				}
			}
		}
		b.Run(name, func(b *testing.B) {
			bytes := int64(0)
			for b.Loop() {
				snap, err := r.Snapshot()
				if err != nil {
					b.Fatal(err)
				}
				if touched == benchRows {
					bytes, err = snap.WriteRows(io.Discard)
				} else {
					bytes, err = snap.WriteDelta(io.Discard, func(_ rowraft.TableID, s rowraft.Slot) uint64 { return base[s] })
				}
				if err != nil {
					b.Fatal(err)
				}
				snap.Release()
			}
			b.ReportMetric(float64(bytes)/1e6, "MB")
		})
	}
}
