// Package clock finds records of a slab that were not used lately (CLOCK, second chance).
//
// Each place has two bits: it has a record, and the record was used since the hand passed it. Touch may be called at
// any time. All other methods have one caller at a time.
package clock

import (
	"sync/atomic"

	"github.com/rowraft/rowraft/internal/slab"
)

const pageBits = 1 << 16

type page [pageBits / 32]uint32

// Clock is the bits of one slab.
type Clock struct {
	has  []uint64
	used []atomic.Pointer[page] // the uses of later places are not recorded
	hand slab.Place
}

// New returns a Clock that records the uses of the first places.
func New(places int) *Clock {
	return &Clock{used: make([]atomic.Pointer[page], places/pageBits+1)}
}

// Add notes that p has a record now.
func (c *Clock) Add(p slab.Place) {
	for int(p/64) >= len(c.has) {
		c.has = append(c.has, 0)
	}
	c.has[p/64] |= 1 << (p % 64)
	if i := int(p / pageBits); i < len(c.used) && c.used[i].Load() == nil {
		c.used[i].Store(new(page))
	}
}

// Remove notes that p has no record any more.
func (c *Clock) Remove(p slab.Place) { c.has[p/64] &^= 1 << (p % 64) }

// word returns the word with the use of p, or nil if uses of p are not recorded.
func (c *Clock) word(p slab.Place) (w *uint32, bit uint32) {
	if i := int(p / pageBits); i < len(c.used) {
		if page := c.used[i].Load(); page != nil {
			return &page[p%pageBits/32], 1 << (p % 32)
		}
	}
	return nil, 0
}

// Touch notes a use of the record at p. A use before the first Add of a place near p may be lost.
func (c *Clock) Touch(p slab.Place) {
	if w, bit := c.word(p); w != nil && atomic.LoadUint32(w)&bit == 0 {
		atomic.OrUint32(w, bit)
	}
}

// Take removes a place whose record was not used since the hand passed it, and returns it. ok is false if all were used
// again and again.
func (c *Clock) Take() (p slab.Place, ok bool) {
	places := slab.Place(64 * len(c.has))
	for looked := uint64(0); looked < 2*uint64(places); looked++ {
		if p = c.hand; p >= places {
			p = 0
		}
		c.hand = p + 1
		if c.has[p/64] == 0 {
			c.hand, looked = p|63+1, looked|63
			continue
		}
		if c.has[p/64]>>(p%64)&1 == 0 {
			continue
		}
		if w, bit := c.word(p); w != nil && atomic.LoadUint32(w)&bit != 0 {
			atomic.AndUint32(w, ^bit)
			continue
		}
		c.Remove(p)
		return p, true
	}
	return 0, false
}
