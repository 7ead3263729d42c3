package rowstore

import (
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/internal/slab"
)

// slotCheck is CheckSlot between two calls. It walks the segments that the slot had at first and
// sums the hashes of the rows that it has come to; the writer keeps sum up to date for the rows
// that are in it (checked). So in the end sum is that of all rows of the slot as they are then,
// as is the digest, which has seen the same changes: they differ by what changed otherwise.
type slotCheck struct {
	active bool // the walk has begun, and not ended
	slot   rowraft.Slot
	walk   walk
	sum    Digest

	outgrown []segment // that it walks alone
}

func (c *slotCheck) reads(seg segment) bool { return c.active && c.walk.reads(seg) }

// checked reports whether the row r with tag is in the sum of the running check, or is to be
// because the check will not come to it: rows that were made in segments that it does not walk.
func (t *Table) checked(tag uint32, r record) bool {
	w := &t.slotCheck.walk
	if len(w.segs) == 0 {
		return true
	}
	i := w.of(tag)
	seg := w.segs[i]
	for pos := tag; ; {
		have, after, ok := seg.next(pos, tag)
		if !ok {
			return true
		}
		if t.at(have) == r {
			at := int((after - 1) & uint32(len(seg)-1))
			return i < w.at || i == w.at && at < w.pos
		}
		pos = after
	}
}

// CheckSlot hashes the rows and candidates of slot s anew and reports whether they are those
// whose digest the table has kept, change by change. If they are not, memory was damaged. It
// goes on until it has looked at about most bytes, 8 for an index entry, or done; between two
// calls rows may change. A slot that was begun is called until it is done, or given up by a
// call for another one. size is how many bytes of rows and candidates it has read.
//
// It is one of the readers of what the writer left between two calls, one at a time.
func (t *Table) CheckSlot(s rowraft.Slot, most int) (size int, done, ok bool) {
	c := &t.slotCheck
	if c.active && c.slot != s {
		t.endCheck()
	}
	if !c.active {
		c.active, c.slot, c.sum = true, s, Digest{}
		c.walk.begin(&t.slots[s])
	}
	size, ok = t.checkRows(most)
	if ok && c.walk.at < len(c.walk.segs) {
		return size, false, true
	}
	waiting := 0
	t.eachCandidate(s, func(_ uint32, k candidate) {
		c.sum = c.sum.Add(k.digest())
		size += CandidateBytes
		waiting++
	})
	ok = ok && waiting == t.SlotCandidates(s) && c.sum == t.slots[s].digest
	t.endCheck()
	return size, true, ok
}

// endCheck lets go of what the check walked.
func (t *Table) endCheck() {
	t.slotCheck.active = false
	for _, seg := range t.slotCheck.outgrown {
		t.retire(seg)
	}
	t.slotCheck.outgrown = t.slotCheck.outgrown[:0]
}

// checkRows adds the next rows to the sum. ok is false if an entry of the index is damaged.
func (t *Table) checkRows(most int) (size int, ok bool) {
	var tags [chunkKeys]uint32
	var addr [chunkKeys]unsafe.Pointer
	c, w := &t.slotCheck, &t.slotCheck.walk
	atOnce := min(chunkKeys, max(1, most/t.RecordBytes()))
	n, entries := 0, 0
	hash := func() bool { // the records at addr, which are on their way
		prefetch(&addr[0], n, keyOffset, min(t.RecordBytes(), maxPrefetch))
		for i := range n {
			r := record{addr[i]}
			size += t.RecordBytes()
			if slot, tag := t.locate(rowraft.Key(r.key())); slot != c.slot || tag != tags[i] {
				return false
			}
			c.sum = c.sum.Add(t.rowHash(r))
		}
		n = 0
		return true
	}
	for ; w.at < len(w.segs); w.at, w.pos = w.at+1, 0 {
		for seg := w.segs[w.at]; w.pos < len(seg); {
			if size+n*t.RecordBytes()+8*entries >= most {
				return size, n == 0 || hash()
			}
			e := seg[w.pos]
			w.pos, entries = w.pos+1, entries+1
			if !isRow(e) {
				continue
			}
			p := slab.Place(uint32(e) - 1)
			if !t.rows.Has(p) {
				return size, false
			}
			addr[n], tags[n] = t.rows.At(p), uint32(e>>32)
			if n++; n == atOnce && !hash() {
				return size, false
			}
		}
	}
	return size, n == 0 || hash()
}

// Rot is the sabotage canary.MemoryRots: a bit of the first row of a slot that has one
// turns. It reports whether there was a row.
func (t *Table) Rot() bool {
	if !canary.Is(canary.MemoryRots) {
		return false
	}
	for s := range t.slots {
		for e := range t.slots[s].entries() {
			t.weights(t.at(slab.Place(uint32(e) - 1)))[0] ^= 1
			return true
		}
	}
	return false
}
