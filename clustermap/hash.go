package clustermap

import (
	"encoding/binary"
	"math/bits"

	"github.com/rowraft/rowraft"
)

// HashVersion is stored in every snapshot and checkpoint: a change of Hash
// would move every row.
const HashVersion = 1

const golden = 0x9E3779B97F4A7C15 // 2^64 / φ, as in splitmix64

// Mix64 is the finalizer of splitmix64 (Steele, Lea, Flood 2014).
func Mix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// TableSeed is the part of Hash that depends only on the table.
func TableSeed(table rowraft.TableID) uint64 { return Mix64(uint64(table.Origin()) + golden) }

// Hash is Mix64(key ⊕ Mix64(origin + golden)). Its top bits are the slot.
func Hash(table rowraft.TableID, key rowraft.Key) uint64 {
	return Mix64(uint64(key) ^ TableSeed(table))
}

// SlotOfHash returns the slot of a hash in a cluster of n slots: the top log2 n bits of the hash. So slots nest: slot s
// of 2^a slots has exactly the keys of the slots s·2^(b−a) to (s+1)·2^(b−a) − 1 of 2^b slots, for a ≤ b.
func SlotOfHash(h uint64, n rowraft.SlotCount) rowraft.Slot {
	slot, _ := bits.Mul64(h, uint64(n)) // h·n ÷ 2^64: a shift without a lookup of the number of bits
	return rowraft.Slot(slot)
}

// HashesOfSlots returns the hashes of the keys in slots first … past − 1 (at least one) of n: low … low + span.
func HashesOfSlots(first, past rowraft.Slot, n rowraft.SlotCount) (low, span uint64) {
	below := bits.LeadingZeros64(uint64(n)) + 1 // bits of a hash below those of its slot
	return uint64(first) << below, uint64(past-first)<<below - 1
}

// JobSlot returns the slot whose shard stores the clocks and data positions of a job, in a cluster of n slots
// (docs/formats/steps.md).
func JobSlot(id rowraft.JobID, n rowraft.SlotCount) rowraft.Slot {
	seed := Mix64(binary.LittleEndian.Uint64(id[:8]) + golden)
	return SlotOfHash(Mix64(binary.LittleEndian.Uint64(id[8:])^seed), n)
}

// SlotOf returns the slot of a key in a cluster of n slots: the slot of its own hash in a sparse table, of its tensor's
// hash in a dense one.
func SlotOf(table rowraft.TableID, kind rowraft.TableKind, key rowraft.Key, n rowraft.SlotCount) rowraft.Slot {
	return SlotOfHash(Hash(table, kind.PlacementKey(key)), n)
}
