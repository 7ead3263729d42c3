package rowstore

import (
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard/rowstore/order"
)

// lookupKeys is how many keys lookups has room for.
const lookupKeys = 32

// maxPrefetch is how many bytes of a record are prefetched: a record of dim 64 with
// Adagrad, which took 1.5 times as long with 320. The hardware prefetches the rest of a longer row.
const maxPrefetch = 576

// lookups has what is known so far about where the rows of some keys are. It lives on the stack.
type lookups struct {
	slot [lookupKeys]rowraft.Slot
	tag  [lookupKeys]uint32
	seg  [lookupKeys]segment
	addr [lookupKeys]unsafe.Pointer // first of the roots, then of the index entries, then of the records
}

// noRow is the value of addr for a key whose tag is not in the index. It looks like a record that is gone.
var noRow = [8]uint64{versionAt / 8: gone}

const (
	// groupKeys is how many keys lookahead prefetches at once. A processor drops prefetches that find its queue of missing
	// lines full (package order), so rows of which more than wideBytes are used are prefetched in smaller groups. (Groups
	// of one are slower for all rows up to dim 128.)
	groupKeys     = 4
	wideGroupKeys = 2
	wideBytes     = 96

	// lookahead prefetches three things of a key, each so many keys before next returns the key.
	// Invariant: all three are multiples of the size of a group, and the keys from the first that next has returned to
	// the last with a prefetched root fit into lookups.
	rootsAhead   = 24 // the root of its slot: those of many tables do not stay in a cache
	entriesAhead = 16 // its index entries
	recordsAhead = 8  // its record
)

// lookahead looks up keys in groups, so that memory of later groups is loading while the caller works on the current
// one.
//
// A record that was found may be removed before its key is returned. Its version is gone then, and its place belongs to
// no other row before the next call of the writer, or before the reader leaves (reclaimer).
type lookahead struct {
	lookups       // key number i is at i%lookupKeys
	group   int   // number of keys in a group
	given   int   // number of keys that next has returned
	touched int   // how many bytes of each record the caller will use
	changes bool  // the caller changes the rows
	end     int   // number of keys to return: all, or those before the group of the key with err
	err     error // the slot of a key is not owned
}

// start prepares c, which must be zero, for keys. Each call takes t and keys as arguments again:
// a pointer to them in c would move c to the heap.
func (c *lookahead) start(t *Table, keys []rowraft.Key, touched int, changes bool) {
	c.touched, c.changes, c.end = min(touched, maxPrefetch), changes, len(keys)
	if c.group = groupKeys; touched > wideBytes {
		c.group = wideGroupKeys
	}
	for from := 0; from < rootsAhead; from += c.group {
		c.prefetchRoots(t, keys, from)
	}
	for from := 0; from < entriesAhead; from += c.group {
		c.prefetchEntries(t, from)
	}
	for from := 0; from < recordsAhead; from += c.group {
		c.prefetchRecords(t, from)
	}
}

// next returns the place of the next group in c and its number of keys, 0 at the end or before err. The group is
// valid until the next call.
func (c *lookahead) next(t *Table, keys []rowraft.Key) (at, n int) {
	c.prefetchRoots(t, keys, c.given+rootsAhead)
	c.prefetchEntries(t, c.given+entriesAhead)
	c.prefetchRecords(t, c.given+recordsAhead)
	at, n = c.given%lookupKeys, min(c.group, c.end-c.given)
	c.given += n
	return at, n
}

// prefetchRoots prefetches the roots of the group from key number from on, if there are such keys.
func (c *lookahead) prefetchRoots(t *Table, keys []rowraft.Key, from int) {
	if n := min(c.group, c.end-from); n > 0 {
		if c.err = t.index.prefetchRoots(&c.lookups, from%lookupKeys, keys[from:from+n]); c.err != nil {
			c.end = from
		}
	}
}

// prefetchEntries does the same for the index entries, after the roots.
func (c *lookahead) prefetchEntries(t *Table, from int) {
	if n := min(c.group, c.end-from); n > 0 {
		t.index.prefetchEntries(&c.lookups, from%lookupKeys, n)
	}
}

// prefetchRecords does the same for the records, after the index entries, and for what a change needs of the slots.
func (c *lookahead) prefetchRecords(t *Table, from int) {
	n := min(c.group, c.end-from)
	if n <= 0 {
		return
	}
	at := from % lookupKeys
	t.index.prefetchRecords(&c.lookups, at, n, c.touched)
	if c.changes {
		t.snaps.prefetchSlots(c.slot[at : at+n])
	}
}

// prefetchSlots prefetches the state of the slots of a group that a change needs: digest, counter, and the cuts of
// running snapshots. Together they are larger than a near cache that rows pass through.
func (ss *snapshots) prefetchSlots(slots []rowraft.Slot) {
	var addr [groupKeys]unsafe.Pointer
	for i, slot := range slots {
		addr[i] = unsafe.Pointer(ss.index.slot(slot))
	}
	order.Prefetch(&addr[0], len(slots), 0, int(unsafe.Offsetof(slotState{}.directory)))
	for _, s := range ss.running {
		for i, slot := range slots {
			addr[i] = unsafe.Pointer(&noRow)
			if page := s.cutPage(slot).Load(); page != nil {
				addr[i] = unsafe.Pointer(&page[slot%cutsPerPage])
			}
		}
		order.Prefetch(&addr[0], len(slots), 0, int(unsafe.Sizeof(cut{})))
	}
}

// prefetchRoots notes the slots and tags of keys from place at of c on and prefetches the roots of the slots.
//
// Errors: CodeWrongShard if the slot of a key is not owned.
func (x *index) prefetchRoots(c *lookups, at int, keys []rowraft.Key) error {
	for j, key := range keys {
		i := at + j
		slot, tag := x.slotOf(key), x.secret.Tag(key) // locate, which the compiler does not inline; nor segment, below
		if !x.owns(slot) {
			return x.notOwned(key, slot)
		}
		c.slot[i], c.tag[i] = slot, tag
		c.addr[i] = unsafe.Pointer(&x.roots[slot-x.first])
	}
	order.Prefetch(&c.addr[at], len(keys), 0, 8)
	return nil
}

// prefetchEntries prefetches the index entries of the n lookups from place at of c on.
func (x *index) prefetchEntries(c *lookups, at, n int) {
	for i := at; i < at+n; i++ {
		slot, tag := c.slot[i], c.tag[i]
		seg := x.roots[slot-x.first].load()
		if len(seg) == 0 {
			seg = x.segment(slot, tag)
		}
		c.seg[i] = seg
		c.addr[i] = unsafe.Pointer(&noRow)
		if len(seg) > 0 {
			c.addr[i] = unsafe.Pointer(&seg[tag&uint32(len(seg)-1)])
		}
	}
	order.Prefetch(&c.addr[at], n, 0, 8)
}

// prefetchRecords sets addr of the n lookups from place at of c on to the record of the first entry with the key's tag,
// or to noRow, and prefetches the records. The record may belong to another key with the same tag; record checks that.
func (x *index) prefetchRecords(c *lookups, at, n, touched int) {
	for i := at; i < at+n; i++ {
		c.addr[i] = unsafe.Pointer(&noRow)
		if len(c.seg[i]) == 0 {
			continue
		}
		if p, _, ok := c.seg[i].next(c.tag[i], c.tag[i]); ok {
			c.addr[i] = x.at(p).p
		}
	}
	order.Prefetch(&c.addr[at], n, 0, touched)
}

// record returns the record of key, number i of c. Its row may have been created or removed since prefetchRecords
// looked. ok is false if the key has no row.
func (x *index) record(c *lookups, i int, key rowraft.Key) (record, bool) {
	if r := (record{c.addr[i]}); r.key() == uint64(key) && r.loadVersion() != gone {
		return r, true
	}
	return x.find(c.slot[i], c.tag[i], key)
}

// window delays the records of a walk, so that each is in a near cache when it is used.
type window struct {
	from, to int // which bytes of a record are prefetched, from its key on

	entry [recordsAhead]uint64
	addr  [recordsAhead]unsafe.Pointer
	n     int
}

// swap adds the record r with the index entry e, and returns those that were added recordsAhead calls before. The
// record has no address if there were none.
func (w *window) swap(e uint64, r record) (uint64, record) {
	i := w.n % recordsAhead
	w.n++
	wasEntry, was := w.entry[i], record{w.addr[i]}
	w.entry[i], w.addr[i] = e, r.p
	if r.p != nil {
		order.Prefetch(&w.addr[i], 1, w.from, min(w.to, maxPrefetch))
	}
	return wasEntry, was
}

// rest yields what swap has not returned.
func (w *window) rest(yield func(e uint64, r record) bool) {
	for range recordsAhead {
		if e, r := w.swap(0, record{}); r.p != nil && !yield(e, r) {
			return
		}
	}
}
