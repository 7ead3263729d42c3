package shard

import (
	"math/bits"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// slotSet is the set of the slots of a shard.
type slotSet struct {
	count       rowraft.SlotCount // of the cluster
	first, past rowraft.Slot      // the set is within first … past − 1
	words       []uint64          // a bit for each slot from first on

	// The hashes of keys in slots first … past − 1 are low … low + span.
	low, span uint64
	holes     bool // some of these slots are not in the set, or it is empty
}

// newSlotSet returns the set of slots, or of all slots if slots is nil.
func newSlotSet(count rowraft.SlotCount, slots []rowraft.Slot) *slotSet {
	o := &slotSet{count: count, past: rowraft.Slot(count)}
	if slots != nil && len(slots) == 0 {
		o.past = 0
	} else if slots != nil {
		o.first, o.past = slices.Min(slots), slices.Max(slots)+1
	}
	o.words = make([]uint64, (o.past-o.first+63)/64)
	for s := o.first; slots == nil && s < o.past; s++ {
		o.add(s)
	}
	for _, s := range slots {
		o.add(s)
	}
	o.low, o.span = clustermap.HashesOfSlots(o.first, o.past, count)
	n := 0
	for _, w := range o.words {
		n += bits.OnesCount64(w)
	}
	o.holes = n == 0 || n < int(o.past-o.first)
	return o
}

func (o *slotSet) add(s rowraft.Slot) { o.words[(s-o.first)/64] |= 1 << ((s - o.first) % 64) }

// hasHash reports whether the set has the slot of a key with hash h.
func (o *slotSet) hasHash(h uint64) bool {
	return h-o.low <= o.span && (!o.holes || o.has(clustermap.SlotOfHash(h, o.count)))
}

func (o *slotSet) has(s rowraft.Slot) bool {
	i := s - o.first
	return s >= o.first && s < o.past && o.words[i/64]>>(i%64)&1 != 0
}
