package rowstore

import (
	"iter"
	"slices"
	"sync/atomic"

	"github.com/rowraft/rowraft"
)

// maxSegment is the length of the longest segment that is rebuilt in one step: 64 KiB, which
// takes about 50 µs. A slot with more rows, such as the slot of a large dense tensor,
// has several segments in a directory.
const maxSegment = 8192

// bucket is a segment and the writer's counts of it.
type bucket struct {
	root       root
	rows       uint32
	tombstones uint32 // tombstones
	bits       uint8  // number of leading tag bits that all its rows share
	salt       uint8  // below 16; differs between most slots and between most buckets of a directory
}

// saltOf maps the number of a slot or a bucket to a salt.
func saltOf(n uint32) uint8 { return uint8(n * 0x9E3779B1 >> 28) }

// full reports whether the segment of b should grow before it takes another row.
// The load stays at or below 0.8, where a hit takes 3 probes on average, within one or
// two cache lines. The limit differs from bucket to bucket, down to a load of 0.57. Slots fill
// evenly, and so do the buckets of a directory: with one limit, all of them would grow within a
// few per cent of the rows, and pushes of new keys would be slow during that time.
func (b *bucket) full() bool { return b.over(b.rows+b.tombstones, len(b.root.load())) }

func (b *bucket) over(rows uint32, n int) bool {
	return uint64(rows+1)*64 > uint64(n)*uint64(51-b.salt)
}

// directory is extendible hashing (Fagin, Nievergelt, Pippenger, Strong 1979):
// the first bits of a row's tag select its bucket. A bucket that shares fewer
// bits occupies all positions that begin with them. A full bucket is
// split in two, so the only thing that is copied as a whole is this list of pointers.
//
// Rows with tags that begin alike stay together in a split. splitBucket then doubles
// their segment, so a directory never has more positions than the slot has rows.
//
// Readers load positions; the writer stores them. Both halves of a split are new
// buckets. The old bucket keeps its segment for readers that have already loaded it.
type directory struct {
	shift   uint8 // 32 − the number of bits
	buckets []atomic.Pointer[bucket]
}

func newDirectory(bits uint8) *directory {
	return &directory{shift: 32 - bits, buckets: make([]atomic.Pointer[bucket], 1<<bits)}
}

func (d *directory) at(tag uint32) *bucket { return d.buckets[tag>>d.shift].Load() }

// set stores b at its positions: those of all tags that share its first bits with tag.
func (d *directory) set(tag uint32, b *bucket) {
	bits := 32 - d.shift
	same := 1 << (bits - b.bits)
	first := int(tag>>d.shift) &^ (same - 1)
	for i := range same {
		d.buckets[first+i].Store(b)
	}
}

// doubled returns d with one more bit.
func (d *directory) doubled() *directory {
	longer := newDirectory(32 - d.shift + 1)
	for i := range longer.buckets {
		longer.buckets[i].Store(d.buckets[i/2].Load())
	}
	return longer
}

// bucket returns the bucket of rows with tag.
func (s *slotState) bucket(tag uint32) *bucket {
	if d := s.directory.Load(); d != nil {
		return d.at(tag)
	}
	return &s.whole
}

// segment returns the segment of slot for rows with tag. Readers may call it too: roots has
// the segment while the slot has no directory.
func (x *index) segment(slot rowraft.Slot, tag uint32) segment {
	if seg := x.roots[slot-x.first].load(); len(seg) > 0 {
		return seg
	}
	return x.slot(slot).bucket(tag).root.load()
}

// buckets yields all buckets, in the order of their tags.
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

// entries yields the index entries of all rows of the slot. REQUIRES: the slot does not change
// during the iteration.
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

// grow makes room for one more row with tag. It rebuilds the segment without tombstones, at most
// half full, or splits the bucket in two if that segment would be too long. It returns the segment that the slot has
// outgrown; the caller must pass it to snapshots.outgrow, if it is not empty.
func (x *index) grow(slot rowraft.Slot, tag uint32) (old segment, err error) {
	s := x.slot(slot)
	b := s.bucket(tag)
	size := minSegment
	for uint64(size) < 2*uint64(b.rows+1) {
		size *= 2
	}
	if size > x.longest {
		return x.splitBucket(slot, b, tag)
	}
	seg, err := x.blocks.Alloc(size)
	if err != nil {
		return nil, err
	}
	old = b.root.load()
	for _, e := range old {
		if isRow(e) {
			segment(seg).put(e)
		}
	}
	b.root.store(seg)
	if b == &s.whole {
		b.salt = saltOf(uint32(slot))
		x.roots[slot-x.first].store(seg)
	}
	b.tombstones = 0
	return old, nil
}

// splitBucket replaces b, the bucket of tag, by two buckets, and returns the segment of b.
func (x *index) splitBucket(slot rowraft.Slot, b *bucket, tag uint32) (old segment, err error) {
	old = b.root.load()
	next := 31 - b.bits // the bit that selects the half
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
		seg, err := x.blocks.Alloc(size)
		if err != nil {
			return nil, err
		}
		half.root.store(seg)
	}
	for _, e := range old {
		if isRow(e) {
			halves[e>>32>>next&1].root.load().put(e)
		}
	}
	s := x.slot(slot)
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
	x.roots[slot-x.first].p.Store(nil) // readers look into the directory now
	return old, nil
}

// walk is the segments of a slot at the time when a reader began to read it, and the position
// of the reader.
type walk struct {
	segs []segment
	from []uint32 // the first tag of each segment
	at   int      // the segment that is being read
	pos  int      // the next entry to read in it
}

// begin starts a walk of slot s.
func (w *walk) begin(s *slotState) {
	*w = walk{segs: w.segs[:0], from: w.from[:0]}
	tag := uint32(0)
	for b := range s.buckets() {
		if seg := b.root.load(); len(seg) > 0 {
			w.segs, w.from = append(w.segs, seg), append(w.from, tag)
		}
		tag += 1 << (32 - b.bits) // wraps to 0 after the last bucket
	}
}

// of returns the index of the segment of tag. REQUIRES: w has a segment.
func (w *walk) segmentOf(tag uint32) int {
	i, ok := slices.BinarySearch(w.from, tag)
	if ok {
		return i
	}
	return i - 1
}

// replace replaces the entry e with tag in the segment of w that holds it, unless that segment is seg, the current
// one, in which the caller replaces it.
func (w *walk) replace(seg segment, tag uint32, e, with uint64) {
	if len(w.segs) == 0 {
		return
	}
	if old := w.segs[w.segmentOf(tag)]; &old[0] != &seg[0] {
		if at, ok := old.find(e); ok {
			atomic.StoreUint64(&old[at], with)
		}
	}
}

// includes reports whether the walk includes seg.
func (w *walk) includes(seg segment) bool {
	return slices.ContainsFunc(w.segs, func(s segment) bool { return &s[0] == &seg[0] })
}

// passed reports whether the walk has read the entry of r. The entry has the given tag and
// existed when the walk began.
func (x *index) passed(w *walk, tag uint32, r record) bool {
	i := w.segmentOf(tag)
	if i != w.at {
		return i < w.at
	}
	seg := w.segs[i]
	for pos := tag; ; {
		have, after, ok := seg.next(pos, tag)
		if !ok {
			return false
		}
		if x.at(have) == r {
			return int((after-1)&uint32(len(seg)-1)) < w.pos
		}
		pos = after
	}
}
