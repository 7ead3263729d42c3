package rowstore

import (
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
)

// Delete removes the rows of keys; those without a row are
// passed over, unless they wait for one, which is then forgotten. Each
// removal raises the counter of its slot, which is then the slot's removed
// counter. Keys may repeat.
//
// REQUIRES: nobody else changes the table meanwhile.
//
// Errors: CodeWrongShard if a key's slot is not owned, before anything changes;
// CodeOverloaded as for Update.
func (t *Table) Delete(keys []rowraft.Key) error {
	if err := t.checkSlots(keys); err != nil {
		return err
	}
	t.lock.Lock()
	defer t.lock.Unlock()
	t.reclaim()
	defer t.done()
	for _, key := range keys {
		slot, tag := t.locate(key)
		if at, ok := t.position(slot, tag, key); ok {
			if err := t.remove(slot, tag, at); err != nil {
				return err
			}
		} else if t.track != nil && t.forget(slot, tag, key) {
			t.slots[slot].version++
		}
	}
	return nil
}

// position returns where the entry of key is in the segment of its bucket.
func (t *Table) position(slot rowraft.Slot, tag uint32, key rowraft.Key) (at uint32, ok bool) {
	seg := t.segment(slot, tag)
	if len(seg) == 0 {
		return 0, false
	}
	for i := tag; ; {
		p, after, ok := seg.next(i, tag)
		if !ok {
			return 0, false
		}
		if t.at(p).key() == uint64(key) {
			return (after - 1) & uint32(len(seg)-1), true
		}
		i = after
	}
}

// remove takes the row whose entry with tag is at position at of its segment out
// of the table. Running snapshots that need it have its image. One that walks an
// older segment of the slot, or a check that does, does not find the place there any
// more, since it may soon hold a row of another slot, whose versions say nothing here.
func (t *Table) remove(slot rowraft.Slot, tag, at uint32) error {
	s := &t.slots[slot]
	b := s.bucket(tag)
	seg := b.root.load()
	e := seg[at]
	p := slab.Place(uint32(e) - 1)
	r := t.at(p)
	if err := t.keep(slot, tag, r); err != nil {
		return err
	}
	t.subtract(slot, tag, r)
	for _, snap := range t.snaps {
		if snap.take(slot).walking {
			snap.walk.bury(seg, tag, e)
		}
	}
	if t.slotCheck.active && t.slotCheck.slot == slot {
		t.slotCheck.walk.bury(seg, tag, e)
	}
	atomic.StoreUint64(&seg[at], grave)
	t.retirePlace(p)
	b.dead++
	b.rows--
	s.rows--
	s.version++
	s.removed = s.version
	t.removals = true
	t.count.Add(-1)
	return nil
}
