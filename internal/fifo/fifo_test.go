package fifo

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestQueueAgainstASlice adds and takes at random, and compares each step with a slice.
func TestQueueAgainstASlice(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	var q Queue[*int]
	var want []*int
	for range 200 {
		for range r.IntN(100) {
			item := new(int)
			q.Add(item)
			want = append(want, item)
		}
		for range r.IntN(120) {
			item, ok := q.Take()
			if ok != (len(want) > 0) || ok && item != want[0] || !ok && item != nil {
				t.Fatalf("seed %d: took %p, %v with %d items in the queue", seed, item, ok, len(want))
			}
			want = slices.Delete(want, 0, min(1, len(want)))
		}
		if q.Len() != len(want) {
			t.Fatalf("seed %d: Len is %d, want %d", seed, q.Len(), len(want))
		}
		held := 0 // items that are taken must be free for the garbage collector
		for _, item := range q.items[:cap(q.items)] {
			if item != nil {
				held++
			}
		}
		if held != len(want) {
			t.Fatalf("seed %d: %d items, %d are held", seed, len(want), held)
		}
	}
}

// TestAnEmptyQueueIsSmall: a burst leaves no memory behind, and a queue that is never empty does not grow.
func TestAnEmptyQueueIsSmall(t *testing.T) {
	var q Queue[int]
	for i := range 10_000 {
		q.Add(i)
	}
	for range 10_000 {
		q.Take()
	}
	if cap(q.items) > keptItems {
		t.Errorf("an empty queue has %d places", cap(q.items))
	}
	q.Add(0)
	for i := range 100_000 {
		q.Add(i)
		q.Take()
	}
	if cap(q.items) > keptItems {
		t.Errorf("a queue of one or two items has %d places", cap(q.items))
	}
	if n := testing.AllocsPerRun(1000, func() { q.Add(1); q.Take() }); n > 0 {
		t.Errorf("%v allocations per item", n)
	}
}
