package rowstore

import (
	"crypto/rand" //tidy:allow determinism only for the secret of the tags, on which no applied state depends
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/slab"
)

// locate returns the slot of key and its tag: the 32 bits where the probe of the slot's segment
// starts. The slot is public; the tag depends on the table's secret. All rows of a
// dense tensor share a slot, and their tags spread them within it.
func (t *Table) locate(key rowraft.Key) (rowraft.Slot, uint32) {
	return t.slotOf(key), t.secret.tag(key)
}

func (t *Table) slotOf(key rowraft.Key) rowraft.Slot {
	if t.dense {
		key = rowraft.Dense.PlacementKey(key)
	}
	return clustermap.SlotOfHash(clustermap.Mix64(uint64(key)^t.hashSeed), t.slotCount)
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

// tag is two rounds of folded multiplication, as in wyhash, with a secret of 256 bits. It takes
// about 10 cycles, which overlap from key to key.
func (s *secret) tag(key rowraft.Key) uint32 {
	hi, lo := bits.Mul64(uint64(key)^s[0], s[1])
	hi, lo = bits.Mul64(hi^lo^s[2], s[3])
	return uint32(hi ^ lo)
}

// segment is an open-addressing index of rows of one slot. Its length is 0 or a power of two. An
// entry is tag<<32 | place+1, 0 if it is empty, or tombstone if its row was removed.
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
// take its position. No place is as large as the one that it encodes.
const tombstone = 1<<32 - 1

func isRow(e uint64) bool { return e != 0 && e != tombstone }

// minSegment is the length of a new segment: two cache lines.
const minSegment = 16

// next returns the first place at or after position i whose entry has tag, and
// the position after it. ok is false if an empty entry comes first.
func (s segment) next(i, tag uint32) (p slab.Place, after uint32, ok bool) {
	mask := uint32(len(s) - 1)
	for {
		e := atomic.LoadUint64(&s[i&mask])
		if e == 0 {
			return 0, 0, false
		}
		i++
		if uint32(e>>32) == tag && e != tombstone {
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

// erase replaces the entry e by a tombstone, if e is in the segment.
func (s segment) erase(e uint64) {
	mask := uint32(len(s) - 1)
	for i := uint32(e>>32) & mask; s[i] != 0; i = (i + 1) & mask {
		if s[i] == e {
			atomic.StoreUint64(&s[i], tombstone)
			return
		}
	}
}

// find returns the record of key in slot. ok is false if key has no row.
func (t *Table) find(slot rowraft.Slot, tag uint32, key rowraft.Key) (record, bool) {
	seg := t.segment(slot, tag)
	if len(seg) == 0 {
		return record{}, false
	}
	i := tag
	for {
		p, after, ok := seg.next(i, tag)
		if !ok {
			return record{}, false
		}
		if r := t.at(p); r.key() == uint64(key) {
			return r, true
		}
		i = after
	}
}

// insert makes a busy, uninitialized record for key and enters it into the index. REQUIRES: key
// has no row.
func (t *Table) insert(slot rowraft.Slot, tag uint32, key rowraft.Key) (record, error) {
	s := t.slot(slot)
	b := s.bucket(tag)
	if b.full() {
		if err := t.grow(slot, tag); err != nil {
			return record{}, err
		}
		b = s.bucket(tag)
	}
	p, err := t.rows.Alloc()
	if err != nil {
		return record{}, err
	}
	r := t.at(p)
	*(*uint64)(r.p) = 0 // recency and count
	r.setKey(key)
	*r.version() = 0
	r.setBusy()
	if b.root.load().put(uint64(tag)<<32|uint64(p)+1) == tombstone {
		b.tombstones--
	}
	b.rows++
	s.rows++
	t.count.Add(1)
	return r, nil
}
