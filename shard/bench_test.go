package shard

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

const (
	benchRows = 1_000_000
	benchPart = 7_000
)

// benchMachine returns a machine with an Adagrad table of dim 16 and benchRows rows.
func benchMachine(b *testing.B) (*replica, rowraft.Schema) {
	table := testTable(3, "bench", 16, adagrad)
	r := newReplica(b, Config{})
	r.create(table)
	r.mustOpen(1, 1)
	seq := rowraft.Seq(0)
	for from := 0; from < benchRows; from += benchPart {
		keys := make([]rowraft.Key, min(benchPart, benchRows-from))
		for i := range keys {
			keys[i] = rowraft.Key(from + i)
		}
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
			keys = append(keys, rowraft.Key(rng.IntN(benchRows)))
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
	}
	return keys[:n]
}

func BenchmarkApply(b *testing.B) {
	for _, dt := range []rowraft.DType{rowraft.Float32, rowraft.BFloat16} {
		b.Run("dim=16/rows=1M/part=7000/"+dt.String(), func(b *testing.B) {
			r, table := benchMachine(b)
			rng := rand.New(rand.NewPCG(1, 2))
			entries := make([][]byte, 32)
			for i := range entries {
				p := push(2, 1, payloadOf(rows{schema: table, dtype: dt, keys: randomKeys(rng, benchPart)}))
				entries[i] = entryOf(r.header(), p)
			}
			seq := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				e := entries[seq%uint64(len(entries))]
				seq++
				// the number and the floor of the only part
				le.PutUint64(e[wire.EntryHeaderSize+24:], seq)
				le.PutUint64(e[wire.EntryHeaderSize+32:], seq-1)
				if got := r.apply(e).Parts[0]; got.Err != nil || got.Duplicate {
					b.Fatal(got)
				}
			}
			b.ReportMetric(float64(b.N)*benchPart/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

func BenchmarkPull(b *testing.B) {
	for _, dt := range []rowraft.DType{rowraft.Float32, rowraft.BFloat16} {
		b.Run("dim=16/rows=1M/keys=8192/"+dt.String(), func(b *testing.B) {
			r, table := benchMachine(b)
			rng := rand.New(rand.NewPCG(1, 2))
			asks := make([][]byte, 32)
			for i := range asks {
				asks[i] = payloadOf(rows{schema: table, dtype: dt, flags: wire.FlagNoValues, keys: randomKeys(rng, 8192)})
			}
			buf := make([]byte, 1<<20)
			alloc := func(n int) []byte { return buf[:n] }
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := r.Pull(asks[i%len(asks)], false, 0, alloc); err != nil {
					b.Fatal(err)
				}
				i++
			}
			b.ReportMetric(float64(b.N)*8192/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkSnapshot measures the pause of Apply (begin and release), and the time until all rows are
// written and restored.
func BenchmarkSnapshot(b *testing.B) {
	r, _ := benchMachine(b)
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
	r, _ := benchMachine(b)
	entry := wire.ProofEntry(r.header(), &wire.Proof{Step: wire.ProofMark})
	for b.Loop() {
		r.apply(entry)
	}
}

func BenchmarkScrub(b *testing.B) {
	r, _ := benchMachine(b)
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
	r, table := benchMachine(b)
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
