package rowstore

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
	"github.com/rowraft/rowraft/wire"
)

// coldEntry is the index entry of a row in the file, for key number i of a call.
type coldEntry struct {
	e    uint64
	slot rowraft.Slot
	i    int32
	hit  bool // the row is that of the key
}

// entryLists are reused between calls.
var entryLists = sync.Pool{New: func() any { return new([]coldEntry) }}

// each reads the records of entries, in the order of their places, and calls do with each of them. do must not keep
// the record. A record that cannot be read breaks the tier.
func (r *Tier) each(entries []coldEntry, do func(c *coldEntry, rec record)) error {
	slices.SortFunc(entries, func(a, b coldEntry) int { return cmp.Compare(uint32(a.e), uint32(b.e)) })
	err := r.file.Read(len(entries), func(i int) int { return coldPlace(entries[i].e) }, func(i int, b []byte) {
		do(&entries[i], r.table.index.recordAt(unsafe.Pointer(unsafe.SliceData(b))))
	})
	if err != nil {
		return r.Break(err)
	}
	return nil
}

// pull is Table.Pull for a table with a tier, after the check of its arguments. With head bytes, 0 or
// wire.VersionBytes, before the weights of each row, they get its version.
func (r *Tier) pull(keys []rowraft.Key, dst []byte, dt rowraft.DType, present []byte, head int) error {
	t, x := r.table, &r.table.index
	list := entryLists.Get().(*[]coldEntry)
	defer entryLists.Put(list)
	cold := (*list)[:0]
	rowBytes := head + x.dim*dt.Size()
	found := func(i int, version uint64) {
		if present != nil {
			present[i/8] |= 1 << (i % 8)
		}
		if head > 0 {
			putVersion(dst[i*rowBytes:], version)
		}
	}
	initial := func(i int) {
		if head > 0 {
			putVersion(dst[i*rowBytes:], 0)
		}
		x.putInitial(dst[i*rowBytes+head:(i+1)*rowBytes], dt, keys[i])
	}
	var ahead lookahead
	ahead.start(t, keys, x.stateAt, false)
	for base := 0; ; {
		at, n := ahead.next(t, keys)
		if ahead.err != nil {
			return ahead.err
		}
		if n == 0 {
			break
		}
		for j, key := range keys[base : base+n] {
			i, was := base+j, len(cold)
			out := dst[i*rowBytes+head : (i+1)*rowBytes]
			var warm uint64
			if warm, cold = r.readWarm(&ahead.lookups, at+j, key, out, dt, int32(i), cold); warm != 0 {
				found(i, warm)
			} else if len(cold) == was {
				initial(i)
			}
		}
		base += n
	}
	*list = cold
	err := r.each(cold, func(c *coldEntry, rec record) {
		i := int(c.i)
		if c.hit = rec.key() == uint64(keys[i]); c.hit {
			wire.Convert(dst[i*rowBytes+head:(i+1)*rowBytes], dt, x.weights(rec), x.storage)
			found(i, *rec.version())
			if r.pulled.Add(1)%readShare == 0 {
				r.wait(c.e, rec, maxWaiting)
			}
		}
	})
	if err != nil {
		return err
	}
	for _, c := range cold { // a key whose tag is that of another key in the file
		if !c.hit && !slices.ContainsFunc(cold, func(o coldEntry) bool { return o.hit && o.i == c.i }) {
			initial(int(c.i))
		}
	}
	return nil
}

// readWarm writes the weights of key, number j of c, to dst if its row is in memory, and returns its version. Otherwise
// it returns 0 and appends the entries of the rows in the file that may be that of the key.
func (r *Tier) readWarm(
	c *lookups, j int, key rowraft.Key, dst []byte, dt rowraft.DType, i int32, cold []coldEntry,
) (version uint64, more []coldEntry) {
	x, seg := &r.table.index, c.seg[j]
	for {
		p, warm, more := r.lookup(seg, c.slot[j], c.tag[j], key, i, cold)
		if !warm {
			return 0, more
		}
		if v := x.copied(x.at(p), dst, dt, noVersion); v != 0 {
			r.clock.Touch(p)
			return v, cold
		}
		// The row was removed or moved after the lookup.
		seg = x.segment(c.slot[j], c.tag[j])
	}
}

// lookup returns the place of the row of key if it is in memory. Otherwise it appends the entries of the rows in the
// file that may be that of the key. A row moves within its position of a segment, so one pass over the positions of a
// tag finds it.
func (r *Tier) lookup(
	seg segment, slot rowraft.Slot, tag uint32, key rowraft.Key, i int32, cold []coldEntry,
) (p slab.Place, warm bool, more []coldEntry) {
	if len(seg) == 0 {
		return 0, false, cold
	}
	mask := uint32(len(seg) - 1)
	for at := tag; ; at++ {
		e := atomic.LoadUint64(&seg[at&mask])
		switch {
		case e == 0:
			return 0, false, cold
		case uint32(e>>32) != tag || e == tombstone:
		case isCold(e):
			cold = append(cold, coldEntry{e: e, slot: slot, i: i})
		default:
			if p := slab.Place(uint32(e) - 1); r.table.index.at(p).key() == uint64(key) {
				return p, true, cold
			}
		}
	}
}

// wait makes the row rec at the cold entry e move into memory at the next change, unless most rows wait.
func (r *Tier) wait(e uint64, rec record, most int) {
	w := &r.waiting
	if int(w.n.Load()) >= most {
		return
	}
	words := slices.Clone(unsafe.Slice((*uint64)(r.table.index.start(rec)), r.table.index.slabRecordBytes()/8))
	w.Lock()
	defer w.Unlock()
	w.rows = append(w.rows, waitingRow{e, words})
	w.n.Store(int32(len(w.rows)))
}

// appendCold appends the entries of the rows in the file that may be those of keys, and marks the others as in use. It
// may run concurrently with everything if the caller has entered grace.
func (r *Tier) appendCold(cold []coldEntry, keys []rowraft.Key) []coldEntry {
	x := &r.table.index
	var c lookups
	for ; len(keys) > 0; keys = keys[min(entriesAhead, len(keys)):] {
		n := min(entriesAhead, len(keys))
		_ = x.prefetchRoots(&c, 0, keys[:n]) // their slots are owned
		x.prefetchEntries(&c, 0, n)
		for i := range n {
			seg, tag := c.seg[i], c.tag[i]
			if len(seg) == 0 {
				continue
			}
			mask := uint32(len(seg) - 1)
			for at := tag; ; at++ {
				e := atomic.LoadUint64(&seg[at&mask])
				if e == 0 {
					break
				}
				if uint32(e>>32) != tag || e == tombstone {
					continue
				}
				if isCold(e) {
					cold = append(cold, coldEntry{e: e, slot: c.slot[i]})
				} else {
					r.clock.Touch(slab.Place(uint32(e) - 1))
				}
			}
		}
	}
	return cold
}

// Prefetch reads the rows of keys that are in the file, so that the next change of them need not wait for the disk. The
// writer calls it before a change, without the lock that keeps other users of the table out. The slots of keys must be
// owned.
func (r *Tier) Prefetch(keys []rowraft.Key) error {
	if r == nil {
		return nil
	}
	r.table.lock.RLock()
	defer r.table.lock.RUnlock()
	defer r.table.index.grace.Leave(r.table.index.grace.Enter())
	list := entryLists.Get().(*[]coldEntry)
	defer entryLists.Put(list)
	*list = r.appendCold((*list)[:0], keys)
	return r.each(*list, func(c *coldEntry, rec record) { r.wait(c.e, rec, math.MaxInt32) })
}

// has reports whether key has a row. It may read the file. It may run concurrently with everything if the caller has
// entered grace.
func (x *index) has(slot rowraft.Slot, tag uint32, key rowraft.Key) (ok bool) {
	if x.tier == nil {
		_, ok = x.find(slot, tag, key)
		return ok
	}
	for {
		p, warm, cold := x.tier.lookup(x.segment(slot, tag), slot, tag, key, 0, nil)
		if warm && x.at(p).loadVersion() != gone {
			return true
		}
		if warm {
			continue // the row was removed or moved after the lookup
		}
		_ = x.tier.each(cold, func(_ *coldEntry, rec record) { ok = ok || rec.key() == uint64(key) }) // breaks the tier
		return ok
	}
}
