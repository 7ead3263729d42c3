package shard

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// TestHashesOfASlotSet compares hasHash with the slot of the hash, for all slots, none, ranges and ranges with holes.
// The hashes are the first, the last and one in the middle of each slot.
func TestHashesOfASlotSet(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		count := rowraft.SlotCount(1 << rapid.IntRange(12, 16).Draw(rt, "bits"))
		var slots []rowraft.Slot
		want := func(rowraft.Slot) bool { return true }
		if !rapid.Bool().Draw(rt, "all") {
			first := rapid.IntRange(0, int(count)-1).Draw(rt, "first")
			slots = []rowraft.Slot{}
			in := map[rowraft.Slot]bool{}
			hole := rapid.SampledFrom([]int{1, 3, 1 << 20}).Draw(rt, "every so many slots one is missing")
			for i := range min(int(count)-first, rapid.SampledFrom([]int{0, 1, 64, 1000, 1 << 16}).Draw(rt, "slots")) {
				if i%hole != hole-1 {
					slots = append(slots, rowraft.Slot(first+i))
					in[rowraft.Slot(first+i)] = true
				}
			}
			want = func(s rowraft.Slot) bool { return in[s] }
		}
		set := newSlotSet(count, slots)
		width := ^uint64(0)/uint64(count) + 1
		for s := range rowraft.Slot(count) {
			for _, h := range []uint64{uint64(s) * width, uint64(s)*width + width/2, uint64(s)*width + width - 1} {
				if clustermap.SlotOfHash(h, count) != s {
					rt.Fatalf("hash %#x is in slot %d, want %d", h, clustermap.SlotOfHash(h, count), s)
				}
				if set.hasHash(h) != want(s) || set.has(s) != want(s) {
					rt.Fatalf("%d of %d slots from %d on: slot %d: %v by hash %#x, %v by slot, want %v", len(slots), count,
						set.first, s, set.hasHash(h), h, set.has(s), want(s))
				}
			}
		}
	})
}
