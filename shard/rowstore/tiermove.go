package rowstore

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
)

// The functions of this file move rows between memory and the file. Only the writer calls them, within a change. They
// change neither a row nor the number of entries of a segment, but a snapshot must not read a slot while a row of it
// moves: they claim the slot as a change does.

// NeedsSettle reports whether rows wait to move into memory, or should move out of it. It may be called at any time.
func (r *Tier) NeedsSettle() bool {
	return r != nil && (r.waiting.n.Load() >= maxWaiting/16 || r.failed.write.Load() != nil)
}

// Settle moves rows that were pulled often into memory, and others out of it. The caller must be the writer.
func (r *Tier) Settle() error {
	if r == nil {
		return nil
	}
	r.table.beginChange()
	defer r.table.endChange()
	return r.takeWaiting()
}

// load moves the rows of keys into memory, before they change.
//
// Errors: CodeOverloaded if too many rows are in memory already, or the system has no memory; CodeFenced if rows in the
// file cannot be read.
func (r *Tier) load(keys []rowraft.Key) error {
	if err := r.usable(); err != nil {
		return err
	}
	if err := r.takeWaiting(); err != nil {
		return err
	}
	r.refs = r.appendCold(r.refs[:0], keys)
	return r.warmAll(r.refs)
}

// loadSlot moves all rows of slot into memory.
func (r *Tier) loadSlot(slot rowraft.Slot) error {
	if r == nil {
		return nil
	}
	r.refs = r.refs[:0]
	for e := range r.table.index.slot(slot).entries() {
		if isCold(e) {
			r.refs = append(r.refs, coldEntry{e: e, slot: slot})
		}
	}
	return r.warmAll(r.refs)
}

// warmAll moves the rows of cold into memory, with warm.
func (r *Tier) warmAll(cold []coldEntry) error {
	var failed error
	err := r.each(cold, func(c *coldEntry, rec record) {
		if failed == nil {
			failed = r.warm(c.slot, c.e, rec)
		}
	})
	if err == nil {
		err = failed
	}
	return err
}

// takeWaiting moves the waiting rows into memory.
func (r *Tier) takeWaiting() error {
	w := &r.waiting
	if w.n.Load() == 0 {
		return nil
	}
	w.Lock()
	rows := w.rows
	w.rows = nil
	w.n.Store(0)
	w.Unlock()
	for _, row := range rows {
		rec := r.table.index.recordAt(unsafe.Pointer(unsafe.SliceData(row.record)))
		if err := r.warm(r.table.index.slotOf(rowraft.Key(rec.key())), row.e, rec); err != nil {
			return err
		}
	}
	return nil
}

// warm moves the row rec of the cold entry e of slot into memory. It does nothing if the slot has no such entry: the
// row has moved since it was read, or was removed.
//
// Errors: CodeOverloaded if the system has no memory.
func (r *Tier) warm(slot rowraft.Slot, e uint64, rec record) error {
	x := &r.table.index
	seg := x.segment(slot, uint32(e>>32))
	at, ok := seg.find(e)
	if !ok {
		return nil
	}
	p, err := x.slab.Alloc()
	if err != nil {
		return err
	}
	copy(x.bytes(x.at(p)), x.bytes(rec))
	r.added(p) // without a use: a row that is not used again leaves before rows that are
	r.replace(slot, seg, at, e>>32<<32|uint64(p)+1)
	r.drop(coldPlace(e))
	return nil
}

// replace replaces the entry at position at of seg, the segment of slot, because its row moves. A snapshot or a check
// that walks an older segment finds the row at its new place.
func (r *Tier) replace(slot rowraft.Slot, seg segment, at uint32, with uint64) {
	ss, x, e := &r.table.snaps, &r.table.index, seg[at]
	tag := uint32(e >> 32)
	ss.prepareSlot(slot)
	for _, s := range ss.running {
		if s.take(slot).walking {
			s.walk.replace(seg, tag, e, with)
		}
	}
	if x.check.active && x.check.slot == slot {
		x.check.walk.replace(seg, tag, e, with)
	}
	atomic.StoreUint64(&seg[at], with)
}

// drop frees a place of the file. REQUIRES: no entry has the place.
func (r *Tier) drop(place int) {
	if at, emptied := r.file.Free(place); emptied {
		now := r.table.index.now()
		now.extents = append(now.extents, at)
	}
}

// settle moves rows out of memory until the rest takes no more than its share. If the file cannot be written, the rows
// stay in memory.
func (r *Tier) settle() {
	moved := false
	for r.inMemory.Load() > r.limit() && r.writeExtent() {
		moved = true
	}
	if moved {
		r.table.index.reclaim()
	}
	if r.failed.write.Load() != nil && r.inMemory.Load() <= r.limit() {
		r.failed.write.Store(nil)
	}
}

// writeExtent fills one extent with rows and reports whether rows have left the memory.
func (r *Tier) writeExtent() bool {
	at, ok := r.file.Begin()
	if !ok {
		return false
	}
	r.forget(at)
	x := &r.table.index
	r.moves = r.moves[:0]
	r.pickLeft()
	left := len(r.moves)
	r.pickUnused()
	if len(r.moves) == left || r.Broken() != nil {
		r.keep(r.moves[left:])
		r.file.Cancel()
		return false
	}
	first, err := r.file.Write()
	if err != nil {
		r.keep(r.moves[left:])
		err = rowraft.Errorf(rowraft.CodeOverloaded, "table %s: the disk of its cold rows cannot be written: %w",
			x.schema.Name, err)
		r.failed.write.Store(&err)
		return false
	}
	r.failed.write.Store(nil)
	for i, m := range r.moves {
		seg := x.segment(m.slot, uint32(m.e>>32))
		pos, _ := seg.find(m.e)
		r.replace(m.slot, seg, pos, m.e>>32<<32|coldBit|uint64(first+i))
		if isCold(m.e) {
			r.drop(coldPlace(m.e))
			continue
		}
		p := slab.Place(uint32(m.e) - 1)
		r.removed(p)
		x.retirePlace(&x.records, p)
	}
	return true
}

// forget drops the waiting rows that were read from extent at before it was emptied: they have moved since, or were
// removed. A reader adds such rows before it leaves grace, so none is added later.
func (r *Tier) forget(at int) {
	w := &r.waiting
	w.Lock()
	defer w.Unlock()
	w.rows = slices.DeleteFunc(w.rows, func(row waitingRow) bool { return r.file.Extent(coldPlace(row.e)) == at })
	w.n.Store(int32(len(w.rows)))
}

// keep leaves rows that were picked in memory.
func (r *Tier) keep(moves []move) {
	for _, m := range moves {
		r.clock.Add(slab.Place(uint32(m.e) - 1))
	}
}

// pickLeft picks the rows of a sparse extent.
func (r *Tier) pickLeft() {
	r.places, r.refs = r.file.Sparse(r.places[:0]), r.refs[:0]
	for _, place := range r.places {
		r.refs = append(r.refs, coldEntry{e: coldBit | uint64(place)})
	}
	_ = r.each(r.refs, func(c *coldEntry, rec record) { // an error breaks the tier
		slot, tag := r.table.index.locate(rowraft.Key(rec.key()))
		r.pick(slot, uint64(tag)<<32|c.e, rec)
	})
}

// pickUnused picks rows in memory that were not used since the hand passed them, until the extent is full.
func (r *Tier) pickUnused() {
	x := &r.table.index
	for r.file.Room() > 0 {
		p, ok := r.clock.Take()
		if !ok {
			return
		}
		rec := x.at(p)
		slot, tag := x.locate(rowraft.Key(rec.key()))
		r.pick(slot, uint64(tag)<<32|uint64(p)+1, rec)
	}
}

// pick adds a row to the extent that is being written.
func (r *Tier) pick(slot rowraft.Slot, e uint64, rec record) {
	r.file.Add(r.table.index.bytes(rec))
	r.moves = append(r.moves, move{slot, e})
}
