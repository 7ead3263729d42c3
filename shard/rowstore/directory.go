package rowstore

import (
	"iter"
	"slices"
	"sync/atomic"

	"github.com/rowraft/rowraft"
)

// maxSegment is the longest segment that is made anew at once: 64 KiB, which
// takes some 50 µs. A slot with more rows, such as that of a large dense tensor,
// has several, in a directory.
const maxSegment = 8192

// bucket is a segment with what the writer counts of it.
type bucket struct {
	root root
	rows uint32
	dead uint32 // graves
	bits uint8  // how many first bits of their tags its rows share
	salt uint8  // below 16, another one in most slots and in most buckets of a directory
}

// saltOf spreads n, of a slot or a bucket.
func saltOf(n uint32) uint8 { return uint8(n * 0x9E3779B1 >> 28) }

// full reports whether the segment of b should grow before it takes another row:
// load stays at or below 0.8, where a hit takes 3 probes on average, within one or
// two cache lines. Slots fill evenly, and so do the buckets of a directory, so their
// limits differ, down to 0.57: else all would grow within a few per cent of the
// rows, which would slow down who adds these.
func (b *bucket) full() bool { return b.over(b.rows+b.dead, len(b.root.load())) }

func (b *bucket) over(rows uint32, n int) bool {
	return uint64(rows+1)*64 > uint64(n)*uint64(51-b.salt)
}

// directory is extendible hashing (Fagin, Nievergelt, Pippenger, Strong 1979):
// a row is in the bucket at the first bits of its tag; a bucket that shares fewer
// bits stands at all positions that begin with them. A bucket that is full is
// split in two, so nothing grows at once but this list of pointers.
//
// Rows chosen to have tags that begin alike stay together in a split, in a segment
// twice as long; so a directory never has more positions than the slot has rows.
//
// Readers load positions; the writer stores them. Both halves of a split are new
// buckets, and the old one keeps its segment, for readers that have it.
type directory struct {
	shift   uint8 // 32 − the number of bits
	buckets []atomic.Pointer[bucket]
}

func newDirectory(bits uint8) *directory {
	return &directory{shift: 32 - bits, buckets: make([]atomic.Pointer[bucket], 1<<bits)}
}

func (d *directory) at(tag uint32) *bucket { return d.buckets[tag>>d.shift].Load() }

// set puts b at its positions, those of tags that begin like tag.
func (d *directory) set(tag uint32, b *bucket) {
	bits := 32 - d.shift
	same := 1 << (bits - b.bits)
	first := int(tag>>d.shift) &^ (same - 1)
	for i := range same {
		d.buckets[first+i].Store(b)
	}
}

// doubled is d with one bit more.
func (d *directory) doubled() *directory {
	longer := newDirectory(32 - d.shift + 1)
	for i := range longer.buckets {
		longer.buckets[i].Store(d.buckets[i/2].Load())
	}
	return longer
}

// bucket returns where rows with tag are.
func (s *slotState) bucket(tag uint32) *bucket {
	if d := s.directory.Load(); d != nil {
		return d.at(tag)
	}
	return &s.whole
}

// segment returns where rows of slot with tag are, for readers too: t.roots has
// the answer as long as the slot has no directory.
func (t *Table) segment(slot rowraft.Slot, tag uint32) segment {
	if seg := t.roots[slot%rowraft.NumSlots].load(); len(seg) > 0 {
		return seg
	}
	return t.slots[slot].bucket(tag).root.load()
}

// buckets goes through all buckets, by the tags of their rows.
func (s *slotState) buckets() iter.Seq[*bucket] {
	return func(yield func(*bucket) bool) {
		d := s.directory.Load()
		if d == nil {
			yield(&s.whole)
			return
		}
		for i := 0; i < len(d.buckets); {
			b := d.buckets[i].Load()
			if !yield(b) {
				return
			}
			i += 1 << (32 - d.shift - b.bits)
		}
	}
}

// entries goes through the index entries of all rows of the slot. REQUIRES: nobody
// changes it meanwhile.
func (s *slotState) entries() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for b := range s.buckets() {
			for _, e := range b.root.load() {
				if isRow(e) && !yield(e) {
					return
				}
			}
		}
	}
}

// grow makes room for one more row with tag: a segment without graves that is at
// most half full, twice the length if there were none, or two in its place.
func (t *Table) grow(slot rowraft.Slot, tag uint32) error {
	s := &t.slots[slot]
	b := s.bucket(tag)
	size := minSegment
	for uint64(size) < 2*uint64(b.rows+1) {
		size *= 2
	}
	if size > t.longest {
		return t.splitBucket(slot, b, tag)
	}
	seg, err := t.blocks.Alloc(size)
	if err != nil {
		return err
	}
	old := b.root.load()
	for _, e := range old {
		if isRow(e) {
			segment(seg).put(e)
		}
	}
	b.root.store(seg)
	if b == &s.whole {
		b.salt = saltOf(uint32(slot))
		t.roots[slot].store(seg)
	}
	b.dead = 0
	if len(old) > 0 {
		t.outgrow(slot, old)
	}
	return nil
}

// splitBucket puts two buckets in the place of b, which holds tag.
func (t *Table) splitBucket(slot rowraft.Slot, b *bucket, tag uint32) error {
	old := b.root.load()
	next := 31 - b.bits // the bit that tells the halves apart
	prefix := tag &^ (1<<(next+1) - 1)
	var halves [2]*bucket
	for h := range halves {
		halves[h] = &bucket{bits: b.bits + 1, salt: saltOf(prefix>>next | uint32(h))}
	}
	for _, e := range old {
		if isRow(e) {
			halves[e>>32>>next&1].rows++
		}
	}
	for _, half := range halves {
		size := len(old)
		for half.over(half.rows, size) {
			size *= 2
		}
		seg, err := t.blocks.Alloc(size)
		if err != nil {
			return err
		}
		half.root.store(seg)
	}
	for _, e := range old {
		if isRow(e) {
			halves[e>>32>>next&1].root.load().put(e)
		}
	}
	s := &t.slots[slot]
	d := s.directory.Load()
	switch {
	case d == nil:
		d = newDirectory(1)
	case 32-d.shift == b.bits:
		d = d.doubled()
	}
	d.set(prefix, halves[0])
	d.set(prefix|1<<next, halves[1])
	s.directory.Store(d)
	t.roots[slot].p.Store(nil) // readers look into the directory now
	t.outgrow(slot, old)
	return nil
}

// walk is the segments of a slot as they were when a snapshot began to read it,
// and how far it came.
type walk struct {
	segs []segment
	from []uint32 // the first tag of each
	at   int      // the segment that is read
	pos  int      // the entry that comes next
}

// begin starts a walk of slot s.
func (w *walk) begin(s *slotState) {
	*w = walk{segs: w.segs[:0], from: w.from[:0]}
	tag := uint32(0)
	for b := range s.buckets() {
		if seg := b.root.load(); len(seg) > 0 {
			w.segs, w.from = append(w.segs, seg), append(w.from, tag)
		}
		tag += 1 << (32 - b.bits) // from the last to 0
	}
}

// of returns the number of the segment of tag. REQUIRES: there is one.
func (w *walk) of(tag uint32) int {
	i, ok := slices.BinarySearch(w.from, tag)
	if ok {
		return i
	}
	return i - 1
}

// bury removes the entry e with tag from the segment of w that had it, if the slot has
// outgrown that: seg is where it is now.
func (w *walk) bury(seg segment, tag uint32, e uint64) {
	if len(w.segs) == 0 {
		return
	}
	if old := w.segs[w.of(tag)]; &old[0] != &seg[0] {
		old.bury(e)
	}
}

// reads reports whether seg is one of w.
func (w *walk) reads(seg segment) bool {
	return slices.ContainsFunc(w.segs, func(s segment) bool { return &s[0] == &seg[0] })
}

// passed reports whether the walk has read the entry of r with tag, which was
// there when it began.
func (t *Table) passed(w *walk, tag uint32, r record) bool {
	i := w.of(tag)
	if i != w.at {
		return i < w.at
	}
	seg := w.segs[i]
	for pos := tag; ; {
		have, after, ok := seg.next(pos, tag)
		if !ok {
			return false
		}
		if t.at(have) == r {
			return int((after-1)&uint32(len(seg)-1)) < w.pos
		}
		pos = after
	}
}
