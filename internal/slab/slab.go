package slab

import (
	"math"
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/rowraft/rowraft"
)

// Place numbers a record of one slab.
type Place uint32

// MaxPlaces is the number of records one slab can hold; the last two values are
// left for "none" and "no more".
const MaxPlaces = math.MaxUint32 - 1

// Stats says what a slab or Blocks holds.
type Stats struct {
	MappedBytes int64 // usable address space; the system backs what was touched
	UsedBytes   int64 // allocated and not freed
}

// Slab hands out records of one size. See the package for what is safe
// concurrently.
type Slab struct {
	recordBytes int
	shift       uint // records per region = 1 << shift
	regions     []region
	next        uint64 // places below were handed out at least once
	free        uint32 // 1 + a freed place, whose first 4 bytes go on likewise; 0 = none

	// bases is where the regions begin. It is replaced as a whole before a place of
	// a new region is handed out.
	bases atomic.Pointer[[]unsafe.Pointer]

	mapped, used atomic.Int64 // Stats
}

// New returns an empty slab of records of recordBytes, a positive multiple of 8.
func New(recordBytes int) (*Slab, error) {
	if recordBytes <= 0 || recordBytes%8 != 0 || recordBytes > regionBytes {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "slab of %d-byte records: want a positive multiple of 8 up to %d", recordBytes, regionBytes)
	}
	s := &Slab{
		recordBytes: recordBytes,
		shift:       uint(bits.Len(uint(regionBytes/recordBytes)) - 1),
	}
	s.bases.Store(new([]unsafe.Pointer))
	return s, nil
}

// RecordBytes returns the size of a record.
func (s *Slab) RecordBytes() int { return s.recordBytes }

// Alloc returns a place whose contents are undefined: zero when it is new, the
// remains of the last record when it was freed before.
//
// Errors: CodeOverloaded if the system gives no memory or the slab is full.
func (s *Slab) Alloc() (Place, error) {
	if s.free != 0 {
		p := Place(s.free - 1)
		s.free = *(*uint32)(s.At(p))
		s.used.Add(1)
		return p, nil
	}
	if s.next >= MaxPlaces {
		return 0, rowraft.Errorf(rowraft.CodeOverloaded, "row memory: a table holds at most %d rows in one shard", uint64(MaxPlaces))
	}
	p := Place(s.next)
	i := int(p >> s.shift)
	if i == len(s.regions) {
		if err := s.addRegion(); err != nil {
			return 0, err
		}
	}
	within := int(p) & (1<<s.shift - 1)
	more, err := s.regions[i].commit((within + 1) * s.recordBytes)
	if err != nil {
		return 0, err
	}
	if more > 0 {
		s.mapped.Add(int64(more))
	}
	s.next++
	s.used.Add(1)
	return p, nil
}

func (s *Slab) addRegion() error {
	r, err := reserve((s.recordBytes<<s.shift + hugePage - 1) &^ (hugePage - 1))
	if err != nil {
		return err
	}
	s.regions = append(s.regions, r)
	bases := append(slices.Clone(*s.bases.Load()), r.base)
	s.bases.Store(&bases)
	return nil
}

// Free gives a place back.
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

// At returns the address of the record at p, which must be allocated. It may run
// beside Alloc and Free of other places by a goroutine that has seen p handed
// out.
func (s *Slab) At(p Place) unsafe.Pointer {
	within := uintptr(p) & (1<<s.shift - 1)
	return unsafe.Add((*s.bases.Load())[p>>s.shift], within*uintptr(s.recordBytes))
}

// Stats returns the memory held. It may run beside everything but Close.
func (s *Slab) Stats() Stats {
	return Stats{MappedBytes: s.mapped.Load(), UsedBytes: s.used.Load() * int64(s.recordBytes)}
}

// Close gives all memory back. The slab is empty afterwards and may be used again.
func (s *Slab) Close() error {
	err := releaseAll(s.regions)
	s.regions, s.next, s.free = nil, 0, 0
	s.bases.Store(new([]unsafe.Pointer))
	s.mapped.Store(0)
	s.used.Store(0)
	return err
}

func releaseAll(regions []region) error {
	var first error
	for i := range regions {
		if err := regions[i].release(); err != nil && first == nil {
			first = rowraft.Errorf(rowraft.CodeInternal, "row memory: unmap: %w", err)
		}
	}
	return first
}
