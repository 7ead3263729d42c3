package rowstore

import (
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
)

// Delete removes the rows of keys. A key without a row is skipped; if the key is a candidate, it
// is no longer one. Each removal increments the version counter of its slot, and the slot's
// removed counter takes that value. Keys may repeat.
//
// REQUIRES: no other writer uses the table at the same time.
//
// Errors: CodeWrongShard if a key's slot is not owned, before anything changes;
// CodeOverloaded as in Update.
func (t *Table) Delete(keys []rowraft.Key) error {
	if err := t.index.checkKeys(keys); err != nil {
		return err
	}
	t.beginChange()
	defer t.endChange()
	if t.index.tier != nil {
		if err := t.index.tier.load(keys); err != nil {
			return err
		}
	}
	for _, key := range keys {
		slot, tag := t.index.locate(key)
		if at, ok := t.index.position(slot, tag, key); ok {
			if err := t.remove(slot, tag, at); err != nil {
				return err
			}
		} else if t.track != nil && t.track.forget(slot, tag, key) {
			t.index.slot(slot).version++
		}
	}
	return nil
}

// position returns the position of the entry of key, whose row is in memory, in the segment of its bucket.
func (x *index) position(slot rowraft.Slot, tag uint32, key rowraft.Key) (at uint32, ok bool) {
	seg := x.segment(slot, tag)
	if len(seg) == 0 {
		return 0, false
	}
	for i := tag; ; {
		p, after, ok := seg.next(i, tag)
		if !ok {
			return 0, false
		}
		if x.at(p).key() == uint64(key) {
			return (after - 1) & uint32(len(seg)-1), true
		}
		i = after
	}
}

// remove takes a row out of the table. Its entry has the given tag and is at position at of its
// segment. remove first saves an image for each running snapshot that needs one.
//
// A snapshot or a check that walks an older segment of the slot must not find the place there any
// more: the place may soon hold a row of another slot, whose versions have no meaning in this
// slot. So remove also erases the entry from those segments.
func (t *Table) remove(slot rowraft.Slot, tag, at uint32) error {
	s := t.index.slot(slot)
	b := s.bucket(tag)
	seg := b.root.load()
	e := seg[at]
	p := slab.Place(uint32(e) - 1)
	r := t.index.at(p)
	if err := t.snaps.saveImage(slot, tag, r); err != nil {
		return err
	}
	t.index.subtract(slot, tag, r)
	for _, snap := range t.snaps.running {
		if snap.take(slot).walking {
			snap.walk.replace(seg, tag, e, tombstone)
		}
	}
	if t.index.check.active && t.index.check.slot == slot {
		t.index.check.walk.replace(seg, tag, e, tombstone)
	}
	atomic.StoreUint64(&seg[at], tombstone)
	t.index.retirePlace(&t.index.records, p)
	if t.index.tier != nil {
		t.index.tier.removed(p)
	}
	b.tombstones++
	b.rows--
	s.rows--
	s.version++
	*t.index.removed(slot) = s.version
	t.index.count.Add(-1)
	return nil
}
