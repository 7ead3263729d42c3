package rowstore

import (
	"fmt"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
)

// Snapshot is the table as it was when BeginSnapshot ran, read slot by slot
// while updates go on.
//
// A row whose version is at most its slot's counter at the begin is unchanged
// since. The first change of such a row, in a slot not saved yet, keeps its
// image aside; a slot is then its unchanged rows and its images. Nothing is
// copied at the begin but one cut per slot.
//
// One goroutine calls AppendSlot; see the package for what may run beside it.
type Snapshot struct {
	t      *Table
	cuts   []cut // by slot
	digest Digest
	rows   int

	// An image is a record and, behind it, 1 + the place of the slot's next image.
	// The images of saved slots are chained to spare and used again: it is written
	// by AppendSlot and by keep, which never run beside each other.
	images *slab.Slab
	spare  uint32

	// The slot being saved, the segment it had when its walk began (records never
	// move, so it stays good when the slot outgrows it), and how far the walk came.
	walking bool
	slot    rowraft.Slot
	seg     segment
	pos     int

	// outgrown are segments that could not be freed because they were being
	// walked; EndSnapshot frees them.
	outgrown []segment
}

// cut is one slot at the begin.
type cut struct {
	version uint64
	digest  Digest
	rows    uint32
	image   uint32 // 1 + place of the last image kept; 0 = none
	saved   bool
}

// BeginSnapshot fixes the table's present state for reading.
//
// Errors: CodeInternal if a snapshot is running.
func (t *Table) BeginSnapshot() (*Snapshot, error) {
	if t.snap != nil {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "table %s: a snapshot is running", t.schema.Name)
	}
	images, err := slab.New(t.slabRecordBytes() + 8)
	if err != nil {
		return nil, fmt.Errorf("table %s: snapshot: %w", t.schema.Name, err)
	}
	if t.cuts == nil {
		t.cuts = make([]cut, rowraft.NumSlots)
	}
	s := &Snapshot{t: t, cuts: t.cuts, rows: t.count, images: images}
	for i := range s.cuts {
		if t.Owns(rowraft.Slot(i)) {
			from := &t.slots[i]
			s.cuts[i] = cut{version: from.version, digest: from.digest, rows: from.rows}
			s.digest = s.digest.Add(from.digest)
		}
	}
	t.snap = s
	return s, nil
}

// EndSnapshot ends the running snapshot, complete or not, and frees what it
// kept; the Snapshot must not be used afterwards. Without one it does nothing.
func (t *Table) EndSnapshot() error {
	s := t.snap
	if s == nil {
		return nil
	}
	t.snap = nil
	if s.walking {
		s.finish()
	}
	for _, seg := range s.outgrown {
		t.blocks.Free(seg)
	}
	s.outgrown, s.cuts = nil, nil
	if err := s.images.Close(); err != nil {
		return fmt.Errorf("table %s: end a snapshot: %w", t.schema.Name, err)
	}
	return nil
}

// Rows returns the number of rows at the begin.
func (s *Snapshot) Rows() int { return s.rows }

// Digest returns the digest of all rows at the begin.
func (s *Snapshot) Digest() Digest { return s.digest }

// SlotRows returns the number of rows slot had at the begin.
func (s *Snapshot) SlotRows(slot rowraft.Slot) int { return int(s.cuts[slot].rows) }

// SlotVersion returns the version counter of slot at the begin; a restored slot
// takes it back by RestoreSlotVersion.
func (s *Snapshot) SlotVersion(slot rowraft.Slot) uint64 { return s.cuts[slot].version }

// SlotDigest returns the digest of slot at the begin.
func (s *Snapshot) SlotDigest(slot rowraft.Slot) Digest { return s.cuts[slot].digest }

// ImageBytes returns the most memory that images of changed rows took so far.
func (s *Snapshot) ImageBytes() int64 { return s.images.Stats().UsedBytes }

// AppendSlot appends to dst the records of slot as they were at the begin, in
// no particular order, and returns the longer slice. Between two calls the owner
// may let updates in: it looks at up to maxEntries (> 0) index entries a call,
// which bounds the time, and done tells that the slot is complete. A slot that
// was begun is called until it is done before another one is; a slot that is
// done stays so and appends nothing.
func (s *Snapshot) AppendSlot(dst []byte, slot rowraft.Slot, maxEntries int) (out []byte, done bool) {
	return s.AppendSlotSince(dst, slot, 0, maxEntries)
}

// AppendSlotSince is AppendSlot of the rows whose version is above since, which is
// the same in all calls for one slot.
func (s *Snapshot) AppendSlotSince(dst []byte, slot rowraft.Slot, since uint64, maxEntries int) (out []byte, done bool) {
	c := &s.cuts[slot]
	if c.saved {
		return dst, true
	}
	if !s.walking {
		s.walking, s.slot, s.seg, s.pos = true, slot, s.t.slots[slot].seg, 0
	}
	if s.slot != slot {
		panic(fmt.Sprintf("rowstore: snapshot of slot %d was asked for while slot %d is not done", slot, s.slot))
	}
	if since >= c.version {
		s.pos = len(s.seg) // no row is as new
	}
	end := min(s.pos+maxEntries, len(s.seg))
	for ; s.pos < end; s.pos++ {
		e := s.seg[s.pos]
		if e == 0 {
			continue
		}
		if r := s.t.at(slab.Place(uint32(e) - 1)); *r.version() <= c.version && *r.version() > since {
			dst = append(dst, s.t.bytes(r)...)
		}
	}
	if s.pos < len(s.seg) {
		return dst, false
	}
	for image := c.image; image != 0; {
		r := record{s.images.At(slab.Place(image - 1))}
		if *r.version() > since {
			dst = append(dst, s.t.bytes(r)...)
		}
		next := s.nextImage(r)
		image = *next
		if image == 0 {
			*next, s.spare = s.spare, c.image
		}
	}
	s.finish()
	return dst, true
}

// finish closes the slot being walked.
func (s *Snapshot) finish() {
	s.cuts[s.slot].saved = true
	s.walking = false
	s.seg = nil
}

// keep saves the image of r, which is about to change, if the snapshot still
// needs it.
func (s *Snapshot) keep(slot rowraft.Slot, tag uint32, r record) error {
	c := &s.cuts[slot]
	if c.saved || *r.version() > c.version {
		return nil
	}
	if s.walking && s.slot == slot && s.passed(tag, r) {
		return nil
	}
	p := slab.Place(s.spare - 1)
	if s.spare != 0 {
		s.spare = *s.nextImage(record{s.images.At(p)})
	} else {
		var err error
		if p, err = s.images.Alloc(); err != nil {
			return fmt.Errorf("table %s: keep a row for a snapshot: %w", s.t.schema.Name, err)
		}
	}
	image := record{s.images.At(p)}
	copy(s.t.bytes(image), s.t.bytes(r))
	*s.nextImage(image) = c.image
	c.image = uint32(p) + 1
	return nil
}

// passed reports whether the walk has already appended r, which was there at
// the begin and so is in the walked segment.
func (s *Snapshot) passed(tag uint32, r record) bool {
	i := tag
	for {
		p, after, ok := s.seg.next(i, tag)
		if !ok {
			return false
		}
		if s.t.at(p) == r {
			return int((after-1)&uint32(len(s.seg)-1)) < s.pos
		}
		i = after
	}
}

// nextImage is the link behind an image.
func (s *Snapshot) nextImage(r record) *uint32 {
	return (*uint32)(unsafe.Add(r.p, s.t.slabRecordBytes()))
}

// retire frees a segment that slot has outgrown, or keeps it for the snapshot
// that walks it.
func (t *Table) retire(slot rowraft.Slot, seg segment) {
	if s := t.snap; s != nil && s.walking && s.slot == slot && &s.seg[0] == &seg[0] {
		s.outgrown = append(s.outgrown, seg)
		return
	}
	t.blocks.Free(seg)
}
