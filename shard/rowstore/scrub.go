package rowstore

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
	"github.com/rowraft/rowraft/shard/rowstore/candidate"
)

// coldCheckBytes is what the check of one row in the file counts, so that checks leave the disk to pulls and pushes: at
// 16 MiB a second they read 1,024 such rows.
const coldCheckBytes = 16 << 10

// slotCheck is the state of CheckSlot between two calls. The check walks the segments that the slot
// had when the check began, and sums the hashes of the rows that it has read. The writer applies
// its changes to sum for rows that are in it (checked). At the end, sum covers all rows of
// the slot as they are then. The digest has seen the same changes, so the two are equal unless
// memory was damaged.
type slotCheck struct {
	active bool // a walk is in progress
	slot   rowraft.Slot
	walk   walk
	sum    Digest

	outgrown []segment // segments that only this check still reads
}

// covers reports whether sum has row r of slot with tag.
func (c *slotCheck) covers(x *index, slot rowraft.Slot, tag uint32, r record) bool {
	return c.active && c.slot == slot && c.checked(x, tag, r)
}

func (c *slotCheck) includes(seg segment) bool { return c.active && c.walk.includes(seg) }

// checked reports whether row r with tag is in the sum of the running check. It is also true for a
// row that the check will not reach, because the row is in a segment that the check does not walk.
func (c *slotCheck) checked(x *index, tag uint32, r record) bool {
	w := &c.walk
	if len(w.segs) == 0 {
		return true
	}
	i := w.segmentOf(tag)
	seg := w.segs[i]
	for pos := tag; ; {
		have, after, ok := seg.next(pos, tag)
		if !ok {
			return true
		}
		if x.at(have) == r {
			at := int((after - 1) & uint32(len(seg)-1))
			return i < w.at || i == w.at && at < w.pos
		}
		pos = after
	}
}

// CheckSlot hashes the rows and candidates of slot s again and compares the sum with the digest
// that the table has updated at each change. ok is false if they differ: memory was damaged.
//
// One call reads about most bytes, 8 per index entry; size is how many bytes of rows and candidates it has read. A row
// in the file counts as coldCheckBytes. Rows may change between two calls. The caller calls CheckSlot for s
// until done is true, or gives up the check by a call for another slot.
//
// The caller must be a reader of the state between two calls of the writer (see "Concurrency"). One
// check runs at a time.
func (t *Table) CheckSlot(s rowraft.Slot, most int) (size int, done, ok bool) {
	c := &t.index.check
	if !t.Owns(s) {
		return 0, true, true
	}
	if c.active && c.slot != s {
		c.end(&t.index)
	}
	if !c.active {
		c.active, c.slot, c.sum = true, s, Digest{}
		c.walk.begin(t.index.slot(s))
	}
	size, ok = c.next(&t.index, most)
	if ok && c.walk.at < len(c.walk.segs) {
		return size, false, true
	}
	waiting := 0
	t.track.eachCandidate(s, func(_ uint32, k candidate.Candidate) {
		c.sum = c.sum.Add(candidateDigest(k))
		size += CandidateBytes
		waiting++
	})
	ok = ok && waiting == t.track.waiting(s) && c.sum == t.index.slot(s).digest
	c.end(&t.index)
	return size, true, ok
}

// end stops the check and retires the segments that only the check has read.
func (c *slotCheck) end(x *index) {
	c.active = false
	for _, seg := range c.outgrown {
		x.retire(seg)
	}
	c.outgrown = c.outgrown[:0]
}

// next adds the next rows to the sum. ok is false if an index entry is damaged.
func (c *slotCheck) next(x *index, most int) (size int, ok bool) {
	w, warm := &c.walk, window{to: x.rowBytes()}
	ok = true
	add := func(e uint64, r record) {
		slot, tag := x.locate(rowraft.Key(r.key()))
		c.sum = c.sum.Add(x.rowHash(r))
		ok = ok && slot == c.slot && tag == uint32(e>>32)
	}
	var cold []coldEntry
	for entries := 0; w.at < len(w.segs); w.at, w.pos = w.at+1, 0 {
		seg := w.segs[w.at]
		for ; w.pos < len(seg) && size+8*entries < most; w.pos, entries = w.pos+1, entries+1 {
			switch e := seg[w.pos]; {
			case !isRow(e):
			case isCold(e) && x.tier != nil:
				cold = append(cold, coldEntry{e: e})
				size += coldCheckBytes
			case !x.slab.Has(slab.Place(uint32(e) - 1)):
				return size, false
			default:
				if e, r := warm.swap(e, x.at(slab.Place(uint32(e)-1))); r.p != nil {
					add(e, r)
				}
				size += x.recordBytes()
			}
		}
		if w.pos < len(seg) {
			break
		}
	}
	for e, r := range warm.rest {
		add(e, r)
	}
	if len(cold) > 0 {
		err := x.tier.each(cold, func(k *coldEntry, r record) { add(k.e, r) })
		ok = ok && err == nil
	}
	return size, ok
}
