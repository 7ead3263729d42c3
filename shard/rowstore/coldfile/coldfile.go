package coldfile

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/zeebo/xxh3"

	"github.com/rowraft/rowraft"
)

// Disk is the file of one table.
type Disk interface {
	io.ReaderAt
	io.WriterAt
	// Sync makes the content and the name of the file durable.
	Sync() error
	io.Closer
}

// MaxPlaces is the number of places in a file: a place has 31 bits, and the largest such number stays unused.
const MaxPlaces = 1<<31 - 1

const (
	extentBytes   = 256 << 10
	pageBytes     = 4096 // extents begin at multiples of it, so that no page has records of two writes
	checksumBytes = 8
	readBytes     = 1 << 20 // limits what one Read reads at a time
	atOnce        = 8       // how many records a goroutine reads before it looks for more
	sparseLooks   = 64      // how many extents Sparse looks at
)

// readers limits how many goroutines of the process read for large batches, in addition to the callers of Read: each of
// them keeps a thread while it waits for the disk.
var readers = make(chan struct{}, 16)

// buffers of Read.
var buffers = sync.Pool{New: func() any { return new([]uint64) }}

// File is the records of one table.
type File struct {
	disk      Disk
	id        ID
	size      int // bytes of a record and its checksum, a multiple of 8
	perExtent int
	stride    int64 // bytes from one extent to the next

	extents   []extent
	marks     atomic.Pointer[[]mark] // by extent; elements are atomic, a longer list replaces it
	free      []int                  // extents that may be written again
	pinned    []int                  // extents that are empty, but a cut may have records of them
	at        int                    // the extent that is collected; -1: none
	buf       []uint64               // its records
	n         int                    // how many they are
	looked    int                    // the extent at which Sparse looked last
	headed    bool                   // the header is written
	restoring bool                   // between Open and Restored: not all records are known

	cuts  pins
	dirty atomic.Bool // Write has written since the last Sync

	stats struct{ extents, records, read, written, pinned atomic.Int64 }
}

// extent has a bit for each place that has a record.
type extent struct {
	has     []uint64
	n       int
	emptied uint64 // the number of the last cut when the last record was freed
}

// mark is what readers need of an extent. Both fields change only while the extent has no record.
type mark struct {
	seed    uint64 // of its checksums
	written uint64 // the number of the last cut when it was written
}

// New returns a File of records of recordBytes, a multiple of 8, in extents of 256 KiB, but of at most most records.
// disk must be empty.
func New(disk Disk, id ID, recordBytes, most int) *File {
	return newFile(disk, id, recordBytes, max(1, min(extentBytes/(recordBytes+checksumBytes), most)))
}

func newFile(disk Disk, id ID, recordBytes, perExtent int) *File {
	f := &File{disk: disk, id: id, size: recordBytes + checksumBytes, perExtent: perExtent, at: -1}
	f.stride = stride(f.size, perExtent)
	f.buf = make([]uint64, f.perExtent*f.size/8)
	f.marks.Store(new([]mark))
	return f
}

func stride(size, perExtent int) int64 {
	return (int64(size)*int64(perExtent) + pageBytes - 1) &^ (pageBytes - 1)
}

// Close closes the file.
func (f *File) Close() error { return f.disk.Close() }

// ID returns the identity of the file.
func (f *File) ID() ID { return f.id }

// PerExtent returns the number of records in an extent.
func (f *File) PerExtent() int { return f.perExtent }

// Stats are sizes, and counts since New.
type Stats struct {
	Records               int64 // in the file now
	FileBytes             int64
	PinnedBytes           int64 // of FileBytes: extents without records that a cut may need
	Read, Written         int64 // records
	ReadBytes, WriteBytes int64
}

func (f *File) Stats() Stats {
	s := Stats{Records: f.stats.records.Load(), Read: f.stats.read.Load(), Written: f.stats.written.Load()}
	if n := f.stats.extents.Load(); n > 0 {
		s.FileBytes, s.PinnedBytes = pageBytes+n*f.stride, f.stats.pinned.Load()*f.stride
	}
	s.ReadBytes, s.WriteBytes = s.Read*int64(f.size), s.Written*int64(f.size)
	return s
}

// bytes returns record i of buf with its checksum.
func (f *File) bytes(buf []uint64, i int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&buf[i*f.size/8])), f.size)
}

// Read reads n records, and calls do with the number and the bytes of each, in the order of their numbers. The bytes
// are aligned to 8 and valid until do returns. It is fast if the places ascend. If a record cannot be read, or is
// damaged, Read ends with an error.
func (f *File) Read(n int, place func(i int) int, do func(i int, record []byte)) error {
	list := buffers.Get().(*[]uint64)
	defer buffers.Put(list)
	for first := 0; first < n; {
		some := min(n-first, max(1, readBytes/f.size))
		if words := some * f.size / 8; cap(*list) < words {
			*list = make([]uint64, words)
		}
		buf := (*list)[:some*f.size/8]
		if err := f.readSome(some, func(i int) int { return place(first + i) }, buf); err != nil {
			return err
		}
		for i := range some {
			do(first+i, f.bytes(buf, i)[:f.size-checksumBytes])
		}
		first += some
	}
	return nil
}

// readSome reads n records into buf, with several goroutines if they are many.
func (f *File) readSome(n int, place func(i int) int, buf []uint64) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	work := func() {
		for failed.Load() == nil {
			to := int(next.Add(atOnce))
			for i := to - atOnce; i < min(to, n); i++ {
				if err := f.readOne(place(i), f.bytes(buf, i)); err != nil {
					failed.Store(&err)
					return
				}
			}
			if to >= n {
				return
			}
		}
	}
	var wg sync.WaitGroup
	for more := n/atOnce - 1; more > 0; more-- {
		select {
		case readers <- struct{}{}:
			wg.Go(func() {
				work()
				<-readers
			})
		default:
			more = 0
		}
	}
	work()
	wg.Wait()
	f.stats.read.Add(int64(n))
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (f *File) readOne(place int, b []byte) error {
	if n, err := f.disk.ReadAt(b, f.offset(place)); n < len(b) {
		return fmt.Errorf("record %d: %w", place, err)
	}
	record := b[:f.size-checksumBytes]
	if binary.LittleEndian.Uint64(b[len(record):]) != xxh3.HashSeed(record, f.seed(place)) {
		return rowraft.Errorf(rowraft.CodeCorrupt, "record %d is damaged: its checksum is wrong", place)
	}
	return nil
}

// offset returns where the record at place begins.
func (f *File) offset(place int) int64 {
	return pageBytes + int64(place/f.perExtent)*f.stride + int64(place%f.perExtent)*int64(f.size)
}

// seed returns the seed of the checksum of the record at place. It does not change while the place has a record.
func (f *File) seed(place int) uint64 {
	return atomic.LoadUint64(&(*f.marks.Load())[place/f.perExtent].seed) + uint64(place)
}

// Begin begins an extent and returns its number. ok is false if the file has no place left.
func (f *File) Begin() (at int, ok bool) {
	f.unpin()
	if n := len(f.free); n > 0 {
		f.at, f.free = f.free[n-1], f.free[:n-1]
	} else {
		if (len(f.extents)+1)*f.perExtent > MaxPlaces {
			return 0, false
		}
		f.at = len(f.extents)
		f.grow(f.at + 1)
	}
	f.n = 0
	return f.at, true
}

// grow makes the file n extents long.
func (f *File) grow(n int) {
	for len(f.extents) < n {
		f.extents = append(f.extents, extent{has: make([]uint64, (f.perExtent+63)/64)})
	}
	if marks := *f.marks.Load(); n > len(marks) {
		longer := make([]mark, max(64, 2*n))
		copy(longer, marks)
		f.marks.Store(&longer)
	}
	f.stats.extents.Store(int64(n))
}

// Room returns how many more records the extent takes.
func (f *File) Room() int { return f.perExtent - f.n }

// Add adds a record to the extent that Begin began. REQUIRES: there is room.
func (f *File) Add(record []byte) {
	b := f.bytes(f.buf, f.n)
	clear(b[copy(b, record):])
	f.n++
}

// Cancel ends the extent without a write.
func (f *File) Cancel() {
	f.free = append(f.free, f.at)
	f.at = -1
}

// Write writes the extent and returns the place of its first record; the others follow. After an error, none of them
// has a place.
func (f *File) Write() (first int, err error) {
	if err := f.writeHeader(); err != nil {
		f.Cancel()
		return 0, err
	}
	first = f.at * f.perExtent
	m := &(*f.marks.Load())[f.at]
	atomic.StoreUint64(&m.seed, newSeed())
	atomic.StoreUint64(&m.written, f.cuts.last.Load())
	for i := range f.n {
		b := f.bytes(f.buf, i)
		record := b[:f.size-checksumBytes]
		binary.LittleEndian.PutUint64(b[len(record):], xxh3.HashSeed(record, f.seed(first+i)))
	}
	all := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f.buf))), f.n*f.size)
	if _, err := f.disk.WriteAt(all, f.offset(first)); err != nil {
		f.Cancel()
		return 0, err
	}
	f.dirty.Store(true)
	ext := &f.extents[f.at]
	ext.n = f.n
	for i := range f.n {
		ext.has[i/64] |= 1 << (i % 64)
	}
	f.stats.records.Add(int64(f.n))
	f.stats.written.Add(int64(f.n))
	f.at = -1
	return first, nil
}

// Free ends the use of a place. emptied means that the extent at has no record any more: the owner calls Reuse for it.
func (f *File) Free(place int) (at int, emptied bool) {
	at, i := place/f.perExtent, place%f.perExtent
	ext := &f.extents[at]
	ext.has[i/64] &^= 1 << (i % 64)
	ext.n--
	ext.emptied = f.cuts.last.Load()
	f.stats.records.Add(-1)
	return at, ext.n == 0
}

// Reuse allows that extents are written again when no pinned cut has records of them. REQUIRES: Free has emptied them,
// and no Read of their places is running or will begin, except by readers of a pinned cut.
func (f *File) Reuse(extents []int) {
	f.pinned = append(f.pinned, extents...)
	f.stats.pinned.Store(int64(len(f.pinned)))
	f.cuts.changed.Store(true)
}

// Extent returns the extent of a place.
func (f *File) Extent(place int) int { return place / f.perExtent }

// Sparse appends the places of an extent that is at most half full, ascending, if the file has more than twice as many
// places as records.
func (f *File) Sparse(dst []int) []int {
	if f.restoring {
		return dst // an extent only looks sparse: its other records are not restored yet
	}
	if (len(f.extents)-len(f.free)-len(f.pinned))*f.perExtent <= 2*int(f.stats.records.Load())+8*f.perExtent {
		return dst
	}
	best := -1
	for range min(sparseLooks, len(f.extents)) {
		f.looked = (f.looked + 1) % len(f.extents)
		if n := f.extents[f.looked].n; n > 0 && n <= f.perExtent/2 && (best < 0 || n < f.extents[best].n) {
			best = f.looked
		}
	}
	for i := 0; best >= 0 && i < f.perExtent; i++ {
		if f.extents[best].has[i/64]>>(i%64)&1 != 0 {
			dst = append(dst, best*f.perExtent+i)
		}
	}
	return dst
}
