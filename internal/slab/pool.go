package slab

import (
	"slices"
	"sync"
	"time"
	"unsafe"
)

const (
	// chunkBytes is the size of a transparent huge page on amd64 and arm64. Slabs
	// and Blocks take memory in chunks of so much.
	chunkBytes = 2 << 20

	// maxStock is how many chunks lie ready at most, and stockShare how many are in
	// use for each of them.
	maxStock   = 16
	stockShare = 16

	// enabledAtOnce is how many chunks become usable in one call of the system.
	enabledAtOnce = 16

	// maxSmall is how many chunks of small pages are left as they are: the newest,
	// which are being filled.
	maxSmall = 4

	// patience is how long taking a chunk waits for the stock: what clearing a huge
	// page takes, but not what finding one may take.
	patience = 300 * time.Microsecond
)

// pool hands out chunks to all slabs of the process. Touching a new huge page
// takes the kernel 0.1 ms, and several when memory is in pieces, which is too long
// for who applies a log: a goroutine keeps some chunks in stock that were touched
// already. It runs when the stock is low, and no longer.
//
// Who comes when the stock is empty waits a moment, and then gets a chunk of small
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

	arrived chan struct{} // has an element when the stock may have grown
}

// shared is the pool of the process: one stock serves all slabs.
var shared = newPool()

func newPool() *pool {
	p := &pool{arrived: make(chan struct{}, 1)}
	p.ended = sync.NewCond(&p.mu)
	return p
}

// take returns chunkBytes of zeroes, aligned to chunkBytes.
//
// Errors: CodeOverloaded if the system gives no memory.
func (p *pool) take() (unsafe.Pointer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var c unsafe.Pointer
	if len(p.stock) == 0 && p.out > 0 {
		p.await()
	}
	if n := len(p.stock); n > 0 {
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
	p.start()
	return c, nil
}

// start starts fill if there is something to do. REQUIRES: p.mu is held.
func (p *pool) start() {
	if !p.filling && len(p.stock) < p.target() {
		p.filling = true
		go p.fill()
	}
}

// await waits until something is in stock, but not long. REQUIRES: p.mu is held,
// and let go meanwhile.
func (p *pool) await() {
	p.start()
	p.mu.Unlock()
	defer p.mu.Lock()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-p.arrived:
	case <-late.C:
	}
}

// target is how many chunks should be in stock.
// REQUIRES: p.mu is held.
func (p *pool) target() int { return min(maxStock, (p.out+stockShare-1)/stockShare) }

// fill populates chunks until the stock is full.
func (p *pool) fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.stock) < p.target() && p.populateOne() {
		select {
		case p.arrived <- struct{}{}:
		default:
		}
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
