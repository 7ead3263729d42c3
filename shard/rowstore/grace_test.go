package rowstore

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard/rowstore/order"
)

// TestGraceWaitsForReaders: a retired object is freed as soon as the readers that had entered before have
// left; later readers do not delay it.
func TestGraceWaitsForReaders(t *testing.T) {
	table := mustNew(t, testSchema(rowraft.Sparse, rowraft.SGD, 1))
	retire := func() {
		seg, err := table.index.blocks.Alloc(minSegment)
		if err != nil {
			t.Fatal(err)
		}
		table.index.retire(seg)
	}
	held := func() int { return int(table.index.blocks.Stats().UsedBytes) / (8 * minSegment) }

	retire()
	table.index.reclaim()
	table.index.reclaim()
	if held() != 0 {
		t.Fatalf("%d segments held without a reader, want 0", held())
	}
	old := table.index.grace.Enter()
	retire()
	for range 5 {
		table.index.reclaim()
	}
	if held() != 1 {
		t.Fatalf("%d segments held while a reader may use one, want 1", held())
	}
	young := table.index.grace.Enter() // entered after one epoch ended
	retire()
	table.index.grace.Leave(old)
	table.index.reclaim()
	table.index.reclaim()
	if held() != 1 {
		t.Fatalf("%d segments held while a reader may use the second, want 1", held())
	}
	table.index.grace.Leave(young)
	table.index.reclaim()
	table.index.reclaim()
	if held() != 0 {
		t.Fatalf("%d segments held after all readers have left, want 0", held())
	}
}

// TestGraceWithConcurrentReaders: a writer publishes objects, retires the previous one and marks it freed
// when grace allows; no reader holds a freed object.
func TestGraceWithConcurrentReaders(t *testing.T) {
	type object struct{ freed atomic.Bool }
	var g order.Grace
	var current atomic.Pointer[object]
	current.Store(new(object))
	var done atomic.Bool
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for !done.Load() {
				e := g.Enter()
				o := current.Load()
				for range 20 {
					if o.freed.Load() {
						t.Error("a reader holds what was freed")
						done.Store(true)
					}
				}
				g.Leave(e)
			}
		})
	}
	var waiting [2][]*object
	freed := 0
	for n := 0; n < 1_000_000 && freed < 20_000 && !done.Load(); n++ {
		old := current.Swap(new(object))
		e := g.Epoch()
		waiting[e&1] = append(waiting[e&1], old)
		if e, ok := g.Advance(); ok {
			for _, o := range waiting[e&1] {
				o.freed.Store(true)
				freed++
			}
			waiting[e&1] = nil
		}
	}
	done.Store(true)
	wg.Wait()
	if freed == 0 {
		t.Error("nothing was ever freed")
	}
}
