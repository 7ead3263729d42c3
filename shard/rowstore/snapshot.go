package rowstore

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
)

// MaxSnapshots is how many snapshots of a table run concurrently: the log's must not wait for those of checkpoints,
// nor these for each other. Each is as slow as its destination.
const MaxSnapshots = 5

// Snapshot is the table as it was when BeginSnapshot ran, read slot by slot
// while updates go on.
//
// A row whose version is at most its slot's counter at the begin is unchanged
// since. The first change of such a row, in a slot not saved yet, keeps its
// image aside; a slot is then its unchanged rows and its images. Nothing is
// copied at the begin: the first change of a slot, or its walk, takes its cut.
//
// One goroutine reads it, beside the writer and the pulls; see the package for what
// may not. It begins to read where the writer is not: each says where it is, then looks
// where the other one is. A writer that comes into the slot meanwhile does not wait: it
// tells the reader, who throws away what it has read since, as it may be torn, and
// reads again; after some such tries it keeps the writer out. What the writer changed
// in between has left its image.
type Snapshot struct {
	t        *Table
	rows     int
	waiting  int // candidates
	removals bool
	cuts     [rowraft.NumSlots / cutsPerPage]atomic.Pointer[cutPage] // by slot; nil until one of the page is taken

	near      atomic.Int32 // 1 + the page of slots where the reader is or was last; 0: it has not begun
	reading   atomic.Int32 // 1 + the slot that is read; 0: none
	gate      sync.Mutex   // held while cuts and walk of that slot are changed
	disturbed bool         // the writer came into the slot; guarded by gate

	// aside is what the writer keeps of slots not saved yet, and the reader takes.
	aside struct {
		sync.Mutex
		// An image is a record and, behind it, 1 + the place of the slot's next image.
		// Those of saved slots are spare and used again. The writer calls Alloc, and
		// whoever has seen an image calls At, without the lock.
		images     *slab.Slab
		spare      []slab.Place
		candidates *candidateCut // nil: the table has none
	}
	ready readyImages  // the writer's
	read  []slab.Place // the reader's: images that it has passed on

	// The slot being saved and the walk through the segments it had at first:
	// records never move, so they stay good when the slot outgrows them. The writer
	// looks at the walk in this slot only, which its cut tells.
	walking bool
	slot    rowraft.Slot
	walk    walk
}

// cut is one slot at the begin.
type cut struct {
	taken   bool // else the slot is as it was at the begin
	walking bool
	saved   uint32 // 1: nothing of the slot is read any more; atomic, the writer looks without a claim
	image   uint32 // 1 + place of the last image kept; 0 = none
	rows    uint32
	version uint64
	removed uint64
	digest  Digest
}

// cutsPerPage is also how many slots the reader comes near to at once.
const cutsPerPage = 64

func (c *cut) isSaved() bool { return atomic.LoadUint32(&c.saved) != 0 }

type cutPage [cutsPerPage]cut

// cutPages are of snapshots that ended: memory that is new is slow at first.
var cutPages = sync.Pool{New: func() any { return new(cutPage) }}

// shortImages is from how many bytes of rows on images have chunks of the process's stock.
const shortImages = 16 << 20

// BeginSnapshot fixes the table's present state for reading. The Snapshot's End
// must be called.
//
// Errors: CodeOverloaded if MaxSnapshots are running.
func (t *Table) BeginSnapshot() (*Snapshot, error) {
	if len(t.snaps) == MaxSnapshots {
		return nil, rowraft.Errorf(rowraft.CodeOverloaded, "table %s: %d snapshots are running", t.schema.Name, len(t.snaps))
	}
	newSlab := slab.New
	if t.rows.Stats().MappedBytes > shortImages {
		newSlab = slab.NewShort
	}
	images, err := newSlab(t.imageBytes())
	if err != nil {
		return nil, fmt.Errorf("table %s: snapshot: %w", t.schema.Name, err)
	}
	t.mayLoosen()
	s := &Snapshot{t: t, rows: t.Rows(), removals: t.removals}
	s.aside.images = images
	if t.track != nil && t.track.slots != nil {
		s.waiting = int(t.track.total.Load())
		s.aside.candidates = &candidateCut{kept: make(map[rowraft.Slot][]uint64)}
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
		if slices.ContainsFunc(t.snaps, func(s *Snapshot) bool { return s.walking && s.walk.reads(seg) }) {
			return false
		}
		t.retireUnchecked(seg)
		return true
	})
	for i := range s.cuts {
		if p := s.cuts[i].Swap(nil); p != nil {
			*p = cutPage{}
			cutPages.Put(p)
		}
	}
	if err := s.aside.images.Close(); err != nil {
		return fmt.Errorf("table %s: end a snapshot: %w", t.schema.Name, err)
	}
	return nil
}

// peek is the cut of slot, taken or not.
// REQUIRES: the slot is entered or claimed, as for take.
func (s *Snapshot) peek(slot rowraft.Slot) cut {
	if p := s.cuts[slot/cutsPerPage].Load(); p != nil && p[slot%cutsPerPage].taken {
		return p[slot%cutsPerPage]
	}
	now := &s.t.slots[slot]
	return cut{rows: now.rows, version: now.version, removed: now.removed, digest: now.digest}
}

// take takes the cut of slot, which has not changed since the begin unless it was
// taken before.
func (s *Snapshot) take(slot rowraft.Slot) *cut {
	if p := s.cuts[slot/cutsPerPage].Load(); p != nil && p[slot%cutsPerPage].taken {
		return &p[slot%cutsPerPage]
	}
	return s.takeNow(slot)
}

func (s *Snapshot) takeNow(slot rowraft.Slot) *cut {
	page := &s.cuts[slot/cutsPerPage]
	if page.Load() == nil { // the other side may be making it, too
		if p := cutPages.Get().(*cutPage); !page.CompareAndSwap(nil, p) {
			cutPages.Put(p)
		}
	}
	c, now := &page.Load()[slot%cutsPerPage], s.peek(slot)
	c.rows, c.version, c.removed, c.digest = now.rows, now.version, now.removed, now.digest
	c.taken = true
	return c
}

// at is the cut of slot for the reader.
func (s *Snapshot) at(slot rowraft.Slot) cut {
	if s.saved(slot) {
		return s.peek(slot)
	}
	s.enter(slot)
	defer s.exit()
	return s.peek(slot)
}

// Rows returns the number of rows at the begin.
func (s *Snapshot) Rows() int { return s.rows }

// Candidates returns the number of candidates at the begin.
func (s *Snapshot) Candidates() int { return s.waiting }

// Digest returns the digest of all rows at the begin.
func (s *Snapshot) Digest() (d Digest) {
	for slot := range rowraft.Slot(rowraft.NumSlots) {
		if s.t.Owns(slot) {
			d = d.Add(s.at(slot).digest)
		}
	}
	return d
}

// SlotCut is what a slot was at the begin.
type SlotCut struct {
	Rows    int
	Version uint64 // the counter; a restored slot takes both back by RestoreSlotVersion
	Removed uint64 // its value when a row was last removed
	Digest  Digest
}

// Slot returns what slot was at the begin.
func (s *Snapshot) Slot(slot rowraft.Slot) SlotCut {
	if !s.t.Owns(slot) {
		return SlotCut{}
	}
	c := s.at(slot)
	return SlotCut{Rows: int(c.rows), Version: c.version, Removed: c.removed, Digest: c.digest}
}

// Removals reports whether any slot has a removed counter.
func (s *Snapshot) Removals() bool { return s.removals }

// ImageBytes returns the most memory that images of changed rows, and candidates that
// were kept as they were, took so far.
func (s *Snapshot) ImageBytes() int64 {
	s.aside.Lock()
	defer s.aside.Unlock()
	return s.aside.images.Stats().UsedBytes + s.aside.candidates.mostBytes()
}

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
	for tries := 1; ; tries++ {
		out, done, whole := s.appendPiece(dst, slot, since, maxEntries, tries > maxDisturbed)
		if whole {
			return out, done
		}
	}
}

// maxDisturbed is how often the writer may spoil what is read before it has to wait: a
// slot that is changed all the time, as that of a large dense tensor, must end.
const maxDisturbed = 3

// appendPiece is AppendSlotSince, unless whole says that the writer came between.
func (s *Snapshot) appendPiece(dst []byte, slot rowraft.Slot, since uint64, maxEntries int, insist bool) (out []byte, done, whole bool) {
	before := len(dst)
	c, to := s.begin(slot)
	switch {
	case c.isSaved():
		s.exit()
		return dst, true, true
	case since >= c.version:
		to.at = len(to.segs) // no row is as new
	}
	if insist {
		dst, maxEntries = s.appendRows(dst, &to, since, c.version, maxEntries)
	} else {
		s.gate.Unlock()
		epoch := s.t.grace.enter() // nothing that is read is used again
		dst, maxEntries = s.appendRows(dst, &to, since, c.version, maxEntries)
		s.t.grace.leave(epoch)
		s.gate.Lock()
	}
	if !insist && s.disturbed {
		s.exit()
		return dst[:before], false, false
	}
	s.walk.at, s.walk.pos = to.at, to.pos
	s.exit()
	if to.at < len(to.segs) {
		return dst, false, true
	}
	// The walk has passed every row, so no image is added any more.
	if dst = s.appendImages(dst, c, since, maxEntries); c.image != 0 {
		return dst, false, true
	}
	s.enter(slot)
	c.walking, s.walking = false, false
	atomic.StoreUint32(&c.saved, 1)
	s.exit()
	return dst, true, true
}

// begin enters slot and returns its cut and where its walk stands.
func (s *Snapshot) begin(slot rowraft.Slot) (*cut, walk) {
	s.enter(slot)
	c := s.take(slot)
	if c.isSaved() {
		return c, walk{}
	}
	if !s.walking {
		s.walking, s.slot, c.walking = true, slot, true
		s.walk.begin(&s.t.slots[slot])
	}
	if s.slot != slot {
		panic(fmt.Sprintf("rowstore: snapshot of slot %d was asked for while slot %d is not done", slot, s.slot))
	}
	return c, s.walk // the writer looks at s.walk
}

// appendRows appends the unchanged rows that w comes to within maxEntries, and
// returns how many entries are left of these.
func (s *Snapshot) appendRows(dst []byte, w *walk, since, counter uint64, maxEntries int) ([]byte, int) {
	for ; w.at < len(w.segs); w.at, w.pos = w.at+1, 0 {
		seg := w.segs[w.at]
		end := min(w.pos+maxEntries, len(seg))
		maxEntries -= end - w.pos
		dst = s.appendEntries(dst, seg[w.pos:end], since, counter)
		w.pos = end
		if w.pos < len(seg) {
			return dst, maxEntries
		}
	}
	return dst, maxEntries
}

// appendEntries appends the rows of entries whose version is above since and at most
// counter. A few records ahead it asks for their memory.
func (s *Snapshot) appendEntries(dst []byte, entries []uint64, since, counter uint64) []byte {
	var ring [recordsAhead]unsafe.Pointer
	found, size := 0, s.t.slabRecordBytes()
	row := func(at unsafe.Pointer) {
		r := record{at}
		if v := r.loadVersion(); v <= counter && v > since {
			dst = append(dst, s.t.bytes(r)...)
		}
	}
	for i := range entries {
		e := atomic.LoadUint64(&entries[i])
		if !isRow(e) {
			continue
		}
		slot := &ring[found%recordsAhead]
		if found >= recordsAhead {
			row(*slot)
		}
		*slot = s.t.at(slab.Place(uint32(e) - 1)).p
		prefetch(slot, 1, 0, size)
		found++
	}
	for i := max(0, found-recordsAhead); i < found; i++ {
		row(ring[i%recordsAhead])
	}
	return dst
}

// recordsAhead is how many records the reader asks for before it reads one.
const recordsAhead = 8

// appendImages appends images of the slot of c, up to maxEntries, and gives them up.
// It holds nothing while it copies: the writer would wait for it at its next image of
// any slot.
func (s *Snapshot) appendImages(dst []byte, c *cut, since uint64, maxEntries int) []byte {
	s.read = s.read[:0]
	for ; c.image != 0 && maxEntries > 0; maxEntries-- {
		p := slab.Place(c.image - 1)
		r := record{s.aside.images.At(p)}
		if *r.version() > since {
			dst = append(dst, s.t.bytes(r)...)
		}
		s.read = append(s.read, p)
		c.image = *s.t.nextImage(r)
	}
	if len(s.read) > 0 {
		s.aside.Lock()
		s.aside.spare = append(s.aside.spare, s.read...)
		s.aside.Unlock()
	}
	return dst
}

// touch is called before slot changes: it claims the slot and takes the cuts of the
// running snapshots. Whoever calls it calls done in the end.
func (t *Table) touch(slot rowraft.Slot) {
	if len(t.snaps) == 0 {
		return
	}
	t.claim(slot)
	for _, s := range t.snaps {
		s.take(slot)
	}
}

// keep saves the image of r, which is about to change, for the running snapshots
// that still need it. It includes touch, unless they have saved the slot.
func (t *Table) keep(slot rowraft.Slot, tag uint32, r record) error {
	for _, s := range t.snaps {
		if s.saved(slot) {
			continue
		}
		t.claim(slot)
		c := s.take(slot)
		if *r.version() > c.version || c.isSaved() || c.walking && t.passed(&s.walk, tag, r) {
			continue
		}
		if err := s.putImage(c, r); err != nil {
			return fmt.Errorf("table %s: keep a row for a snapshot: %w", t.schema.Name, err)
		}
	}
	return nil
}

// saved reports whether nothing of slot is read any more.
func (s *Snapshot) saved(slot rowraft.Slot) bool {
	p := s.cuts[slot/cutsPerPage].Load()
	return p != nil && p[slot%cutsPerPage].isSaved()
}

// outgrow retires a segment that slot, which is claimed, has outgrown, or keeps it
// until the snapshots and the check that walk it have ended.
func (t *Table) outgrow(slot rowraft.Slot, seg segment) {
	for _, s := range t.snaps {
		if s.take(slot).walking && s.walk.reads(seg) {
			t.outgrown = append(t.outgrown, seg)
			return
		}
	}
	t.retireUnchecked(seg)
}

// retireUnchecked retires seg, which the slot has outgrown and no snapshot walks, when the
// check does not walk it either.
func (t *Table) retireUnchecked(seg segment) {
	if t.slotCheck.reads(seg) {
		t.slotCheck.outgrown = append(t.slotCheck.outgrown, seg)
		return
	}
	t.retire(seg)
}
