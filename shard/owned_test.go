package shard

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// TestHashesOfASlotSet compares hasHash with the slot of the hash, for all slots, none, ranges and ranges with holes.
func TestHashesOfASlotSet(t *testing.T) {
	checkHashes(t, rowraft.DefaultSlots, nil)
	checkHashes(t, rowraft.DefaultSlots, []rowraft.Slot{})
	rapid.Check(t, func(rt *rapid.T) {
		count := 1 << rapid.IntRange(12, 16).Draw(rt, "bits")
		first := rapid.IntRange(0, count-1).Draw(rt, "first")
		n := min(count-first, rapid.SampledFrom([]int{1, 64, 1000, 1 << 16}).Draw(rt, "slots"))
		hole := rapid.SampledFrom([]int{2, 3, 1 << 20}).Draw(rt, "every so many slots one is missing")
		slots := []rowraft.Slot{}
		for i := range n {
			if i%hole != hole-1 {
				slots = append(slots, rowraft.Slot(first+i))
			}
		}
		checkHashes(rt, rowraft.SlotCount(count), slots)
	})
}

// checkHashes asks the set of slots, nil for all, for the first, the last and a hash in the middle of each slot.
func checkHashes(t rapid.TB, count rowraft.SlotCount, slots []rowraft.Slot) {
	in := map[rowraft.Slot]bool{}
	for _, s := range slots {
		in[s] = true
	}
	set := newSlotSet(count, slots)
	for s := range rowraft.Slot(count) {
		low, span := clustermap.HashesOfSlots(s, s+1, count)
		for _, h := range []uint64{low, low + span/2, low + span} {
			if got := clustermap.SlotOfHash(h, count); got != s {
				t.Fatalf("hash %#x is in slot %d, want %d", h, got, s)
			}
			if want := slots == nil || in[s]; set.hasHash(h) != want || set.has(s) != want {
				t.Fatalf("%d of %d slots from %d on: slot %d: %v by hash %#x, %v by slot, want %v", len(slots), count,
					set.first, s, set.hasHash(h), h, set.has(s), want)
			}
		}
	}
}
