package slab

import (
	"math/bits"
	"slices"
	"sync"
	"time"
	"unsafe"
)

const (
	// chunkBytes is the size of a transparent huge page on amd64 and arm64. Slabs and Blocks take memory in
	// chunks of this size.
	chunkBytes = 2 << 20

	// maxStock limits the number of chunks in stock. The stock has one chunk for each stockShare chunks in
	// use. As many more, but at most maxKept, are kept for indexes.
	maxStock   = 64
	stockShare = 16
	maxKept    = 4

	// reservedAtOnce is how many chunks one system call makes usable.
	reservedAtOnce = 16

	// minFirst is how much of a first chunk comes into use at first: a small page of most systems.
	minFirst = 4 << 10

	// surplusFor is the interval at which the stock releases chunks that came back from short uses and were
	// not taken since the last time.
	surplusFor = 30 * time.Second

	// maxSmall is how many chunks of small pages are left unchanged: the newest, which are still being filled.
	maxSmall = 4
)

// use is the purpose of a chunk. Rows touch their memory gradually; an index segment of many pages is
// cleared at once, so indexes may take the last chunks of the stock. Short-lived memory returns its chunks
// to the stock; the stock is filled for it only when it is low. Such chunks stay in the stock for some
// time, because under load short uses are frequent.
type use uint8

const (
	forRows use = iota
	forIndex
	forShort
)

// pool supplies chunks to all slabs of the process. The kernel takes 0.1 ms to touch a new huge page, and
// several ms when memory is fragmented or a hypervisor has taken it back. That is too long for the
// goroutine that applies a log, so another goroutine keeps some touched chunks in stock. It runs only while
// the stock is low. The stock is what rows at full speed need in 0.2 s, so that it lasts while the
// goroutine has no processor.
//
// A caller that finds the stock empty does not wait. It gets a chunk of small pages, which the kernel adds
// one by one as they are touched: slower in total, but never slow at once. When the chunk should be full,
// pool asks the kernel to turn it into a huge page later.
type pool struct {
	mu          sync.Mutex
	stock       []unsafe.Pointer // populated
	reserved    []unsafe.Pointer // usable, not populated
	firstChunks []unsafe.Pointer // for the first chunks of Slabs and Blocks, with small pages only; zero
	small       []unsafe.Pointer // chunks of small pages in use, oldest first
	out         int              // chunks in use
	aim         int              // the size of the stock at which the goroutine ends
	filling     bool             // the goroutine runs
	ended       *sync.Cond       // signalled when filling becomes false
	surplus     *time.Timer      // releases unused chunks of short uses; nil: there are none
	idle        int              // chunks in stock that were not taken since surplus was set
}

// shared is the only pool of the process: one stock serves all slabs.
var shared = newPool()

func newPool() *pool {
	p := &pool{}
	p.ended = sync.NewCond(&p.mu)
	return p
}

// take returns chunkBytes, aligned to chunkBytes, with undefined content.
//
// Errors: CodeOverloaded if the system has no memory.
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
		if len(p.reserved) == 0 {
			more, err := reserveMore()
			if err != nil {
				return nil, err
			}
			p.reserved = more
		}
		n := len(p.reserved)
		c, p.reserved = p.reserved[n-1], p.reserved[:n-1]
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

// takeFirst returns the first chunk of a Slab or Blocks. Most tables are small, and each has at least two first chunks
// in each shard, of rows and of index. So they have small pages, and 16 of them are one mapping: vm.max_map_count
// limits the mappings of a process, by default to 65,530.
//
// Errors: CodeOverloaded if the system has no memory.
func (p *pool) takeFirst() (unsafe.Pointer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.firstChunks) == 0 {
		more, err := reserveMore()
		if err != nil {
			return nil, err
		}
		keepSmall(more[len(more)-1], reservedAtOnce*chunkBytes)
		p.firstChunks = more
	}
	n := len(p.firstChunks)
	c := p.firstChunks[n-1]
	p.firstChunks = p.firstChunks[:n-1]
	return c, nil
}

// giveFirst takes back a chunk from takeFirst. It frees the memory and keeps the addresses.
func (p *pool) giveFirst(c unsafe.Pointer) error {
	if err := discard(c); err != nil {
		return err
	}
	p.mu.Lock()
	p.firstChunks = append(p.firstChunks, c)
	p.mu.Unlock()
	return nil
}

// firstStep returns how many bytes of a first chunk come into use next when the first used bytes are in use: at least
// minFirst, else an eighth to a quarter of them. It is a power of two, and used is a multiple of it.
func firstStep(used int) int { return max(minFirst, 1<<bits.Len(uint(used))/8) }

// target is how many chunks should be in stock, and kept is how many of them are for indexes. REQUIRES:
// p.mu is held.
func (p *pool) target() int { return min(maxStock, p.share()) + p.kept() }

func (p *pool) kept() int { return min(maxKept, p.share()) }

func (p *pool) share() int { return (p.out + stockShare - 1) / stockShare }

// fill populates chunks until the stock is full.
func (p *pool) fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.stock) < min(p.aim, p.target()) && p.populateOne() {
		for len(p.small) > maxSmall {
			advise(p.small[0]) // under p.mu, so that the chunk is not released during the call
			p.small = slices.Delete(p.small, 0, 1)
		}
	}
	p.filling, p.aim = false, 0
	p.ended.Broadcast()
}

// populateOne adds a chunk to the stock. It returns false if the system has no memory; a later take returns
// the error. REQUIRES: p.mu is held; populateOne releases and takes it again.
func (p *pool) populateOne() bool {
	if len(p.reserved) < reservedAtOnce/2 {
		p.mu.Unlock()
		more, err := reserveMore()
		p.mu.Lock()
		if err != nil {
			return false
		}
		p.reserved = append(p.reserved, more...)
	}
	c := p.reserved[0]
	p.reserved = slices.Delete(p.reserved, 0, 1)
	p.mu.Unlock()
	populate(c)
	p.mu.Lock()
	p.stock = append(p.stock, c)
	return true
}

// give returns chunks to the stock. It releases chunks that the stock does not need to the system, later if
// their use was short. If no chunk is in use any more, it waits for the goroutine, so that no memory
// remains.
func (p *pool) give(cs []unsafe.Pointer, short bool) error {
	p.mu.Lock()
	p.out -= len(cs)
	for p.out == 0 && p.filling {
		p.ended.Wait()
	}
	var over []unsafe.Pointer
	for _, c := range cs {
		if i := slices.Index(p.small, c); i >= 0 { // it is only partly touched
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
		// This cannot fail: the addresses are those of chunks.
		p.surplus = time.AfterFunc(surplusFor, func() { _ = p.endIdle() })
	}
	p.mu.Unlock()
	return releaseAll(over)
}

// endIdle releases the chunks that the stock does not need and that were not taken since the last call.
func (p *pool) endIdle() error {
	p.mu.Lock()
	if p.surplus == nil { // endSurplus has released the chunks
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

// Trim releases the chunks that are only kept for short uses. A process that is short of memory calls it.
func Trim() error { return shared.endSurplus() }

// endSurplus releases the chunks that the stock does not need.
func (p *pool) endSurplus() error {
	p.mu.Lock()
	over := p.trimLocked()
	p.mu.Unlock()
	return releaseAll(over)
}

// shorten removes chunks from the stock until n are left. REQUIRES: p.mu is held.
func (p *pool) shorten(n int) (over []unsafe.Pointer) {
	if len(p.stock) > n {
		over = slices.Clone(p.stock[n:])
		p.stock = p.stock[:n]
	}
	return over
}

// trimLocked removes the chunks that the stock does not need: all of them if no chunk is in use. REQUIRES:
// p.mu is held.
func (p *pool) trimLocked() []unsafe.Pointer {
	if p.surplus != nil {
		p.surplus.Stop()
		p.surplus = nil
	}
	over := p.shorten(p.target())
	if p.out == 0 {
		over = append(over, p.reserved...)
		p.reserved = nil
	}
	return over
}

// reserveMore returns usable, adjacent chunks.
func reserveMore() ([]unsafe.Pointer, error) {
	base, err := reserve(reservedAtOnce * chunkBytes)
	if err != nil {
		return nil, err
	}
	cs := make([]unsafe.Pointer, reservedAtOnce)
	for i := range cs { // take uses the first ones first, fill the last ones first
		cs[len(cs)-1-i] = unsafe.Add(base, i*chunkBytes)
	}
	return cs, nil
}

// releaseAll releases chunks, adjacent ones in one call.
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
