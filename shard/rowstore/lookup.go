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

// noRow is the value of addr for a key whose tag is not in the index. It looks like a record that is gone.
var noRow = [8]uint64{versionAt / 8: gone}

// chunks looks up keys chunk by chunk, so that memory of later chunks is loading while the caller
// works on the current one. Before next returns a chunk, it prefetches the records of the next
// chunk and the index entries of the one after that.
//
//	entries prefetched     2     3     4
//	records prefetched     1     2     3
//	returned by next       0     1     2
type chunks struct {
	begun   int   // number of keys whose entries were prefetched
	touched int   // how many bytes of each record the caller will use
	changes bool  // the caller changes the rows
	err     error // the slot of a key is not owned: the chunks end before its chunk
	ring    [3]chunk
	n       [3]int // number of keys in each chunk
	at      int    // the chunk that next returns
}

// start prepares c, which must be zero, for keys. Each call takes t and keys as arguments again:
// a pointer to them in c would move c to the heap.
func (c *chunks) start(t *Table, keys []rowraft.Key, touched int, changes bool) {
	c.touched, c.changes = min(touched, maxPrefetch), changes
	c.prefetchEntries(t, keys, 0)
	c.prefetchEntries(t, keys, 1)
	c.prefetchRecords(t, 0)
}

// next returns the next chunk and its number of keys, 0 at the end or before err. The chunk is
// valid until the next call.
func (c *chunks) next(t *Table, keys []rowraft.Key) (*chunk, int) {
	at := c.at
	c.at = (at + 1) % 3
	c.prefetchEntries(t, keys, (at+2)%3)
	c.prefetchRecords(t, c.at)
	return &c.ring[at], c.n[at]
}

func (c *chunks) prefetchEntries(t *Table, keys []rowraft.Key, i int) {
	n := min(chunkKeys, len(keys)-c.begun)
	c.n[i] = n
	if n > 0 {
		from := c.begun
		c.begun += n
		if err := t.index.prefetchEntries(&c.ring[i], keys[from:c.begun]); err != nil {
			c.err, c.n[i], c.begun = err, 0, len(keys)
		}
	}
}

func (c *chunks) prefetchRecords(t *Table, i int) {
	if c.n[i] > 0 {
		t.index.prefetchRecords(&c.ring[i], c.n[i], c.touched)
	}
	if c.changes {
		t.snaps.prefetchSlots(&c.ring[i], c.n[i])
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

// lookup runs prefetchEntries and then prefetchRecords, for callers that do not use chunks.
func (x *index) lookup(c *chunk, keys []rowraft.Key, touched int) {
	_ = x.prefetchEntries(c, keys) // the caller has checked the slots
	x.prefetchRecords(c, len(keys), min(touched, maxPrefetch))
}

// prefetchEntries prefetches the index entries of keys. Errors: CodeWrongShard if the slot of a key is not owned.
func (x *index) prefetchEntries(c *chunk, keys []rowraft.Key) error {
	for i, key := range keys {
		slot, tag := x.slotOf(key), x.secret.Tag(key) // locate, which the compiler does not inline; nor segment, below
		if !x.owns(slot) {
			return x.notOwned(key, slot)
		}
		seg := x.roots[slot-x.first].load()
		if len(seg) == 0 {
			seg = x.segment(slot, tag)
		}
		c.slot[i], c.tag[i], c.seg[i] = slot, tag, seg
		c.addr[i] = unsafe.Pointer(&noRow)
		if len(seg) > 0 {
			c.addr[i] = unsafe.Pointer(&seg[tag&uint32(len(seg)-1)])
		}
	}
	order.Prefetch(&c.addr[0], len(keys), 0, 8)
	return nil
}

// prefetchRecords sets addr to the record of the first entry with the key's tag, or to noRow, and prefetches
// the records. The record may belong to another key with the same tag; record checks that.
func (x *index) prefetchRecords(c *chunk, n, touched int) {
	for i := range n {
		c.addr[i] = unsafe.Pointer(&noRow)
		if len(c.seg[i]) == 0 {
			continue
		}
		if p, _, ok := c.seg[i].next(c.tag[i], c.tag[i]); ok {
			c.addr[i] = x.at(p).p
		}
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
