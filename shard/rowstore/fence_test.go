//go:build linux && amd64 && !race

package rowstore

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard/rowstore/order"
)

// TestSnapshotWhileTheSystemCannotFence: while membarrier has no memory, a snapshot waits until it works
// again or until the writer makes strict claims. The process continues, and the snapshot is that of its
// begin.
func TestSnapshotWhileTheSystemCannotFence(t *testing.T) {
	if !order.CanFence() {
		t.Skip("this system has no membarrier")
	}
	works := order.FenceOthers
	defer func() { order.FenceOthers = works }()
	for _, fails := range []int64{5, 1 << 40} { // it works again after so many failures, or never
		var left atomic.Int64
		left.Store(fails)
		order.FenceOthers = func() bool { return left.Add(-1) < 0 && works() }
		table := mustNew(t, testSchema(rowraft.Sparse, rowraft.SGD, 1))
		keys := make([]rowraft.Key, 20_000)
		for i := range keys {
			keys[i] = rowraft.Key(i)
		}
		ones := make([]float32, len(keys))
		mustUpdate(t, table, keys, ones)
		for range 2 {
			snap, err := table.BeginSnapshot()
			if err != nil {
				t.Fatal(err)
			}
			want := table.Digest()
			var read atomic.Bool
			var wg sync.WaitGroup
			wg.Go(func() {
				defer read.Store(true)
				rows, sum := 0, Digest{}
				var b []byte
				for slot := range rowraft.Slot(rowraft.DefaultSlots) {
					for done := false; !done; {
						b, done = snap.AppendSlot(b[:0], slot, 64)
						rows += len(b) / table.RecordBytes()
					}
					sum = sum.Add(snap.Slot(slot).Digest)
				}
				if rows != len(keys) || sum != want {
					t.Errorf("%d rows with digest %v, want %d with %v", rows, sum, len(keys), want)
				}
			})
			begun := time.Now()
			for n := 0; !read.Load() || n < 3; n++ {
				if time.Since(begun) > time.Minute {
					t.Fatalf("the reader of the snapshot still waits for a fence or for strict claims after %d changes", n)
				}
				mustUpdate(t, table, keys[n%10*1000:][:1000], ones[:1000])
			}
			wg.Wait()
			if left.Load() > 0 && table.snaps.loose.Load() {
				t.Error("claims are loose, and the system cannot fence")
			}
			if err := snap.End(); err != nil {
				t.Fatal(err)
			}
		}
		if left.Load() == fails {
			t.Error("nothing was fenced")
		}
	}
}
