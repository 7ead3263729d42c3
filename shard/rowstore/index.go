package rowstore

import (
	"crypto/rand" //tidy:allow determinism only for the secret of the tags, on which no applied state depends
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
)

// index finds the rows of the table by key, and counts the changes of each slot.
//
// Readers may look up keys at any time between grace.Enter and grace.Leave; the writer alone changes the index.
type index struct {
	records
	ownedSlots
	reclaimer
	secret secret // of the tags

	blocks slab.Blocks // index segments
	tier   *Tier       // of a table with cold rows on disk, nil for others
	// slots, roots and removals have an element for each of ownedSlots, from its first slot on. roots are copies of the
	// roots of slots without a directory; dense, because lookups load them first. Invariant: if a root is not nil, it
	// has all rows of the slot. removals are the versions of slots at the last removal of a row; 0: none.
	slots    []slotState
	roots    []root
	removals []uint64
	count    atomic.Int64 // number of rows

	longest int       // maxSegment; smaller in tests
	check   slotCheck // the running check of one slot against its digest
}

// slotState is one slot of the table. A change of an existing row uses only the fields before directory. They are in
// one cache line, because the allocator puts a slice at the start of a line or 8 bytes after it.
type slotState struct {
	whole   bucket // all rows while there is no directory; later for readers that loaded it before
	rows    uint32
	version uint64 // of the last change; every change of a row or a candidate raises it
	digest  Digest // Invariant, between calls: the sum of the hashes of the slot's rows and candidates

	directory atomic.Pointer[directory]
}

// init prepares x, which must be zero, for the table o. s is the copy of its schema that the table keeps.
func (x *index) init(s *rowraft.Schema, stateLen int, o Options) (err error) {
	if x.records, err = newRecords(s, stateLen); err != nil {
		return err
	}
	x.ownedSlots, x.secret, x.longest = newOwnedSlots(&o), newSecret(), maxSegment
	x.slots, x.roots, x.removals = make([]slotState, x.n), make([]root, x.n), make([]uint64, x.n)
	return nil
}

// slot returns the state of slot s. REQUIRES: s is in the range of x.slots.
func (x *index) slot(s rowraft.Slot) *slotState { return &x.slots[s-x.first] }

// removed returns the address of the version of slot s at the last removal of a row.
func (x *index) removed(s rowraft.Slot) *uint64 { return &x.removals[s-x.first] }

// locate returns the slot of key and its tag: the 32 bits where the probe of the slot's segment
// starts. The slot is public; the tag depends on the table's secret. All rows of a
// dense tensor share a slot, and their tags spread them within it.
func (x *index) locate(key rowraft.Key) (rowraft.Slot, uint32) {
	return x.slotOf(key), x.secret.Tag(key)
}

// secret makes the tags of one table in one process unpredictable. The hash of a key is public. If
// tags were part of it, a client could choose keys with equal tags: linear probing is quadratic in
// them, and every replica applies them, again at each replay. (Rejected: a limit on the length of
// a probe. One replica would refuse a push that another one accepts.)
//
// Tags differ between replicas and between starts, so nothing that leaves this package
// may depend on their order: a snapshot stores the rows of a slot in no order, and evictions
// rank rows by their version.
type secret [4]uint64

func newSecret() (s secret) {
	rand.Read(unsafe.Slice((*byte)(unsafe.Pointer(&s)), unsafe.Sizeof(s))) // never fails: on an error it ends the process
	s[1], s[3] = s[1]|1, s[3]|1
	return s
}

// Tag is two rounds of folded multiplication, as in wyhash, with a secret of 256 bits. It takes
// about 10 cycles, which overlap from key to key.
func (s *secret) Tag(key rowraft.Key) uint32 {
	hi, lo := bits.Mul64(uint64(key)^s[0], s[1])
	hi, lo = bits.Mul64(hi^lo^s[2], s[3])
	return uint32(hi ^ lo)
}

// segment is an open-addressing index of rows of one slot. Its length is 0 or a power of two. An
// entry is tag<<32 | place+1, 0 if it is empty, tombstone if its row was removed, or tag<<32 | coldBit | place if its
// row is in the file of the tier.
type segment []uint64

// root is the address and the length of a segment. The writer publishes it; readers load it
// concurrently. It is one pointer, so that both change together: its low bits, which are 0 in the
// address of a block, are the logarithm of the length. nil means no segment.
type root struct{ p atomic.Pointer[byte] }

const rootBits = 63 // of the 127 that a block's alignment leaves free

func (r *root) load() segment {
	p := r.p.Load()
	if p == nil {
		return nil
	}
	order := uintptr(unsafe.Pointer(p)) & rootBits
	return unsafe.Slice((*uint64)(unsafe.Add(unsafe.Pointer(p), -order)), 1<<order)
}

func (r *root) store(s segment) {
	order := bits.TrailingZeros(uint(len(s)))
	r.p.Store((*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(s)), order)))
}

// tombstone is the entry of a removed row. Probes continue after it, and a new entry may
// take its position. It has coldBit, and no place is as large as the one that it encodes.
const tombstone = 1<<32 - 1

func isRow(e uint64) bool { return e != 0 && e != tombstone }

// minSegment is the length of a new segment: two cache lines.
const minSegment = 16

// next returns the first place in memory at or after position i whose entry has tag, and
// the position after it. ok is false if an empty entry comes first.
func (s segment) next(i, tag uint32) (p slab.Place, after uint32, ok bool) {
	mask := uint32(len(s) - 1)
	for {
		e := atomic.LoadUint64(&s[i&mask])
		if e == 0 {
			return 0, 0, false
		}
		i++
		if uint32(e>>32) == tag && e&coldBit == 0 {
			return slab.Place(uint32(e) - 1), i, true
		}
	}
}

// put adds the entry e and returns the entry that it replaces: 0 or tombstone. A reader that
// finds e sees the record as it was before put. REQUIRES: the segment has room.
func (s segment) put(e uint64) (was uint64) {
	mask := uint32(len(s) - 1)
	i := uint32(e>>32) & mask
	for isRow(s[i]) {
		i = (i + 1) & mask
	}
	was = s[i]
	atomic.StoreUint64(&s[i], e)
	return was
}

// find returns the position of the entry e, or false if the segment does not have it.
func (s segment) find(e uint64) (at uint32, ok bool) {
	if len(s) == 0 {
		return 0, false
	}
	mask := uint32(len(s) - 1)
	for at = uint32(e>>32) & mask; s[at] != 0; at = (at + 1) & mask {
		if s[at] == e {
			return at, true
		}
	}
	return 0, false
}

// find returns the record of key in slot. ok is false if key has no row in memory.
func (x *index) find(slot rowraft.Slot, tag uint32, key rowraft.Key) (record, bool) {
	seg := x.segment(slot, tag)
	if len(seg) == 0 {
		return record{}, false
	}
	i := tag
	for {
		p, after, ok := seg.next(i, tag)
		if !ok {
			return record{}, false
		}
		if r := x.at(p); r.key() == uint64(key) {
			return r, true
		}
		i = after
	}
}

// insert makes a busy, uninitialized record for key and enters it into the index. REQUIRES: key
// has no row. old is as in grow, even if there is an error.
func (x *index) insert(slot rowraft.Slot, tag uint32, key rowraft.Key) (r record, old segment, err error) {
	s := x.slot(slot)
	b := s.bucket(tag)
	if b.full() {
		if old, err = x.grow(slot, tag); err != nil {
			return record{}, nil, err
		}
		b = s.bucket(tag)
	}
	p, err := x.slab.Alloc()
	if err != nil {
		return record{}, old, err
	}
	r = x.at(p)
	if x.lead > 0 {
		*r.recency(), *r.count() = 0, 0
	}
	r.setKey(key)
	*r.version() = 0
	r.setBusy()
	if b.root.load().put(uint64(tag)<<32|uint64(p)+1) == tombstone {
		b.tombstones--
	}
	b.rows++
	s.rows++
	x.count.Add(1)
	if x.tier != nil {
		x.tier.added(p)
	}
	return r, old, nil
}

// seal ends a change: it gives r the next version of its slot, and the digest the hash of r instead of was, which is 0
// for a new row.
func (x *index) seal(slot rowraft.Slot, tag uint32, r record, was Digest) {
	s := x.slot(slot)
	s.version++
	r.setVersion(s.version)
	h := x.rowHash(r).Sub(was)
	s.digest = s.digest.Add(h)
	if x.check.covers(x, slot, tag, r) {
		x.check.sum = x.check.sum.Add(h)
	}
}

// subtract removes the hash of r from the digest. The caller then changes or removes r.
func (x *index) subtract(slot rowraft.Slot, tag uint32, r record) {
	s, h := x.slot(slot), x.rowHash(r)
	s.digest = s.digest.Sub(h)
	if x.check.covers(x, slot, tag, r) {
		x.check.sum = x.check.sum.Sub(h)
	}
}
