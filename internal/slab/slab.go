package slab

import (
	"math"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/rowraft/rowraft"
)

// Place numbers a record of one slab.
type Place uint32

// MaxPlaces is the number of records in one slab: 1 + a place has 31 bits.
const MaxPlaces = math.MaxInt32

// Stats is the memory of a slab or of Blocks.
type Stats struct {
	MappedBytes int64 // chunks, and the part of the first chunk that is in use
	UsedBytes   int64 // allocated and not freed
}

// Slab allocates records of one size. The package comment states what may run concurrently.
type Slab struct {
	recordBytes int
	short       bool   // made by NewShort
	perChunk    uint32 // records in a chunk, at least 2
	inverse     uint64 // 2^64 ÷ perChunk, rounded up
	chunks      int
	first       int    // bytes of the first chunk that are in use, and count as mapped
	next        uint64 // places below were allocated at least once
	free        uint32 // list of freed places: 1 + a place, whose first 4 bytes are the next element; 0 = none

	// bases is the addresses of the chunks, with spare capacity. An element is stored before a place of its
	// chunk is returned; a longer list replaces this one, because At reads it without a lock.
	bases atomic.Pointer[[]unsafe.Pointer]

	mapped, used atomic.Int64 // Stats
}

// New returns an empty slab of records of recordBytes, a positive multiple of 8
// up to 1 MiB.
func New(recordBytes int) (*Slab, error) {
	if recordBytes <= 0 || recordBytes%8 != 0 || recordBytes > chunkBytes/2 {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "slab of %d-byte records: want a positive multiple of 8 up to %d",
			recordBytes, chunkBytes/2)
	}
	s := &Slab{recordBytes: recordBytes, perChunk: uint32(chunkBytes / recordBytes)}
	s.inverse = math.MaxUint64/uint64(s.perChunk) + 1
	s.bases.Store(new([]unsafe.Pointer))
	return s, nil
}

// NewShort is New for a slab that is closed soon and may become large: its memory comes
// from the stock and returns to it, so that it needs few system calls.
func NewShort(recordBytes int) (*Slab, error) {
	s, err := New(recordBytes)
	if err == nil {
		s.short = true
	}
	return s, err
}

// RecordBytes returns the size of a record.
func (s *Slab) RecordBytes() int { return s.recordBytes }

// Alloc returns a place with undefined contents.
//
// Errors: CodeOverloaded if the system has no memory or the slab is full.
func (s *Slab) Alloc() (Place, error) {
	if s.free != 0 {
		p := Place(s.free - 1)
		s.free = *(*uint32)(s.At(p))
		s.used.Add(1)
		return p, nil
	}
	if s.next >= MaxPlaces {
		return 0, rowraft.Errorf(rowraft.CodeOverloaded, "row memory: a table holds at most %d rows in one shard",
			uint64(MaxPlaces))
	}
	if s.next == uint64(s.chunks)*uint64(s.perChunk) {
		if err := s.addChunk(); err != nil {
			return 0, err
		}
	}
	if s.chunks == 1 && !s.short {
		s.countFirst((int(s.next) + 1) * s.recordBytes)
	}
	p := Place(s.next)
	s.next++
	s.used.Add(1)
	return p, nil
}

// AllocSome allocates up to len(ps) places (> 0), and at least one unless it fails.
func (s *Slab) AllocSome(ps []Place) (n int, err error) {
	if ps[0], err = s.Alloc(); err != nil {
		return 0, err
	}
	n = 1
	if end := uint64(s.chunks) * uint64(s.perChunk); s.chunks > 1 || s.short { // the rest of the chunk
		for ; n < len(ps) && s.next < min(end, MaxPlaces); n++ {
			ps[n] = Place(s.next)
			s.next++
		}
		s.used.Add(int64(n - 1))
	}
	return n, nil
}

// addChunk adds a chunk.
func (s *Slab) addChunk() (err error) {
	var c unsafe.Pointer
	switch {
	case s.short:
		c, err = shared.take(forShort)
	case s.chunks == 0:
		c, err = shared.takeFirst()
	default:
		c, err = shared.take(forRows)
	}
	if err != nil {
		return err
	}
	bases := *s.bases.Load()
	if s.chunks == len(bases) {
		longer := make([]unsafe.Pointer, max(8, 2*len(bases)))
		copy(longer, bases)
		longer[s.chunks] = c
		s.bases.Store(&longer)
	} else {
		atomic.StorePointer(&bases[s.chunks], c)
	}
	if s.chunks > 0 || s.short {
		s.mapped.Add(chunkBytes)
	}
	s.chunks++
	return nil
}

// countFirst counts at least n bytes of the first chunk as mapped.
func (s *Slab) countFirst(n int) {
	for s.first < n {
		more := firstStep(s.first)
		s.first += more
		s.mapped.Add(int64(more))
	}
}

// Free frees a place.
func (s *Slab) Free(p Place) {
	if poison {
		mem := unsafe.Slice((*byte)(s.At(p)), s.recordBytes)
		for i := range mem {
			mem[i] = 0xDB
		}
	}
	*(*uint32)(s.At(p)) = s.free
	s.free = uint32(p) + 1
	s.used.Add(-1)
}

// Has reports whether p was ever allocated, so that At may be called for it.
func (s *Slab) Has(p Place) bool { return uint64(p) < s.next }

// At returns the address of the record at p, which must be allocated. It may run concurrently with Alloc
// and Free of other places.
func (s *Slab) At(p Place) unsafe.Pointer {
	chunk, within := s.split(p)
	return unsafe.Add(atomic.LoadPointer(&(*s.bases.Load())[chunk]), uintptr(within)*uintptr(s.recordBytes))
}

// split returns p ÷ perChunk and the remainder. The product is exact for all 32-bit p: inverse is too large
// by less than 1, so its error stays below 2^32 ÷ 2^64.
func (s *Slab) split(p Place) (chunk, within uint32) {
	hi, _ := bits.Mul64(s.inverse, uint64(p))
	return uint32(hi), uint32(p) - uint32(hi)*s.perChunk
}

// Stats returns the memory in use. It may run concurrently with everything except Close.
func (s *Slab) Stats() Stats {
	return Stats{MappedBytes: s.mapped.Load(), UsedBytes: s.used.Load() * int64(s.recordBytes)}
}

// Close frees all memory. The slab is empty afterwards and may be used again.
func (s *Slab) Close() error {
	if s.chunks == 0 {
		return nil
	}
	bases := (*s.bases.Load())[:s.chunks]
	var err error
	if !s.short {
		err = shared.giveFirst(bases[0])
		bases = bases[1:]
	}
	if e := shared.give(bases, s.short); err == nil {
		err = e
	}
	s.chunks, s.first, s.next, s.free = 0, 0, 0, 0
	s.bases.Store(new([]unsafe.Pointer))
	s.mapped.Store(0)
	s.used.Store(0)
	return err
}
