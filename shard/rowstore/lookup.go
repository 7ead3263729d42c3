package rowstore

import (
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard/rowstore/order"
)

// chunkKeys is how many keys a lookup handles together.
const chunkKeys = 32

// maxPrefetch is how many bytes of a record are prefetched: a record of dim 64 with
// Adagrad, which took 1.5 times as long with 320. The hardware prefetches the rest of a longer row.
const maxPrefetch = 576

// chunk is the work of one batch of lookups. It lives on the stack.
type chunk struct {
	slot [chunkKeys]rowraft.Slot
	tag  [chunkKeys]uint32
	seg  [chunkKeys]segment
	addr [chunkKeys]unsafe.Pointer // first of the index entries, then of the records
}

// noRow is the value of addr for a key whose tag is not in the index.
var noRow [64]byte

// chunks looks up keys chunk by chunk, so that memory of later chunks is loading while the caller works on the current
// one. For each key of the current chunk, the caller calls step, which prefetches one record of the next chunk and one
// index entry of the one after that: a core has 16 loads in flight, and prefetches beyond them stall it. A chunk at a
// time, they stalled for a quarter of an update.
//
//	entries prefetched     2     3     4
//	records prefetched     1     2     3
//	returned by next       0     1     2
type chunks struct {
	begun   int   // number of keys whose slots were looked up
	touched int   // how many bytes of each record the caller will use
	changes bool  // the caller changes the rows
	err     error // the slot of a key is not owned: the chunks end before its chunk
	ring    [3]chunk
	n       [3]int // number of keys in each chunk
	at      int    // the chunk that next returns
}

// start prepares c, which must be zero, for keys. Each call takes t and keys as arguments again:
// a pointer to them in c would move c to the heap. A caller that changes the rows has checked that
// it owns the slots.
func (c *chunks) start(t *Table, keys []rowraft.Key, touched int, changes bool) {
	c.touched, c.changes = min(touched, maxPrefetch), changes
	for i := range 2 {
		c.locate(t, keys, i)
		order.Prefetch(&c.ring[i].addr[0], c.n[i], 0, 8)
	}
	t.index.prefetchRecords(&c.ring[0], c.n[0], c.touched)
	if changes {
		t.snaps.prefetchSlots(&c.ring[0], c.n[0])
	}
}

// next returns the next chunk and its number of keys, 0 at the end or before err. The chunk is
// valid until the next call.
func (c *chunks) next(t *Table, keys []rowraft.Key) (*chunk, int) {
	at := c.at
	c.at = (at + 1) % 3
	c.locate(t, keys, (at+2)%3)
	if c.changes && len(t.snaps.running) > 0 {
		t.snaps.prefetchCuts(&c.ring[c.at], c.n[c.at])
	}
	return &c.ring[at], c.n[at]
}

// step must be called for each key of the chunk that next has returned; i is the position of the key in it.
func (c *chunks) step(x *index, i int) {
	next, after := &c.ring[c.at], &c.ring[(c.at+1)%3]
	slot := unsafe.Pointer(&noRow)
	if c.changes {
		slot = unsafe.Pointer(x.slot(next.slot[i]))
	}
	next.addr[i] = x.firstRecord(next, i)
	order.PrefetchRow(after.addr[i], slot, next.addr[i], 0, c.touched)
}

// locate fills chunk i with the next keys.
func (c *chunks) locate(t *Table, keys []rowraft.Key, i int) {
	n := min(chunkKeys, len(keys)-c.begun)
	if n > 0 {
		from := c.begun
		c.begun += n
		if err := t.index.entries(&c.ring[i], keys[from:c.begun]); err != nil {
			c.err, n, c.begun = err, 0, len(keys)
		}
	}
	c.n[i] = n
	for j := n; j < chunkKeys; j++ { // so that step need not know n
		c.ring[i].slot[j], c.ring[i].seg[j], c.ring[i].addr[j] = t.index.first, nil, unsafe.Pointer(&noRow)
	}
}

// prefetchSlots prefetches the state of the slots of c that a change needs: digest, counter, and
// the cuts of running snapshots. Together they are larger than a near cache that rows pass through.
func (ss *snapshots) prefetchSlots(c *chunk, n int) {
	var addr [chunkKeys]unsafe.Pointer
	for i, slot := range c.slot[:n] {
		addr[i] = unsafe.Pointer(ss.index.slot(slot))
	}
	order.Prefetch(&addr[0], n, 0, int(unsafe.Sizeof(slotState{})))
	ss.prefetchCuts(c, n)
}

func (ss *snapshots) prefetchCuts(c *chunk, n int) {
	var addr [chunkKeys]unsafe.Pointer
	for _, s := range ss.running {
		for i, slot := range c.slot[:n] {
			addr[i] = unsafe.Pointer(&noRow)
			if page := s.cutPage(slot).Load(); page != nil {
				addr[i] = unsafe.Pointer(&page[slot%cutsPerPage])
			}
		}
		order.Prefetch(&addr[0], n, 0, int(unsafe.Sizeof(cut{})))
	}
}

// lookup fills c with keys and prefetches their records, for callers that do not use chunks.
func (x *index) lookup(c *chunk, keys []rowraft.Key, touched int) {
	_ = x.entries(c, keys) // the caller has checked the slots
	order.Prefetch(&c.addr[0], len(keys), 0, 8)
	x.prefetchRecords(c, len(keys), min(touched, maxPrefetch))
}

// entries sets addr to the index entry where the search for each key begins, or to noRow. Errors: CodeWrongShard if the
// slot of a key is not owned.
func (x *index) entries(c *chunk, keys []rowraft.Key) error {
	for i, key := range keys {
		slot, tag := x.locate(key)
		if !x.owns(slot) {
			return x.notOwned(key, slot)
		}
		seg := x.segment(slot, tag)
		c.slot[i], c.tag[i], c.seg[i] = slot, tag, seg
		c.addr[i] = unsafe.Pointer(&noRow)
		if len(seg) > 0 {
			c.addr[i] = unsafe.Pointer(&seg[tag&uint32(len(seg)-1)])
		}
	}
	return nil
}

// firstRecord returns the record of the first entry with the key's tag, or noRow. It may belong to another key with the
// same tag; record checks that.
func (x *index) firstRecord(c *chunk, i int) unsafe.Pointer {
	if len(c.seg[i]) != 0 {
		if p, _, ok := c.seg[i].next(c.tag[i], c.tag[i]); ok {
			return x.at(p).p
		}
	}
	return unsafe.Pointer(&noRow)
}

// prefetchRecords sets addr to firstRecord and prefetches the records.
func (x *index) prefetchRecords(c *chunk, n, touched int) {
	for i := range n {
		c.addr[i] = x.firstRecord(c, i)
	}
	order.Prefetch(&c.addr[0], n, 0, touched)
}

// record returns the record of keys[i] after lookup. ok is false if the key has no row.
func (x *index) record(c *chunk, i int, key rowraft.Key) (record, bool) {
	if c.addr[i] == unsafe.Pointer(&noRow) {
		return record{}, false
	}
	if r := (record{c.addr[i]}); r.key() == uint64(key) && r.loadVersion() != gone {
		return r, true
	}
	return x.find(c.slot[i], c.tag[i], key)
}
