package rowstore

import (
	"cmp"
	"iter"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// ownedSlots are the slots that the shard holds, and the map from keys to slots. It never changes.
//
// Invariant: each owned slot is first + i for an i below n, and bit i of bits is set for it. A shard's slots are
// consecutive, or nearly so, and a cluster has up to 65,536: arrays of all of them would take 6 MiB for each table of
// each shard.
type ownedSlots struct {
	table     string
	hashSeed  uint64 // the part of clustermap.Hash that depends only on the table
	dense     bool
	slotCount rowraft.SlotCount // of the cluster
	first     rowraft.Slot      // the first slot of a page: the pages of slots are those of claim.go
	n         int
	bits      []uint64
}

func newOwnedSlots(o *Options) ownedSlots {
	own := ownedSlots{
		table: o.Schema.Name, hashSeed: clustermap.TableSeed(o.Schema.ID), dense: o.Schema.Kind == rowraft.Dense,
		slotCount: cmp.Or(o.Slots, rowraft.DefaultSlots),
	}
	owned := func(s rowraft.Slot) bool { return o.Owned == nil || o.Owned(s) }
	first, past := rowraft.Slot(0), rowraft.Slot(own.slotCount)
	for first < past && !owned(first) {
		first++
	}
	for first < past && !owned(past-1) {
		past--
	}
	own.first = first &^ (cutsPerPage - 1)
	own.n = int(past - own.first)
	own.bits = make([]uint64, (own.n+63)/64)
	for s := first; s < past; s++ {
		if i := s - own.first; owned(s) {
			own.bits[i/64] |= 1 << (i % 64)
		}
	}
	return own
}

// owns reports whether the shard holds slot s.
func (o *ownedSlots) owns(s rowraft.Slot) bool {
	i := s - o.first
	return uint(i) < uint(o.n) && o.bits[i/64]>>(i%64)&1 != 0
}

// all yields the slots that the shard holds, in ascending order.
func (o *ownedSlots) all() iter.Seq[rowraft.Slot] {
	return func(yield func(rowraft.Slot) bool) {
		for i := range o.n {
			if s := o.first + rowraft.Slot(i); o.owns(s) && !yield(s) {
				return
			}
		}
	}
}

func (o *ownedSlots) slotOf(key rowraft.Key) rowraft.Slot {
	if o.dense {
		key = rowraft.Dense.PlacementKey(key)
	}
	return clustermap.SlotOfHash(clustermap.Mix64(uint64(key)^o.hashSeed), o.slotCount)
}

// checkKeys refuses keys of slots that the shard does not hold.
func (o *ownedSlots) checkKeys(keys []rowraft.Key) error {
	for _, key := range keys {
		if slot := o.slotOf(key); !o.owns(slot) {
			return o.notOwned(key, slot)
		}
	}
	return nil
}

// notOwned is the error for a key of a slot that the shard does not hold.
func (o *ownedSlots) notOwned(key rowraft.Key, slot rowraft.Slot) error {
	return rowraft.Errorf(rowraft.CodeWrongShard, "table %s: key %d is in slot %d, which this shard does not hold",
		o.table, key, slot)
}

// checkSlot refuses a slot that the shard does not hold.
func (o *ownedSlots) checkSlot(slot rowraft.Slot) error {
	if o.owns(slot) {
		return nil
	}
	return rowraft.Errorf(rowraft.CodeWrongShard, "table %s: this shard does not hold slot %d", o.table, slot)
}
