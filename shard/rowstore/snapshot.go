package rowstore

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
)

// MaxSnapshots is how many snapshots of a table run concurrently. A snapshot is as slow as its
// destination: the snapshots of the Raft log must not wait for those of checkpoints, and those of
// checkpoints must not wait for each other.
const MaxSnapshots = 5

// Snapshot is the table at the time of BeginSnapshot, read slot by slot
// while updates continue.
//
// A row whose version is at most its slot's counter at the begin has not changed
// since. Before the first change of such a row, in a slot that is not saved yet, the writer saves
// the row's image. A saved slot is its unchanged rows plus its images. BeginSnapshot copies
// nothing: the first change or the first read of a slot takes the slot's cut.
//
// One goroutine reads the snapshot, concurrently with the writer and with pulls; the package
// comment says what else may run. The reader starts to read a slot only when the writer is in
// another slot: each of them publishes its own slot and then looks at the other's (see claim.go).
// A writer that comes into the slot during the read does not wait: it sets disturbed, and the
// reader discards what it has read since, because that may be torn, and reads again. After
// maxDisturbed such tries the reader keeps the writer out. The writer has saved the images of
// the rows that it changed in between, so a second read loses nothing.
type Snapshot struct {
	t       *Table
	rows    int
	waiting int                       // number of candidates
	cuts    []atomic.Pointer[cutPage] // by page of slots; nil until a cut of the page is taken

	nearPage  atomic.Int32 // 1 + the page of slots where the reader is or was last; 0: it has not begun
	reading   atomic.Int32 // 1 + the slot that is read; 0: none
	slotMu    sync.Mutex   // held while the cut or the walk of that slot changes
	disturbed bool         // the writer came into the slot; guarded by slotMu

	// kept is what the writer saves of slots that are not saved yet. The reader consumes it.
	kept struct {
		sync.Mutex
		// An image is a record followed by 1 + the place of the slot's next image.
		// spare are the places of images of saved slots, for reuse. Only the writer calls
		// images.Alloc. images.At needs no lock once the caller has seen the image.
		images     *slab.Slab
		spare      []slab.Place
		candidates *candidateCut // nil if the table has no candidates
	}
	cut *coldfile.Cut // of the tier's file; nil: none
	// With refers, the rows of that cut are in refs, and not among the records. The reader owns both.
	refers bool
	refs   []uint64

	ready readyImages  // owned by the writer
	read  []slab.Place // owned by the reader: images that it has appended

	// The slot that is being saved, and the walk through the segments that it had when the walk
	// began: records never move, so these segments stay valid when the slot outgrows them. The
	// writer reads walk only for this slot, when cut.walking is set.
	walking bool
	slot    rowraft.Slot
	walk    walk
}

// cut is the state of one slot at the begin of a snapshot.
type cut struct {
	taken   bool // false: the slot has not changed since the begin, and the fields below are unset
	walking bool
	saved   uint32 // 1: the snapshot reads nothing more of the slot; atomic, the writer loads it without a claim
	image   uint32 // 1 + place of the last image; 0: none
	rows    uint32
	version uint64
	removed uint64
	digest  Digest
}

// cutsPerPage is the number of slots on a page of cuts, and the granularity of Snapshot.nearPage.
const cutsPerPage = 64

func (c *cut) isSaved() bool { return atomic.LoadUint32(&c.saved) != 0 }

type cutPage [cutsPerPage]cut

// cutPages reuses the pages of snapshots that ended: the first writes to new memory are slow.
var cutPages = sync.Pool{New: func() any { return new(cutPage) }}

// shortImages: from this many bytes of rows on, images use the process's stock of chunks.
const shortImages = 16 << 20

// BeginSnapshot fixes the present state of the table for reading. The caller must call End of the
// Snapshot.
//
// Errors: CodeOverloaded if MaxSnapshots are running.
func (t *Table) BeginSnapshot() (*Snapshot, error) {
	if len(t.snaps.running) == MaxSnapshots {
		return nil, rowraft.Errorf(rowraft.CodeOverloaded, "table %s: %d snapshots are running, the limit; try again later",
			t.schema.Name, len(t.snaps.running))
	}
	newSlab := slab.New
	if t.index.slab.Stats().MappedBytes > shortImages {
		newSlab = slab.NewShort
	}
	images, err := newSlab(t.index.imageBytes())
	if err != nil {
		return nil, fmt.Errorf("table %s: snapshot: %w", t.schema.Name, err)
	}
	t.snaps.chooseClaims()
	s := &Snapshot{t: t, rows: t.Rows(), cuts: make([]atomic.Pointer[cutPage],
		(len(t.index.slots)+cutsPerPage-1)/cutsPerPage)}
	s.kept.images = images
	if t.track != nil && t.track.slots != nil {
		s.waiting = int(t.track.total.Load())
		s.kept.candidates = &candidateCut{kept: make(map[rowraft.Slot][]uint64), saved: make([]uint64, len(t.index.bits)),
			first: t.index.first}
	}
	t.snaps.running = append(t.snaps.running, s)
	return s, nil
}

// End ends the snapshot, complete or not, and frees its memory. The snapshot must not be
// used afterwards. A second call of End does nothing.
func (s *Snapshot) End() error {
	t := s.t
	i := slices.Index(t.snaps.running, s)
	if i < 0 {
		return nil
	}
	t.snaps.running = slices.Delete(t.snaps.running, i, i+1)
	s.cut.Release()
	t.snaps.outgrown = slices.DeleteFunc(t.snaps.outgrown, func(seg segment) bool {
		if slices.ContainsFunc(t.snaps.running, func(s *Snapshot) bool { return s.walking && s.walk.includes(seg) }) {
			return false
		}
		t.index.retireUnlessChecked(seg)
		return true
	})
	for i := range s.cuts {
		if p := s.cuts[i].Swap(nil); p != nil {
			*p = cutPage{}
			cutPages.Put(p)
		}
	}
	if err := s.kept.images.Close(); err != nil {
		return fmt.Errorf("table %s: end a snapshot: %w", t.schema.Name, err)
	}
	return nil
}

// cutPage returns the page with the cut of slot.
func (s *Snapshot) cutPage(slot rowraft.Slot) *atomic.Pointer[cutPage] {
	return &s.cuts[(slot-s.t.index.first)/cutsPerPage]
}

// peek returns the cut of slot without taking it.
// REQUIRES: the slot is entered or claimed, as for take.
func (s *Snapshot) peek(slot rowraft.Slot) cut {
	if p := s.cutPage(slot).Load(); p != nil && p[slot%cutsPerPage].taken {
		return p[slot%cutsPerPage]
	}
	now := s.t.index.slot(slot)
	return cut{rows: now.rows, version: now.version, removed: *s.t.index.removed(slot), digest: now.digest}
}

// take takes the cut of slot, unless it was taken before. REQUIRES: the slot has not changed
// since the begin, or its cut was taken; the slot is entered or claimed.
func (s *Snapshot) take(slot rowraft.Slot) *cut {
	if p := s.cutPage(slot).Load(); p != nil && p[slot%cutsPerPage].taken {
		return &p[slot%cutsPerPage]
	}
	return s.takeNow(slot)
}

func (s *Snapshot) takeNow(slot rowraft.Slot) *cut {
	page := s.cutPage(slot)
	if page.Load() == nil { // the writer and the reader may both be here, for different slots of the page
		if p := cutPages.Get().(*cutPage); !page.CompareAndSwap(nil, p) {
			cutPages.Put(p)
		}
	}
	c, now := &page.Load()[slot%cutsPerPage], s.peek(slot)
	c.rows, c.version, c.removed, c.digest = now.rows, now.version, now.removed, now.digest
	c.taken = true
	return c
}

// at returns the cut of slot. Only the reader calls it.
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
	for slot := range s.t.index.all() {
		d = d.Add(s.at(slot).digest)
	}
	return d
}

// SlotCut is the state of a slot when the snapshot began.
type SlotCut struct {
	Rows    int
	Version uint64 // the version counter; RestoreSlotVersion restores it and Removed
	Removed uint64 // value of the counter when a row was last removed
	Digest  Digest
}

// Slot returns the state of slot when the snapshot began.
func (s *Snapshot) Slot(slot rowraft.Slot) SlotCut {
	if !s.t.Owns(slot) {
		return SlotCut{}
	}
	c := s.at(slot)
	return SlotCut{Rows: int(c.rows), Version: c.version, Removed: c.removed, Digest: c.digest}
}

// ImageBytes returns the most memory that the images of changed rows and the kept candidates have
// used so far.
func (s *Snapshot) ImageBytes() int64 {
	s.kept.Lock()
	defer s.kept.Unlock()
	return s.kept.images.Stats().UsedBytes + s.kept.candidates.mostBytes()
}

// AppendSlot appends to dst the records that slot had when the snapshot began, in
// no particular order, and returns the longer slice. One call looks at up to maxEntries (> 0) index
// entries, then images, which bounds its time: the owner may let updates in between two calls.
// done means that the slot is complete. The caller calls AppendSlot for a slot until it is done,
// before it starts another slot. A slot that is done appends nothing.
func (s *Snapshot) AppendSlot(dst []byte, slot rowraft.Slot, maxEntries int) (out []byte, done bool) {
	return s.AppendSlotSince(dst, slot, 0, maxEntries)
}

// AppendSlotSince is AppendSlot for the rows whose version is above since. All calls for one slot
// must pass the same since.
func (s *Snapshot) AppendSlotSince(dst []byte, slot rowraft.Slot, since uint64, maxEntries int) (out []byte,
	done bool) {
	if !s.t.Owns(slot) {
		return dst, true
	}
	for tries := 1; ; tries++ {
		out, done, whole := s.tryAppend(dst, slot, since, maxEntries, tries > maxDisturbed)
		if whole {
			return out, done
		}
	}
}

// maxDisturbed is how often the writer may spoil a read before it has to wait. Without the limit,
// the snapshot of a slot that changes all the time, such as that of a large dense tensor, would
// never end.
const maxDisturbed = 3

// tryAppend is one try of AppendSlotSince. whole is false if the writer came into the slot. With
// exclusive, tryAppend holds slotMu throughout, and the writer waits.
func (s *Snapshot) tryAppend(
	dst []byte, slot rowraft.Slot, since uint64, maxEntries int, exclusive bool,
) (out []byte, done, whole bool) {
	before, refs := len(dst), len(s.refs)
	c, to := s.begin(slot)
	switch {
	case c.isSaved():
		s.exit()
		return dst, true, true
	case since >= c.version:
		to.at = len(to.segs) // every row is older
	}
	if exclusive {
		dst, maxEntries = s.appendRows(dst, &to, since, c.version, maxEntries)
	} else {
		s.slotMu.Unlock()
		epoch := s.t.index.grace.Enter() // the memory that is read is not reused
		dst, maxEntries = s.appendRows(dst, &to, since, c.version, maxEntries)
		s.t.index.grace.Leave(epoch)
		s.slotMu.Lock()
	}
	if !exclusive && s.disturbed {
		s.exit()
		s.refs = s.refs[:refs]
		return dst[:before], false, false
	}
	s.walk.at, s.walk.pos = to.at, to.pos
	s.exit()
	if to.at < len(to.segs) {
		return dst, false, true
	}
	// The walk has passed every row, so the writer saves no more images for the slot.
	if dst = s.appendImages(dst, c, since, maxEntries); c.image != 0 {
		return dst, false, true
	}
	s.enter(slot)
	c.walking, s.walking = false, false
	atomic.StoreUint32(&c.saved, 1)
	s.exit()
	return dst, true, true
}

// begin enters slot and returns its cut and the position of its walk.
func (s *Snapshot) begin(slot rowraft.Slot) (*cut, walk) {
	s.enter(slot)
	c := s.take(slot)
	if c.isSaved() {
		return c, walk{}
	}
	if !s.walking {
		s.walking, s.slot, c.walking = true, slot, true
		s.walk.begin(s.t.index.slot(slot))
	}
	if s.slot != slot {
		panic(fmt.Sprintf("rowstore: snapshot reads slot %d while slot %d is not done: finish that slot first", slot, s.slot))
	}
	return c, s.walk // a copy: the writer reads s.walk
}

// appendRows appends the unchanged rows among the next maxEntries entries of w, and
// returns how many of maxEntries are left.
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

// appendEntries appends the rows of entries whose version is above since and at most counter.
func (s *Snapshot) appendEntries(dst []byte, entries []uint64, since, counter uint64) []byte {
	var cold []coldEntry
	row := func(r record) {
		if v := r.loadVersion(); v <= counter && v > since {
			dst = s.t.index.appendRecord(dst, r)
		}
	}
	warm := window{to: s.t.index.rowBytes()}
	for i := range entries {
		switch e := atomic.LoadUint64(&entries[i]); {
		case !isRow(e):
		case isCold(e) && s.refers && s.cut.Has(coldPlace(e)):
			s.refs = append(s.refs, e)
		case isCold(e):
			cold = append(cold, coldEntry{e: e})
		default:
			if _, r := warm.swap(e, s.t.index.at(slab.Place(uint32(e)-1))); r.p != nil {
				row(r)
			}
		}
	}
	for _, r := range warm.rest {
		row(r)
	}
	if len(cold) > 0 { // an error breaks the tier
		_ = s.t.index.tier.each(cold, func(_ *coldEntry, r record) { row(r) })
	}
	return dst
}

// appendImages appends up to maxEntries images of the slot of c and frees their places.
// It holds no lock during the copy: otherwise the writer would wait for it at its next image, in
// any slot.
func (s *Snapshot) appendImages(dst []byte, c *cut, since uint64, maxEntries int) []byte {
	s.read = s.read[:0]
	for ; c.image != 0 && maxEntries > 0; maxEntries-- {
		p := slab.Place(c.image - 1)
		r := s.t.index.recordAt(s.kept.images.At(p))
		if *r.version() > since {
			dst = s.t.index.appendRecord(dst, r)
		}
		s.read = append(s.read, p)
		c.image = *s.t.index.nextImage(r)
	}
	if len(s.read) > 0 {
		s.kept.Lock()
		s.kept.spare = append(s.kept.spare, s.read...)
		s.kept.Unlock()
	}
	return dst
}

// prepareSlot must be called before slot changes: it claims the slot and takes the cuts of the
// running snapshots. The caller must call done at its end.
func (ss *snapshots) prepareSlot(slot rowraft.Slot) {
	if len(ss.running) == 0 {
		return
	}
	ss.claim(slot)
	for _, s := range ss.running {
		s.take(slot)
	}
}

// saveImage must be called before r changes: it saves the image of r for each running snapshot
// that still needs it. It includes prepareSlot, except for snapshots that have saved the slot.
func (ss *snapshots) saveImage(slot rowraft.Slot, tag uint32, r record) error {
	for _, s := range ss.running {
		if s.saved(slot) {
			continue
		}
		ss.claim(slot)
		c := s.take(slot)
		if *r.version() > c.version || c.isSaved() || c.walking && ss.index.passed(&s.walk, tag, r) {
			continue
		}
		if err := s.putImage(c, r); err != nil {
			return fmt.Errorf("table %s: keep a row for a snapshot: %w", ss.index.schema.Name, err)
		}
	}
	return nil
}

// saved reports whether the snapshot reads nothing more of slot.
func (s *Snapshot) saved(slot rowraft.Slot) bool {
	p := s.cutPage(slot).Load()
	return p != nil && p[slot%cutsPerPage].isSaved()
}

// outgrow retires a segment that slot has outgrown. If a snapshot or the check walks it, the
// segment stays until they have ended. REQUIRES: slot is claimed.
func (ss *snapshots) outgrow(slot rowraft.Slot, seg segment) {
	for _, s := range ss.running {
		if s.take(slot).walking && s.walk.includes(seg) {
			ss.outgrown = append(ss.outgrown, seg)
			return
		}
	}
	ss.index.retireUnlessChecked(seg)
}

// retireUnlessChecked retires seg. If the check walks it, the segment stays until the check has ended.
// REQUIRES: no snapshot walks seg, and its slot has outgrown it.
func (x *index) retireUnlessChecked(seg segment) {
	if x.check.includes(seg) {
		x.check.outgrown = append(x.check.outgrown, seg)
		return
	}
	x.retire(seg)
}
