package rowstore

import (
	"unsafe"

	"github.com/rowraft/rowraft"
)

// chunkKeys is how many keys are looked up together.
const chunkKeys = 32

// maxPrefetch is how many bytes of a record are prefetched: a record of dim 64 with
// Adagrad, for which 320 took half as long again. The hardware follows a longer row by itself.
const maxPrefetch = 576

// chunk is the work of one batch of lookups. It lives on the stack.
type chunk struct {
	slot [chunkKeys]rowraft.Slot
	tag  [chunkKeys]uint32
	seg  [chunkKeys]segment
	addr [chunkKeys]unsafe.Pointer // first the index entries, then the records
}

// noRow is what addr holds for a key whose tag is not in the index.
var noRow [64]byte

// chunks looks up keys, chunk by chunk, so that memory is on its way while others
// are worked on: the entries of one chunk and the records of the next are asked
// for before a chunk is handed out.
//
//	entries asked for      2     3     4
//	records asked for      1     2     3
//	handed out by next     0     1     2
type chunks struct {
	begun   int  // keys of which the entries were asked for
	touched int  // the first bytes of the records that the caller will touch
	changes bool // rather than reads
	ring    [3]chunk
	n       [3]int // keys in each
	at      int    // the chunk that is handed out next
}

// look prepares c, which must be zero, for keys, which all calls are given anew:
// what a pointer leads to would be on the heap. REQUIRES: the slots are owned.
func (c *chunks) look(t *Table, keys []rowraft.Key, touched int, changes bool) {
	c.touched, c.changes = min(touched, maxPrefetch), changes
	c.begin(t, keys, 0)
	c.begin(t, keys, 1)
	c.meet(t, 0)
}

// next returns the next chunk, until the next call of it, and how many keys it
// has, 0 at the end.
func (c *chunks) next(t *Table, keys []rowraft.Key) (*chunk, int) {
	at := c.at
	c.at = (at + 1) % 3
	c.begin(t, keys, (at+2)%3)
	c.meet(t, c.at)
	return &c.ring[at], c.n[at]
}

func (c *chunks) begin(t *Table, keys []rowraft.Key, i int) {
	n := min(chunkKeys, len(keys)-c.begun)
	c.n[i] = n
	if n > 0 {
		t.begin(&c.ring[i], keys[c.begun:c.begun+n])
		c.begun += n
	}
}

func (c *chunks) meet(t *Table, i int) {
	if c.n[i] > 0 {
		t.meet(&c.ring[i], c.n[i], c.touched)
	}
	if c.changes {
		t.expect(&c.ring[i], c.n[i])
	}
}

// expect asks for what a change of rows needs of the slots of c: digest and counter, and
// the cuts of running snapshots. They are more than stays in a near cache beside the
// rows that pass through it.
func (t *Table) expect(c *chunk, n int) {
	var addr [chunkKeys]unsafe.Pointer
	for i, slot := range c.slot[:n] {
		addr[i] = unsafe.Pointer(&t.slots[slot])
	}
	prefetch(&addr[0], n, 0, int(unsafe.Sizeof(slotState{})))
	for _, s := range t.snaps {
		for i, slot := range c.slot[:n] {
			addr[i] = unsafe.Pointer(&noRow)
			if page := s.cuts[slot/cutsPerPage].Load(); page != nil {
				addr[i] = unsafe.Pointer(&page[slot%cutsPerPage])
			}
		}
		prefetch(&addr[0], n, 0, int(unsafe.Sizeof(cut{})))
	}
}

// lookup is begin and meet.
func (t *Table) lookup(c *chunk, keys []rowraft.Key, touched int) {
	t.begin(c, keys)
	t.meet(c, len(keys), min(touched, maxPrefetch))
}

// begin asks for the index entries of keys.
func (t *Table) begin(c *chunk, keys []rowraft.Key) {
	for i, key := range keys {
		slot, tag := t.locate(key)
		seg := t.segment(slot, tag)
		c.slot[i], c.tag[i], c.seg[i] = slot, tag, seg
		c.addr[i] = unsafe.Pointer(&noRow)
		if len(seg) > 0 {
			c.addr[i] = unsafe.Pointer(&seg[tag&uint32(len(seg)-1)])
		}
	}
	prefetch(&c.addr[0], len(keys), 0, 8)
}

// meet finds the candidates of the keys of c: addr is the record of the first
// entry with the key's tag, or noRow. A candidate may still be another key's.
func (t *Table) meet(c *chunk, n, touched int) {
	for i := range n {
		c.addr[i] = unsafe.Pointer(&noRow)
		if len(c.seg[i]) == 0 {
			continue
		}
		if p, _, ok := c.seg[i].next(c.tag[i], c.tag[i]); ok {
			c.addr[i] = t.rows.At(p)
		}
	}
	prefetch(&c.addr[0], n, keyOffset, touched)
}

// record returns the record of keys[i] after lookup, if there is one.
func (t *Table) record(c *chunk, i int, key rowraft.Key) (record, bool) {
	if c.addr[i] == unsafe.Pointer(&noRow) {
		return record{}, false
	}
	if r := (record{c.addr[i]}); r.key() == uint64(key) && r.loadVersion() != gone {
		return r, true
	}
	return t.find(c.slot[i], c.tag[i], key)
}
