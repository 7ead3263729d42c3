package rowstore

import (
	"math/rand/v2"
	"testing"

	"github.com/rowraft/rowraft"
)

// BenchmarkTracked updates rows of dim 16 with Adagrad, 7,000 keys a batch, from 1 M keys. It compares a
// table that is not tracked with tracked ones. With a capacity of half the keys, about half of the pushes
// create a row, and each of these evicts one.
func BenchmarkTracked(b *testing.B) {
	const keys, batch = 1_000_000, 7_000
	half := rowraft.Capacity{Rows: keys / 2, Evict: rowraft.EvictLRU}
	lfu := half
	lfu.Evict = rowraft.EvictLFU
	for _, bc := range []struct {
		name   string
		change func(*rowraft.Schema)
	}{
		{"plain", func(*rowraft.Schema) {}},
		{"expire", func(s *rowraft.Schema) { s.Expire = 3600 }},
		{"count=2,admitted", func(s *rowraft.Schema) { s.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 2} }},
		{"count=65535,rejected", func(s *rowraft.Schema) {
			s.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: rowraft.MaxAdmitCount}
		}},
		{"capacity=half,lru", func(s *rowraft.Schema) { s.Capacity = half }},
		{"capacity=half,lfu", func(s *rowraft.Schema) { s.Capacity = lfu }},
	} {
		b.Run(bc.name, func(b *testing.B) {
			schema := testSchema(rowraft.Sparse, rowraft.Adagrad, 16)
			bc.change(&schema)
			table := mustNew(b, schema)
			rng := rand.New(rand.NewPCG(1, 2))
			grads := make([]byte, batch*16*4)
			all := make([]rowraft.Key, batch)
			for from := range 2 * keys / batch { // twice, so that keys reach the admission count
				for i := range all {
					all[i] = rowraft.Key((from*batch + i) % keys)
				}
				if err := table.Update(all, grads, rowraft.Float32, 0.1); err != nil {
					b.Fatal(err)
				}
			}
			drawn := make([][]rowraft.Key, 64)
			for i := range drawn {
				drawn[i] = make([]rowraft.Key, batch)
				for j := range drawn[i] {
					drawn[i][j] = rowraft.Key(rng.IntN(keys))
				}
			}
			before, n := table.Counters(), 0
			b.ResetTimer()
			for b.Loop() {
				table.SetTick(uint32(n))
				if err := table.Update(drawn[n%len(drawn)], grads, rowraft.Float32, 0.1); err != nil {
					b.Fatal(err)
				}
				n++
			}
			b.ReportMetric(float64(n)*batch/b.Elapsed().Seconds(), "keys/s")
			b.ReportMetric(float64(table.Counters().Evicted-before.Evicted)/float64(n*batch), "evicted/key")
			b.ReportMetric(float64(table.Bytes())/keys, "B/key")
		})
	}
}
