package shard

import (
	"bytes"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// BenchmarkRestart writes a snapshot of 1 M rows of dim 16 with Adagrad for the log, and restores it: from memory, and
// from a table with a fifth of its rows in memory.
func BenchmarkRestart(b *testing.B) {
	const rowCount = 1_000_000
	for _, tc := range []struct {
		name   string
		memory uint64
	}{{"memory", 0}, {"tiered", 40 << 20}} {
		b.Run(tc.name, func(b *testing.B) {
			s := testTable(1, "t", 16, adagrad)
			s.Memory = tc.memory
			tier := tierIn(b, vfs.OS)
			r := newReplica(b, Config{Tier: tier})
			r.create(s)
			r.mustOpen(1, 1)
			for seq, k := rowraft.Seq(1), rowraft.Key(0); k < rowCount; seq++ {
				keys := make([]rowraft.Key, 5000)
				for i := range keys {
					keys[i], k = k, k+1
				}
				r.parts(push(1, seq, payloadOf(rows{schema: s, keys: keys})))
			}
			var write, restore time.Duration
			var stream bytes.Buffer
			for b.Loop() {
				begun := time.Now()
				snap, err := r.Snapshot()
				if err != nil {
					b.Fatal(err)
				}
				stream.Reset()
				if _, err := snap.WriteLocal(&stream); err != nil {
					b.Fatal(err)
				}
				write += time.Since(begun)
				snap.Keep(true)
				snap.Release()
				b.StopTimer()
				if err := r.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				r = newReplica(b, Config{Tier: tier})
				begun = time.Now()
				if err := r.Restore(bytes.NewReader(stream.Bytes())); err != nil {
					b.Fatal(err)
				}
				restore += time.Since(begun)
			}
			b.ReportMetric(float64(stream.Len())/(1<<20), "MiB")
			b.ReportMetric(float64(write.Milliseconds())/float64(b.N), "ms/write")
			b.ReportMetric(float64(restore.Milliseconds())/float64(b.N), "ms/restore")
		})
	}
}
