package slab

import (
	"slices"
	"sync"
	"unsafe"
)

const (
	// chunkBytes is the size of a transparent huge page on amd64 and arm64. Slabs
	// and Blocks take memory in chunks of so much.
	chunkBytes = 2 << 20

	// maxStock is how many chunks lie ready at most, and stockShare how many are in
	// use for each of them. As many again, but at most maxKept, are for indexes alone.
	maxStock   = 64
	stockShare = 16
	maxKept    = 4

	// enabledAtOnce is how many chunks become usable in one call of the system.
	enabledAtOnce = 16

	// maxSmall is how many chunks of small pages are left as they are: the newest,
	// which are being filled.
	maxSmall = 4
)

// use is what a chunk is taken for. Rows touch theirs bit by bit; an index segment
// of many pages is cleared at once, so those have the last ones of the stock.
type use bool

const (
	forRows  use = false
	forIndex use = true
)

// pool hands out chunks to all slabs of the process. Touching a new huge page
// takes the kernel 0.1 ms, and several when memory is in pieces or a hypervisor has
// taken it back, which is too long for who applies a log: a goroutine keeps some
// chunks in stock that were touched already. It runs when the stock is low, and no
// longer. The stock is what rows at full speed take in 0.2 s, so that it lasts
// while the goroutine has no processor.
//
// Who comes when the stock is empty waits for nobody, but gets a chunk of small
// pages, which the kernel makes one by one as they are touched: slower in all, but
// never slow at once. When it should be full, the kernel is asked to make it a huge
// page in its time.
type pool struct {
	mu      sync.Mutex
	stock   []unsafe.Pointer // populated
	enabled []unsafe.Pointer // usable
	small   []unsafe.Pointer // in use, of small pages, the oldest first
	out     int              // chunks in use
	filling bool             // the goroutine runs
	ended   *sync.Cond       // filling has become false
}

// shared is the pool of the process: one stock serves all slabs.
var shared = newPool()

func newPool() *pool {
	p := &pool{}
	p.ended = sync.NewCond(&p.mu)
	return p
}

// take returns chunkBytes of zeroes, aligned to chunkBytes.
//
// Errors: CodeOverloaded if the system gives no memory.
func (p *pool) take(use use) (unsafe.Pointer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := 0
	if use == forRows {
		kept = p.kept()
	}
	var c unsafe.Pointer
	if n := len(p.stock); n > kept {
		c, p.stock = p.stock[n-1], p.stock[:n-1]
	} else {
		if len(p.enabled) == 0 {
			more, err := enableMore()
			if err != nil {
				return nil, err
			}
			p.enabled = more
		}
		n := len(p.enabled)
		c, p.enabled = p.enabled[n-1], p.enabled[:n-1]
		p.small = append(p.small, c)
	}
	p.out++
	if !p.filling && len(p.stock) < p.target() {
		p.filling = true
		go p.fill()
	}
	return c, nil
}

// target is how many chunks should be in stock, and kept how many of them are for
// indexes. REQUIRES: p.mu is held.
func (p *pool) target() int { return min(maxStock, p.share()) + p.kept() }

func (p *pool) kept() int { return min(maxKept, p.share()) }

func (p *pool) share() int { return (p.out + stockShare - 1) / stockShare }

// fill populates chunks until the stock is full.
func (p *pool) fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.stock) < p.target() && p.populateOne() {
		for len(p.small) > maxSmall {
			advise(p.small[0]) // under p.mu, so that it is not released meanwhile
			p.small = slices.Delete(p.small, 0, 1)
		}
	}
	p.filling = false
	p.ended.Broadcast()
}

// populateOne adds to the stock, and reports false if the system gives no memory:
// whoever takes a chunk will hear of it. REQUIRES: p.mu is held, and let go.
func (p *pool) populateOne() bool {
	if len(p.enabled) < enabledAtOnce/2 {
		p.mu.Unlock()
		more, err := enableMore()
		p.mu.Lock()
		if err != nil {
			return false
		}
		p.enabled = append(p.enabled, more...)
	}
	c := p.enabled[0]
	p.enabled = slices.Delete(p.enabled, 0, 1)
	p.mu.Unlock()
	populate(c)
	p.mu.Lock()
	p.stock = append(p.stock, c)
	return true
}

// give returns chunks, and to the system what the stock needs no more. It waits
// for the goroutine if nothing is in use any more, so that nothing is left behind.
func (p *pool) give(cs []unsafe.Pointer) error {
	p.mu.Lock()
	p.out -= len(cs)
	p.small = slices.DeleteFunc(p.small, func(c unsafe.Pointer) bool { return slices.Contains(cs, c) })
	for p.out == 0 && p.filling {
		p.ended.Wait()
	}
	cs = slices.Clone(cs)
	if over := len(p.stock) - p.target(); over > 0 {
		cs = append(cs, p.stock[len(p.stock)-over:]...)
		p.stock = p.stock[:len(p.stock)-over]
	}
	if p.out == 0 {
		cs = append(cs, p.enabled...)
		p.enabled = nil
	}
	p.mu.Unlock()
	return releaseAll(cs)
}

// enableMore returns usable chunks, side by side.
func enableMore() ([]unsafe.Pointer, error) {
	base, err := reserve(enabledAtOnce * chunkBytes)
	if err != nil {
		return nil, err
	}
	if err := enable(base, enabledAtOnce*chunkBytes); err != nil {
		_ = release(base, enabledAtOnce*chunkBytes) // the first error says more
		return nil, err
	}
	cs := make([]unsafe.Pointer, enabledAtOnce)
	for i := range cs { // take goes up from the first of them, fill down from the last
		cs[len(cs)-1-i] = unsafe.Add(base, i*chunkBytes)
	}
	return cs, nil
}

// releaseAll releases chunks, those side by side in one call.
func releaseAll(cs []unsafe.Pointer) error {
	slices.SortFunc(cs, func(a, b unsafe.Pointer) int {
		if uintptr(a) < uintptr(b) {
			return -1
		}
		return 1
	})
	var first error
	for len(cs) > 0 {
		n := 1
		for n < len(cs) && uintptr(cs[n]) == uintptr(cs[0])+uintptr(n*chunkBytes) {
			n++
		}
		if err := release(cs[0], n*chunkBytes); err != nil && first == nil {
			first = err
		}
		cs = cs[n:]
	}
	return first
}
