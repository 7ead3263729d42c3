package rowstore

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/rowraft/rowraft"
)

// BenchmarkTierPull pulls from a table of four times its memory, 1,024 keys at a time, with its file in the page cache.
func BenchmarkTierPull(b *testing.B) {
	s := testSchema(rowraft.Sparse, rowraft.Adagrad, 16)
	s.Memory = 41 << 20
	file, err := os.Create(filepath.Join(b.TempDir(), "cold"))
	if err != nil {
		b.Fatal(err)
	}
	t, err := New(Options{Schema: s, Tier: file})
	if err != nil {
		b.Fatal(err)
	}
	defer t.Close()
	const n = 1024
	grads := make([]byte, n*16*4)
	for k := 0; k < benchRows; k += n {
		if err := t.Update(keysUpTo(k, k+n), grads, rowraft.Float32, 0.1); err != nil {
			b.Fatal(err)
		}
	}
	z := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.05, 1, benchRows-1)
	keys := make([]rowraft.Key, 1<<21)
	for i := range keys {
		keys[i] = rowraft.Key(z.Uint64() * 7919 % benchRows)
	}
	pull := func(i int) {
		if err := t.Pull(keys[i*n%len(keys):][:n], grads, rowraft.Float32, nil); err != nil {
			b.Fatal(err)
		}
		if t.Tier().NeedsSettle() {
			if err := t.Tier().Settle(); err != nil {
				b.Fatal(err)
			}
		}
	}
	for i := range 4096 {
		pull(i)
	}
	before := t.Tier().Stats().Read
	b.ResetTimer()
	for i := range b.N {
		pull(i)
	}
	b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds()/1e6, "Mrows/s")
	b.ReportMetric(float64(t.Tier().Stats().Read-before)/float64(b.N)/n, "cold")
}
