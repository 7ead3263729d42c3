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
	// use for each of them. As many again, but at most maxKept, are for indexes alone.
	maxStock   = 64
	stockShare = 16
	maxKept    = 4

	// enabledAtOnce is how many chunks become usable in one call of the system.
	enabledAtOnce = 16

	// surplusFor is how often the stock gives up what came back from short uses and was
	// not taken since the last time.
	surplusFor = 30 * time.Second

	// maxSmall is how many chunks of small pages are left as they are: the newest,
	// which are being filled.
	maxSmall = 4
)

// use is what a chunk is taken for. Rows touch theirs bit by bit; an index segment
// of many pages is cleared at once, so those have the last ones of the stock. What lives
// shortly gives its chunks back to the stock, which is not filled for it before it is
// low; they stay there for a while, for such uses come again soon when there is much to
// do.
type use uint8

const (
	forRows use = iota
	forIndex
	forShort
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
	aim     int              // at how many in stock the goroutine ends
	filling bool             // it runs
	ended   *sync.Cond       // filling has become false
	surplus *time.Timer      // of what is kept of short uses; nil: nothing is
	idle    int              // how many in stock were not taken since it began
}

// shared is the pool of the process: one stock serves all slabs.
var shared = newPool()

func newPool() *pool {
	p := &pool{}
	p.ended = sync.NewCond(&p.mu)
	return p
}

// take returns chunkBytes, aligned to chunkBytes, with anything in them.
//
// Errors: CodeOverloaded if the system gives no memory.
func (p *pool) take(use use) (unsafe.Pointer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := 0
	if use != forIndex {
		kept = p.kept()
	}
	var c unsafe.Pointer
	if n := len(p.stock); n > kept {
		c, p.stock = p.stock[n-1], p.stock[:n-1]
		p.idle = min(p.idle, n-1)
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
	aim, low := p.target(), p.target()
	if use == forShort {
		aim, low = p.kept()+p.share()/2, p.kept()+p.share()/4
	}
	if len(p.stock) < low {
		p.aim = max(p.aim, aim)
		if !p.filling {
			p.filling = true
			go p.fill()
		}
	}
	return c, nil
}

// target is how many chunks should be in stock, and kept how many of them are for
// indexes. REQUIRES: p.mu is held.
func (p *pool) target() int { return min(maxStock, p.share()) + p.kept() }

func (p *pool) kept() int { return min(maxKept, p.share()) }

func (p *pool) share() int { return (p.out + stockShare - 1) / stockShare }

// fill populates chunks until the stock is as full as it should be.
func (p *pool) fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.stock) < min(p.aim, p.target()) && p.populateOne() {
		for len(p.small) > maxSmall {
			advise(p.small[0]) // under p.mu, so that it is not released meanwhile
			p.small = slices.Delete(p.small, 0, 1)
		}
	}
	p.filling, p.aim = false, 0
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

// give returns chunks to the stock, and to the system what the stock needs not, later if
// their use was short. It waits for the goroutine if nothing is in use any more, so that
// nothing is left behind.
func (p *pool) give(cs []unsafe.Pointer, short bool) error {
	p.mu.Lock()
	p.out -= len(cs)
	for p.out == 0 && p.filling {
		p.ended.Wait()
	}
	var over []unsafe.Pointer
	for _, c := range cs {
		if i := slices.Index(p.small, c); i >= 0 { // not all of it was touched
			p.small = slices.Delete(p.small, i, i+1)
			over = append(over, c)
		} else if short || len(p.stock) < p.target() {
			p.stock = append(p.stock, c)
		} else {
			over = append(over, c)
		}
	}
	switch {
	case p.out == 0 || p.surplus == nil && !short:
		over = append(over, p.trimLocked()...)
	case p.surplus == nil && len(p.stock) > p.target():
		p.idle = len(p.stock)
		// The system refuses nothing here: the addresses are those of chunks.
		p.surplus = time.AfterFunc(surplusFor, func() { _ = p.endIdle() })
	}
	p.mu.Unlock()
	return releaseAll(over)
}

// endIdle gives the system what the stock needs not and nobody took since the last time.
func (p *pool) endIdle() error {
	p.mu.Lock()
	if p.surplus == nil { // what there was has ended
		p.mu.Unlock()
		return nil
	}
	over := p.shorten(max(len(p.stock)-p.idle, p.target()))
	if p.idle = len(p.stock); p.idle > p.target() {
		p.surplus.Reset(surplusFor)
	} else {
		p.surplus = nil
	}
	p.mu.Unlock()
	return releaseAll(over)
}

// Trim gives the system what only lies ready for a short use. A process that is short
// of memory calls it.
func Trim() error { return shared.endSurplus() }

// endSurplus gives the system what the stock needs not.
func (p *pool) endSurplus() error {
	p.mu.Lock()
	over := p.trimLocked()
	p.mu.Unlock()
	return releaseAll(over)
}

// shorten takes out of the stock what is more than n. REQUIRES: p.mu is held.
func (p *pool) shorten(n int) (over []unsafe.Pointer) {
	if len(p.stock) > n {
		over = slices.Clone(p.stock[n:])
		p.stock = p.stock[:n]
	}
	return over
}

// trimLocked takes out of the stock what it needs not, which is all of it when nothing is
// in use. REQUIRES: p.mu is held.
func (p *pool) trimLocked() []unsafe.Pointer {
	if p.surplus != nil {
		p.surplus.Stop()
		p.surplus = nil
	}
	over := p.shorten(p.target())
	if p.out == 0 {
		over = append(over, p.enabled...)
		p.enabled = nil
	}
	return over
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
