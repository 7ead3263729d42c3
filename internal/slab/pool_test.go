package slab

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// settle waits until the goroutine of p has ended.
func settle(p *pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.filling {
		p.ended.Wait()
	}
}

// TestPoolKeepsAStock: it grows with what is in use and goes with it; a chunk is
// zero and nobody else's, whichever way it came.
func TestPoolKeepsAStock(t *testing.T) {
	p := newPool()
	seen := map[unsafe.Pointer]bool{}
	var live []unsafe.Pointer
	take := func(n int) {
		for range n {
			c, err := p.take(forRows)
			if err != nil {
				t.Fatal(err)
			}
			mem := unsafe.Slice((*uint64)(c), chunkBytes/8)
			if seen[c] || uintptr(c)%chunkBytes != 0 || mem[0] != 0 || mem[len(mem)-1] != 0 {
				t.Fatalf("chunk %p: seen %v, first word %x, last %x", c, seen[c], mem[0], mem[len(mem)-1])
			}
			mem[0], mem[len(mem)-1] = 1, 1
			seen[c] = true
			live = append(live, c)
		}
		settle(p)
	}
	take(1)
	if len(p.stock) != 2 || len(p.small) != 1 {
		t.Errorf("%d in stock and %d of small pages after the first chunk, want 2 and 1", len(p.stock), len(p.small))
	}
	take(1)
	if len(p.small) != 1 {
		t.Error("the second chunk did not come from the stock")
	}
	take(3 * stockShare)
	if want := 4 + maxKept; len(p.stock) != want {
		t.Errorf("%d in stock at %d in use, want %d", len(p.stock), len(live), want)
	}
	take(maxStock * stockShare / 4)
	if err := p.give(live[:len(live)/2]); err != nil {
		t.Fatal(err)
	}
	if err := p.give(live[len(live)/2:]); err != nil {
		t.Fatal(err)
	}
	if p.out != 0 || len(p.stock)+len(p.enabled)+len(p.small) != 0 {
		t.Errorf("%d out, %d in stock, %d enabled, %d small when all was given back", p.out, len(p.stock), len(p.enabled), len(p.small))
	}
}

// TestIndexesHaveTheLastOfTheStock: while nobody fills it, rows get small pages when
// only what is kept for indexes is left, and indexes when nothing is.
func TestIndexesHaveTheLastOfTheStock(t *testing.T) {
	p := newPool()
	var live []unsafe.Pointer
	take := func(use use) (touched bool) {
		before := len(p.small)
		c, err := p.take(use)
		if err != nil {
			t.Fatal(err)
		}
		live = append(live, c)
		return len(p.small) == before
	}
	for range stockShare {
		take(forRows)
	}
	settle(p)
	p.filling = true // as if the goroutine had no processor
	take(forRows)    // of those beyond what is kept
	for len(p.stock) > p.kept() {
		take(forRows)
	}
	kept := len(p.stock)
	if kept == 0 || take(forRows) || len(p.stock) != kept {
		t.Errorf("rows took one of the last %d chunks of the stock", kept)
	}
	for i := range kept {
		if !take(forIndex) {
			t.Errorf("chunk %d of %d that are kept was not for an index", i, kept)
		}
	}
	if take(forIndex) {
		t.Error("a chunk came from an empty stock")
	}
	p.filling = false
	if err := p.give(live); err != nil {
		t.Fatal(err)
	}
}

// TestSplitIsExact compares it with a division, where it is nearest to be wrong.
func TestSplitIsExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 0))
	for size := 8; size <= chunkBytes/2; size += 8 * (1 + rng.IntN(50)) {
		s := mustNew(t, size)
		for range 200 {
			p := rng.Uint32()
			for _, p := range []uint32{p, p - p%s.perChunk, p - p%s.perChunk - 1, math.MaxUint32 - p%3, p % 3} {
				if chunk, within := s.split(Place(p)); chunk != p/s.perChunk || within != p%s.perChunk {
					t.Fatalf("place %d of %d a chunk: %d and %d, want %d and %d", p, s.perChunk, chunk, within, p/s.perChunk, p%s.perChunk)
				}
			}
		}
	}
}
