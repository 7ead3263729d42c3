package slab

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
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

// TestPoolKeepsAStock: the stock grows and shrinks with the chunks in use; no chunk has two owners.
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
	if err := p.give(live[:len(live)/2], false); err != nil {
		t.Fatal(err)
	}
	if err := p.give(live[len(live)/2:], false); err != nil {
		t.Fatal(err)
	}
	if p.out != 0 || len(p.stock)+len(p.reserved)+len(p.small) != 0 {
		t.Errorf("%d out, %d in stock, %d reserved, %d small when all was given back",
			p.out, len(p.stock), len(p.reserved), len(p.small))
	}
}

// TestIndexesHaveTheLastOfTheStock: without the goroutine, rows get small pages when only the chunks for
// indexes are left, and indexes get them when the stock is empty.
func TestIndexesHaveTheLastOfTheStock(t *testing.T) {
	p := newPool()
	var live []unsafe.Pointer
	get := func(use use) {
		c, err := p.take(use)
		if err != nil {
			t.Fatal(err)
		}
		live = append(live, c)
	}
	take := func(use use) (touched bool) { // the goroutine does not run
		before := len(p.small)
		get(use)
		return len(p.small) == before
	}
	for range stockShare {
		get(forRows)
	}
	settle(p)
	p.filling = true // as if the goroutine had no processor
	take(forRows)    // a chunk that is not kept for indexes
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
	if err := p.give(live, false); err != nil {
		t.Fatal(err)
	}
}

// TestShortUseTakesFromTheStock: short uses take chunks from the stock and return them, so that the
// goroutine runs only when the stock is low. A chunk of small pages does not enter the stock.
func TestShortUseTakesFromTheStock(t *testing.T) {
	synctest.Test(t, shortUseTakesFromTheStock) // a timer releases the surplus
}

func shortUseTakesFromTheStock(t *testing.T) {
	p := newPool()
	var rows, short []unsafe.Pointer
	take := func(use use, to *[]unsafe.Pointer) {
		c, err := p.take(use)
		if err != nil {
			t.Fatal(err)
		}
		*to = append(*to, c)
	}
	for range 16 * stockShare {
		take(forRows, &rows)
	}
	settle(p)
	full, small := len(p.stock), len(p.small)
	if full != p.target() {
		t.Fatalf("%d in stock, want %d", full, p.target())
	}
	for len(p.stock) > p.kept()+p.share()/4 {
		take(forShort, &short)
		settle(p)
		if len(p.stock) != full-len(short) {
			t.Fatalf("%d in stock after %d of %d were taken: it was filled again", len(p.stock), len(short), full)
		}
	}
	take(forShort, &short)
	settle(p)
	if len(p.stock) != p.kept()+p.share()/2 {
		t.Errorf("%d in stock when it was low, want %d", len(p.stock), p.kept()+p.share()/2)
	}
	p.filling = true // as if the goroutine had no processor
	for len(p.small) == small {
		take(forShort, &short)
	}
	last := short[len(short)-1]
	p.filling = false
	left, given := len(p.stock), len(short)
	if err := p.give(short, true); err != nil {
		t.Fatal(err)
	}
	if len(p.stock) != left+given-1 || p.surplus == nil { // all except the chunk of small pages
		t.Errorf("%d in stock after %d came back to %d", len(p.stock), given, left)
	}
	if err := p.endSurplus(); err != nil {
		t.Fatal(err)
	}
	if len(p.stock) != p.target() || p.out != len(rows) || len(p.small) != small || slices.Contains(p.stock, last) {
		t.Errorf("%d in stock, want %d; %d out, want %d; %d small, want %d; the last of them is in stock: %v",
			len(p.stock), p.target(), p.out, len(rows), len(p.small), small, slices.Contains(p.stock, last))
	}
	settle(p)
	if err := p.give(rows, false); err != nil {
		t.Fatal(err)
	}
	if p.out != 0 || len(p.stock)+len(p.reserved) != 0 {
		t.Errorf("%d out, %d in stock, %d reserved when all was given back", p.out, len(p.stock), len(p.reserved))
	}
}

// TestSurplusIsOfShortUsesAlone: chunks of rows go back to the system at once, even while there is a
// surplus. Chunks that short uses did not take again go back later, even while short uses continue.
func TestSurplusIsOfShortUsesAlone(t *testing.T) {
	synctest.Test(t, surplusIsOfShortUsesAlone) // a timer releases the surplus
}

func surplusIsOfShortUsesAlone(t *testing.T) {
	p := newPool()
	p.filling = true // the goroutine does not start
	take := func(use use, n int) (cs []unsafe.Pointer) {
		for range n {
			c, err := p.take(use)
			if err != nil {
				t.Fatal(err)
			}
			cs = append(cs, c)
		}
		p.small = nil // as if all became huge pages
		return cs
	}
	give := func(cs []unsafe.Pointer, short bool) {
		if err := p.give(cs, short); err != nil {
			t.Fatal(err)
		}
	}
	rows := take(forRows, 8*stockShare)
	give(take(forShort, 40), true)
	if len(p.stock) != 40 || p.surplus == nil {
		t.Fatalf("%d in stock after a use of 40, and surplus: %v", len(p.stock), p.surplus != nil)
	}
	give(rows[:4*stockShare], false)
	if rows = rows[4*stockShare:]; len(p.stock) != 40 {
		t.Errorf("%d in stock after rows gave %d back to 40", len(p.stock), 4*stockShare)
	}
	give(take(forShort, 20), true)
	if err := p.endIdle(); err != nil {
		t.Fatal(err)
	}
	if len(p.stock) != 20 || p.surplus == nil {
		t.Errorf("%d in stock when 20 were taken again, and surplus: %v", len(p.stock), p.surplus != nil)
	}
	if err := p.endIdle(); err != nil {
		t.Fatal(err)
	}
	if len(p.stock) != p.target() || p.surplus != nil {
		t.Errorf("%d in stock after no chunk was taken, want %d, and surplus: %v", len(p.stock), p.target(), p.surplus != nil)
	}
	p.filling = false
	give(rows, false)
	if p.out != 0 || len(p.stock)+len(p.reserved)+len(p.small) != 0 {
		t.Errorf("%d out, %d in stock, %d reserved, %d small when all was given back",
			p.out, len(p.stock), len(p.reserved), len(p.small))
	}
}

// TestSplitIsExact compares split with a division, for the places with the largest error.
func TestSplitIsExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 0))
	for size := 8; size <= chunkBytes/2; size += 8 * (1 + rng.IntN(50)) {
		s := mustNew(t, size)
		for range 200 {
			p := rng.Uint32()
			for _, p := range []uint32{p, p - p%s.perChunk, p - p%s.perChunk - 1, math.MaxUint32 - p%3, p % 3} {
				if chunk, within := s.split(Place(p)); chunk != p/s.perChunk || within != p%s.perChunk {
					t.Fatalf("place %d of %d a chunk: %d and %d, want %d and %d",
						p, s.perChunk, chunk, within, p/s.perChunk, p%s.perChunk)
				}
			}
		}
	}
}
