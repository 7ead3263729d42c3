package coldfile

import (
	"crypto/rand" //tidy:allow determinism identities and seeds of checksums, on which no applied state depends
	"encoding/binary"
	"hash/crc32"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rowraft/rowraft"
)

// ID is the identity of a file. It is random, so a snapshot never finds another file under its name.
type ID [16]byte

// NewID returns a new identity.
func NewID() (id ID) {
	rand.Read(id[:]) // never fails: on an error it ends the process
	return id
}

func newSeed() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// Ref is what a snapshot stores of a file, so that Open continues with the records of a cut.
type Ref struct {
	ID          ID
	RecordBytes int // without the checksum
	PerExtent   int
	Cut         uint64
	Seeds       []uint64 // of the checksums, by extent
}

// pins are the cuts whose records must stay. Any goroutine may use it.
type pins struct {
	last    atomic.Uint64 // the number of the last cut
	changed atomic.Bool   // unpin may find extents that no cut needs any more

	mu sync.Mutex
	// held has the users of each cut that is pinned by Cut or Hold.
	held map[uint64]int
	kept []uint64 // of Keep
}

// Cut is the records of a file at one moment. It is nil for a table without a file; then its methods do nothing.
type Cut struct {
	file   *File
	number uint64 // 0: there were no records
}

// Cut fixes the present records and pins them until Release. The caller is the writer.
func (f *File) Cut() *Cut {
	c := &Cut{file: f}
	if f.stats.records.Load() > 0 {
		p := &f.cuts
		p.mu.Lock()
		defer p.mu.Unlock()
		c.number = p.last.Add(1)
		p.holdLocked(c.number)
	}
	return c
}

// Empty reports whether the cut has no records, so that a snapshot need not refer to the file.
func (c *Cut) Empty() bool { return c == nil || c.number == 0 }

// ID returns the identity of the file. REQUIRES: the cut is not empty.
func (c *Cut) ID() ID { return c.file.id }

// Has reports whether the record at place was written before the cut. It may run concurrently with everything while the
// place cannot be written again.
func (c *Cut) Has(place int) bool {
	return c != nil && atomic.LoadUint64(&(*c.file.marks.Load())[place/c.file.perExtent].written) < c.number
}

// Release ends the pin. It may be called at any time, like the methods below.
func (c *Cut) Release() {
	if !c.Empty() {
		c.file.cuts.release(c.number)
	}
}

// Keep pins the cut because a durable snapshot refers to it, until a later one is kept. With sure, it replaces the cuts
// that were kept before; otherwise the snapshot may not survive a crash, and those stay pinned too.
func (c *Cut) Keep(sure bool) {
	if c == nil {
		return
	}
	p := &c.file.cuts
	p.mu.Lock()
	defer p.mu.Unlock()
	if sure {
		p.kept = p.kept[:0]
	}
	if c.number > 0 {
		p.kept = append(p.kept, c.number)
	}
	p.changed.Store(true)
}

// Ref returns what a snapshot of the cut stores. REQUIRES: the cut is not empty.
func (c *Cut) Ref() Ref {
	f := c.file
	r := Ref{ID: f.id, RecordBytes: f.size - checksumBytes, PerExtent: f.perExtent, Cut: c.number}
	marks := *f.marks.Load()
	for i := range min(int(f.stats.extents.Load()), len(marks)) {
		r.Seeds = append(r.Seeds, atomic.LoadUint64(&marks[i].seed))
	}
	return r
}

// Sync makes the records of the cut durable. It must not run concurrently with Close or another Sync of the file. After
// an error the file must not be used any more: what the disk has is unknown.
func (c *Cut) Sync() error {
	if c.Empty() {
		return nil
	}
	if f := c.file; f.dirty.Swap(false) {
		return f.disk.Sync()
	}
	return nil
}

func (p *pins) holdLocked(cut uint64) {
	if p.held == nil {
		p.held = map[uint64]int{}
	}
	p.held[cut]++
}

func (p *pins) release(cut uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[cut]--; p.held[cut] <= 0 {
		delete(p.held, cut)
	}
	p.changed.Store(true)
}

// Hold pins cut number cut of the file id once more, until release is called. release is nil if f, which may be nil,
// has another identity: nothing writes into that file any more. It may be called at any time.
//
// Errors: CodeOverloaded if the cut is not pinned, so that its records may be gone.
func (f *File) Hold(id ID, cut uint64) (release func(), err error) {
	if f == nil || f.id != id {
		return nil, nil
	}
	p := &f.cuts
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[cut] == 0 && !slices.Contains(p.kept, cut) {
		return nil, rowraft.Errorf(rowraft.CodeOverloaded, "a newer snapshot has replaced cut %d of the cold rows %x",
			cut, id)
	}
	p.holdLocked(cut)
	return func() { p.release(cut) }, nil
}

// unpin frees the extents that no pinned cut needs.
func (f *File) unpin() {
	p := &f.cuts
	if !p.changed.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed.Store(false)
	left := f.pinned[:0]
	for _, at := range f.pinned {
		written, emptied := (*f.marks.Load())[at].written, f.extents[at].emptied
		needed := false
		need := func(cut uint64) { needed = needed || written < cut && cut <= emptied }
		for cut := range p.held { //tidy:allow determinism whether any cut needs the extent
			need(cut)
		}
		for _, cut := range p.kept {
			need(cut)
		}
		if needed {
			left = append(left, at)
		} else {
			f.free = append(f.free, at)
		}
	}
	f.pinned = left
	f.stats.pinned.Store(int64(len(left)))
}

// Open returns the file of ref as it was at the cut, with no record: the caller calls Restore for the places of the
// cut, and then Restored. The cut is pinned until Keep names a later one. disk stays with the caller if there is an
// error. Open reads the header of the file only.
//
// Errors: CodeCorrupt if disk has another file, or ref is impossible.
func Open(disk Disk, ref Ref) (*File, error) {
	if err := checkRef(&ref); err != nil {
		return nil, err
	}
	f := newFile(disk, ref.ID, ref.RecordBytes, ref.PerExtent)
	f.grow(len(ref.Seeds))
	marks := *f.marks.Load()
	for i, seed := range ref.Seeds {
		marks[i].seed = seed
	}
	f.cuts.last.Store(ref.Cut)
	f.cuts.kept = []uint64{ref.Cut}
	f.restoring, f.headed = true, true // no write repairs a damaged header before Restored has read it
	return f, nil
}

// maxRecordBytes bounds the records that checkRef accepts; a row has far fewer.
const maxRecordBytes = 1 << 24

func checkRef(ref *Ref) error {
	if ref.RecordBytes <= 0 || ref.RecordBytes%8 != 0 || ref.RecordBytes > maxRecordBytes || ref.PerExtent <= 0 ||
		ref.PerExtent > max(1, extentBytes/(ref.RecordBytes+checksumBytes)) ||
		uint64(len(ref.Seeds)) > MaxPlaces/uint64(ref.PerExtent) || ref.Cut == 0 {
		return rowraft.Errorf(rowraft.CodeCorrupt,
			"cold rows: %d extents of %d records of %d bytes at cut %d are impossible",
			len(ref.Seeds), ref.PerExtent, ref.RecordBytes, ref.Cut)
	}
	return nil
}

// Restore notes that the cut has a record at place. It returns false if the file has no such place, or the place has a
// record already.
func (f *File) Restore(place int) bool {
	at, bit := place/f.perExtent, place%f.perExtent
	if at >= len(f.extents) || f.extents[at].has[bit/64]>>(bit%64)&1 != 0 {
		return false
	}
	ext := &f.extents[at]
	ext.has[bit/64] |= 1 << (bit % 64)
	ext.n++
	f.stats.records.Add(1)
	return true
}

// Restored ends the calls of Restore: the extents without a record are free, also those that were begun and not written
// meanwhile. It reads the header, and the last byte of
// the last record, but no record.
//
// Errors: CodeCorrupt if the disk has another file, or one that is too short.
func (f *File) Restored() error {
	f.restoring, f.free = false, f.free[:0]
	last := -1
	for at := range f.extents {
		ext := &f.extents[at]
		if ext.n == 0 {
			f.free = append(f.free, at)
			continue
		}
		for i, w := range ext.has {
			for bit := range 64 {
				if w>>bit&1 != 0 {
					last = at*f.perExtent + 64*i + bit
				}
			}
		}
	}
	if last < 0 {
		f.headed = false
		return nil
	}
	if err := f.Check(); err != nil {
		return err
	}
	var b [1]byte
	if n, err := f.disk.ReadAt(b[:], f.offset(last)+int64(f.size)-1); n < 1 {
		return rowraft.Errorf(rowraft.CodeCorrupt, "the file of cold rows %x is too short for record %d: %w", f.id, last, err)
	}
	return nil
}

// The header of the file; docs/formats/cold-rows.md is the specification.
const (
	fileMagic   = "ROWRCOLD"
	fileVersion = 1
	headerBytes = 44
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (f *File) header() []byte {
	le := binary.LittleEndian
	b := append(make([]byte, 0, headerBytes), fileMagic...)
	b = le.AppendUint16(b, fileVersion)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint32(b, uint32(f.size-checksumBytes))
	b = le.AppendUint32(b, uint32(f.perExtent))
	b = le.AppendUint32(b, 0)
	b = append(b, f.id[:]...)
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func (f *File) writeHeader() error {
	if f.headed {
		return nil
	}
	_, err := f.disk.WriteAt(f.header(), 0)
	f.headed = err == nil
	return err
}

// Check checks that the disk has this file.
func (f *File) Check() error {
	var b [headerBytes]byte
	if n, err := f.disk.ReadAt(b[:], 0); n < len(b) {
		return rowraft.Errorf(rowraft.CodeCorrupt, "the file of cold rows %x has no header: %w", f.id, err)
	}
	le, want := binary.LittleEndian, f.header()
	switch {
	case string(b[:8]) != fileMagic || le.Uint32(b[headerBytes-4:]) != crc32.Checksum(b[:headerBytes-4], castagnoli):
		return rowraft.Errorf(rowraft.CodeCorrupt, "the file of cold rows %x is damaged: its header is %x", f.id, b)
	case le.Uint16(b[8:]) > fileVersion:
		return rowraft.Errorf(rowraft.CodeVersionTooNew,
			"the file of cold rows %x has format %d; this binary knows up to %d: upgrade it", f.id, le.Uint16(b[8:]),
			fileVersion)
	case string(b[:]) != string(want):
		return rowraft.Errorf(rowraft.CodeCorrupt, "the file of cold rows %x is another one: its header is %x, want %x",
			f.id, b, want)
	}
	return nil
}

// WantsSnapshot reports whether a snapshot should be taken soon: extents that only cuts need take more space than the
// others, and more than 16 MiB; or the file has 64 MiB, and no durable snapshot refers to it, so that a start would
// write all of it again. f may be nil. It may be called at any time.
func (f *File) WantsSnapshot() bool {
	if f == nil || f.cuts.changed.Load() {
		return false
	}
	s := f.Stats()
	f.cuts.mu.Lock()
	defer f.cuts.mu.Unlock()
	for cut := range f.cuts.held { //tidy:allow determinism whether there is one
		if !slices.Contains(f.cuts.kept, cut) {
			return false // an older cut is being sent, or a newer one written: one more would free nothing
		}
	}
	return s.PinnedBytes > max(crowdedBytes, s.FileBytes-s.PinnedBytes) ||
		s.FileBytes > unkeptBytes && s.Records > 0 && len(f.cuts.kept) == 0
}

const (
	crowdedBytes = 16 << 20
	unkeptBytes  = 64 << 20
)

// Places returns the number of places that the file has now. It may be called at any time.
func (f *File) Places() int { return int(f.stats.extents.Load()) * f.perExtent }
