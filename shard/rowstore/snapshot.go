package rowstore

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
)

// maxSnapshots is how many snapshots of a table run beside each other: the log's
// must not wait for that of a checkpoint, which is as slow as where it goes.
const maxSnapshots = 2

// Snapshot is the table as it was when BeginSnapshot ran, read slot by slot
// while updates go on.
//
// A row whose version is at most its slot's counter at the begin is unchanged
// since. The first change of such a row, in a slot not saved yet, keeps its
// image aside; a slot is then its unchanged rows and its images. Nothing is
// copied at the begin: the first change of a slot, or its walk, takes its cut.
//
// One goroutine calls AppendSlot; see the package for what may run beside it.
type Snapshot struct {
	t        *Table
	rows     int
	removals bool
	cuts     [rowraft.NumSlots / cutsPerPage]*cutPage // by slot; nil until one of the page is taken

	// An image is a record and, behind it, 1 + the place of the slot's next image.
	// The images of saved slots are chained to spare and used again: it is written
	// by AppendSlot and by keep, which never run beside each other.
	images *slab.Slab
	spare  uint32

	// The slot being saved and the walk through the segments it had at first:
	// records never move, so they stay good when the slot outgrows them.
	walking bool
	slot    rowraft.Slot
	walk    walk

	candidates *candidateCut // nil: the table has none
}

// cut is one slot at the begin.
type cut struct {
	taken   bool // else the slot is as it was at the begin
	saved   bool
	image   uint32 // 1 + place of the last image kept; 0 = none
	rows    uint32
	version uint64
	removed uint64
	digest  Digest
}

const cutsPerPage = 64

type cutPage [cutsPerPage]cut

// BeginSnapshot fixes the table's present state for reading. The Snapshot's End
// must be called.
//
// Errors: CodeOverloaded if two snapshots are running.
func (t *Table) BeginSnapshot() (*Snapshot, error) {
	if len(t.snaps) == maxSnapshots {
		return nil, rowraft.Errorf(rowraft.CodeOverloaded, "table %s: %d snapshots are running", t.schema.Name, len(t.snaps))
	}
	images, err := slab.New(t.slabRecordBytes() + 8)
	if err != nil {
		return nil, fmt.Errorf("table %s: snapshot: %w", t.schema.Name, err)
	}
	s := &Snapshot{t: t, rows: t.Rows(), removals: t.removals, images: images}
	if t.track != nil && t.track.slots != nil {
		s.candidates = &candidateCut{kept: make(map[rowraft.Slot][]uint64)}
	}
	t.snaps = append(t.snaps, s)
	return s, nil
}

// End ends the snapshot, complete or not, and frees what it kept; it must not be
// used afterwards, but to call End again, which does nothing.
func (s *Snapshot) End() error {
	t := s.t
	i := slices.Index(t.snaps, s)
	if i < 0 {
		return nil
	}
	t.snaps = slices.Delete(t.snaps, i, i+1)
	t.outgrown = slices.DeleteFunc(t.outgrown, func(seg segment) bool {
		if t.walked(seg) {
			return false
		}
		t.retire(seg)
		return true
	})
	if err := s.images.Close(); err != nil {
		return fmt.Errorf("table %s: end a snapshot: %w", t.schema.Name, err)
	}
	return nil
}

// peek is the cut of slot, taken or not.
func (s *Snapshot) peek(slot rowraft.Slot) cut {
	if p := s.cuts[slot/cutsPerPage]; p != nil && p[slot%cutsPerPage].taken {
		return p[slot%cutsPerPage]
	}
	now := &s.t.slots[slot]
	return cut{rows: now.rows, version: now.version, removed: now.removed, digest: now.digest}
}

// take takes the cut of slot, which has not changed since the begin unless it was
// taken before.
func (s *Snapshot) take(slot rowraft.Slot) *cut {
	p := s.cuts[slot/cutsPerPage]
	if p == nil {
		p = new(cutPage)
		s.cuts[slot/cutsPerPage] = p
	}
	c := &p[slot%cutsPerPage]
	if !c.taken {
		*c = s.peek(slot)
		c.taken = true
	}
	return c
}

// Rows returns the number of rows at the begin.
func (s *Snapshot) Rows() int { return s.rows }

// Digest returns the digest of all rows at the begin.
func (s *Snapshot) Digest() (d Digest) {
	for slot := range rowraft.Slot(rowraft.NumSlots) {
		d = d.Add(s.peek(slot).digest)
	}
	return d
}

// SlotRows returns the number of rows slot had at the begin.
func (s *Snapshot) SlotRows(slot rowraft.Slot) int { return int(s.peek(slot).rows) }

// SlotVersion returns the version counter of slot at the begin; a restored slot
// takes it back by RestoreSlotVersion.
func (s *Snapshot) SlotVersion(slot rowraft.Slot) uint64 { return s.peek(slot).version }

// SlotRemoved returns the removed counter of slot at the begin; a restored slot
// takes it back by RestoreSlotVersion.
func (s *Snapshot) SlotRemoved(slot rowraft.Slot) uint64 { return s.peek(slot).removed }

// Removals reports whether any slot has a removed counter.
func (s *Snapshot) Removals() bool { return s.removals }

// SlotDigest returns the digest of slot at the begin.
func (s *Snapshot) SlotDigest(slot rowraft.Slot) Digest { return s.peek(slot).digest }

// ImageBytes returns the most memory that images of changed rows took so far.
func (s *Snapshot) ImageBytes() int64 { return s.images.Stats().UsedBytes }

// AppendSlot appends to dst the records of slot as they were at the begin, in
// no particular order, and returns the longer slice. Between two calls the owner
// may let updates in: it looks at up to maxEntries (> 0) index entries and then
// images a call, which bounds the time, and done tells that the slot is complete. A slot that
// was begun is called until it is done before another one is; a slot that is
// done stays so and appends nothing.
func (s *Snapshot) AppendSlot(dst []byte, slot rowraft.Slot, maxEntries int) (out []byte, done bool) {
	return s.AppendSlotSince(dst, slot, 0, maxEntries)
}

// AppendSlotSince is AppendSlot of the rows whose version is above since, which is
// the same in all calls for one slot.
func (s *Snapshot) AppendSlotSince(dst []byte, slot rowraft.Slot, since uint64, maxEntries int) (out []byte, done bool) {
	c := s.take(slot)
	if c.saved {
		return dst, true
	}
	if !s.walking {
		s.walking, s.slot = true, slot
		s.walk.begin(&s.t.slots[slot])
	}
	if s.slot != slot {
		panic(fmt.Sprintf("rowstore: snapshot of slot %d was asked for while slot %d is not done", slot, s.slot))
	}
	w := &s.walk
	if since >= c.version {
		w.at = len(w.segs) // no row is as new
	}
	for ; w.at < len(w.segs); w.at, w.pos = w.at+1, 0 {
		seg := w.segs[w.at]
		end := min(w.pos+maxEntries, len(seg))
		maxEntries -= end - w.pos
		for ; w.pos < end; w.pos++ {
			e := seg[w.pos]
			if !isRow(e) {
				continue
			}
			if r := s.t.at(slab.Place(uint32(e) - 1)); *r.version() <= c.version && *r.version() > since {
				dst = append(dst, s.t.bytes(r)...)
			}
		}
		if w.pos < len(seg) {
			return dst, false
		}
	}
	// The walk has passed every row, so no image is added any more.
	for ; c.image != 0; maxEntries-- {
		if maxEntries <= 0 {
			return dst, false
		}
		r := record{s.images.At(slab.Place(c.image - 1))}
		if *r.version() > since {
			dst = append(dst, s.t.bytes(r)...)
		}
		next, image := s.nextImage(r), c.image
		c.image = *next
		*next, s.spare = s.spare, image
	}
	s.finish()
	return dst, true
}

// finish closes the slot being walked.
func (s *Snapshot) finish() {
	s.take(s.slot).saved = true
	s.walking = false
}

// touch is called before slot changes: it takes the cuts of the running snapshots.
func (t *Table) touch(slot rowraft.Slot) {
	for _, s := range t.snaps {
		s.take(slot)
	}
}

// keep saves the image of r, which is about to change, for the running snapshots
// that still need it. It includes touch.
func (t *Table) keep(slot rowraft.Slot, tag uint32, r record) error {
	for _, s := range t.snaps {
		if err := s.keep(slot, tag, r); err != nil {
			return err
		}
	}
	return nil
}

func (s *Snapshot) keep(slot rowraft.Slot, tag uint32, r record) error {
	c := s.take(slot)
	if c.saved || *r.version() > c.version {
		return nil
	}
	if s.walking && s.slot == slot && s.t.passed(&s.walk, tag, r) {
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

// nextImage is the link behind an image.
func (s *Snapshot) nextImage(r record) *uint32 {
	return (*uint32)(unsafe.Add(r.p, s.t.slabRecordBytes()))
}

// walked reports whether a running snapshot walks seg.
func (t *Table) walked(seg segment) bool {
	return slices.ContainsFunc(t.snaps, func(s *Snapshot) bool { return s.walking && s.walk.reads(seg) })
}

// outgrow retires a segment that a slot has outgrown, or keeps it until the
// snapshots that walk it have ended.
func (t *Table) outgrow(seg segment) {
	if t.walked(seg) {
		t.outgrown = append(t.outgrown, seg)
		return
	}
	t.retire(seg)
}
