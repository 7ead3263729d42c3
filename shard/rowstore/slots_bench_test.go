package rowstore

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
)

// BenchmarkSlots measures what the number of slots of a cluster costs a table of a shard that holds all slots, and of
// one that holds an eighth: Go heap of the empty table, an update, and a snapshot that is read to its end.
func BenchmarkSlots(b *testing.B) {
	const rows, batch = 200_000, 8192
	for _, slots := range []rowraft.SlotCount{rowraft.DefaultSlots, rowraft.MaxSlots} {
		for _, part := range []rowraft.SlotCount{1, 8} {
			past := rowraft.Slot(slots / part)
			options := Options{
				Schema: testSchema(rowraft.Sparse, rowraft.Adagrad, 16), Slots: slots,
				Owned: func(s rowraft.Slot) bool { return s < past },
			}
			name := fmt.Sprintf("slots=%d/held=%d", slots, past)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			t, err := New(options)
			if err != nil {
				b.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			keys := make([]rowraft.Key, 0, rows)
			for k := rowraft.Key(0); len(keys) < rows; k++ {
				if t.Owns(t.index.slotOf(k)) {
					keys = append(keys, k)
				}
			}
			rand.New(rand.NewPCG(1, 2)).Shuffle(rows, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			grads := make([]byte, batch*16*4)
			update := func(i int) {
				from := i * batch % (rows - batch)
				if err := t.Update(keys[from:from+batch], grads, rowraft.Float32, 0.001); err != nil {
					b.Fatal(err)
				}
			}
			for i := range rows/batch + 1 {
				update(i)
			}
			b.Run("update/"+name, func(b *testing.B) {
				cpu := cpuTime()
				for i := 0; b.Loop(); i++ {
					update(i)
				}
				b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N)/batch, "cpu-ns/row")
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1024, "KiB_empty")
				b.ReportMetric(float64(t.Bytes())/float64(t.Rows()), "B/row")
			})
			b.Run("snapshot/"+name, func(b *testing.B) {
				var begin time.Duration
				cpu := cpuTime()
				var buf []byte
				for b.Loop() {
					start := time.Now()
					s, err := t.BeginSnapshot()
					if err != nil {
						b.Fatal(err)
					}
					begin += time.Since(start)
					for slot := range past {
						buf, _ = s.AppendSlot(buf[:0], slot, 1<<20)
					}
					if err := s.End(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N)/1e6, "cpu-ms/snapshot")
				b.ReportMetric(float64(begin.Microseconds())/float64(b.N), "µs/begin")
			})
			if err := t.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// cpuTime returns the CPU time of the process in nanoseconds, where the system reports it: on a busy machine wall time
// measures the other processes.
func cpuTime() int64 {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // an error leaves 0
	return r.Utime.Nano() + r.Stime.Nano()
}
