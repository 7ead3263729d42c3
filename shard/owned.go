package shard

import (
	"slices"

	"github.com/rowraft/rowraft"
)

// slotSet is the set of the slots of a shard.
type slotSet struct {
	count       rowraft.SlotCount // of the cluster
	first, past rowraft.Slot      // the set is within first … past − 1
	words       []uint64          // a bit for each slot from first on
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
	return o
}

func (o *slotSet) add(s rowraft.Slot) { o.words[(s-o.first)/64] |= 1 << ((s - o.first) % 64) }

func (o *slotSet) has(s rowraft.Slot) bool {
	i := s - o.first
	return s >= o.first && s < o.past && o.words[i/64]>>(i%64)&1 != 0
}
