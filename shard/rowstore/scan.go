package rowstore

import (
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
)

// Listing lists the rows that one slot had when the Listing began, in no particular order and in
// several calls. Rows may change between two calls: a row deleted since may be missing, and a row
// created since may be included. In a table with a tier, a key may be listed whose row was deleted since, and a listing
// may lack keys if the tier is broken then. Until End, the table does not reuse the memory of removed rows
// and segments. One goroutine uses a Listing.
type Listing struct {
	t     *Table
	walk  walk
	epoch uint64
}

// List begins a Listing of slot. The caller must be a reader of the state between two calls of the
// writer (see "Concurrency"). List takes time linear in the number of the slot's segments: some µs
// for a million rows.
func (t *Table) List(slot rowraft.Slot) *Listing {
	l := &Listing{t: t, epoch: t.index.grace.Enter()}
	l.walk.begin(t.index.slot(slot))
	return l
}

// Entries returns the total number of index entries.
func (l *Listing) Entries() (n int) {
	for _, seg := range l.walk.segs {
		n += len(seg)
	}
	return n
}

// End allows the table to reuse the memory of removed rows and segments. It may be called after the
// table was closed.
func (l *Listing) End() { l.t.index.grace.Leave(l.epoch) }

// AppendKeys looks at the next most (> 0) index entries and appends the keys of their rows to dst.
// It may run concurrently with everything except Close, as a pull may. done means that no entries
// are left.
func (l *Listing) AppendKeys(dst []rowraft.Key, most int) (out []rowraft.Key, done bool) {
	l.t.lock.RLock()
	defer l.t.lock.RUnlock()
	done = l.next(most, weightsAt, func(r record) {
		if r.loadVersion() != gone || l.t.index.tier != nil { // a row that moved out of memory is gone from there
			dst = append(dst, rowraft.Key(r.key()))
		}
	})
	return dst, done
}

// next calls do with the records of the next most entries. It prefetches the first touched bytes of each.
func (l *Listing) next(most, touched int, do func(r record)) (done bool) {
	var cold []coldEntry
	warm := window{to: touched}
	w := &l.walk
	for ; w.at < len(w.segs) && most > 0; w.at, w.pos = w.at+1, 0 {
		seg := w.segs[w.at]
		end := min(w.pos+most, len(seg))
		most -= end - w.pos
		for ; w.pos < end; w.pos++ {
			e := atomic.LoadUint64(&seg[w.pos])
			if !isRow(e) {
				continue
			}
			if isCold(e) {
				cold = append(cold, coldEntry{e: e})
				continue
			}
			if _, r := warm.swap(e, l.t.index.at(slab.Place(uint32(e)-1))); r.p != nil {
				do(r)
			}
		}
		if w.pos < len(seg) {
			break
		}
	}
	for _, r := range warm.rest {
		do(r)
	}
	if len(cold) > 0 { // an error breaks the tier
		_ = l.t.index.tier.each(cold, func(_ *coldEntry, r record) { do(r) })
	}
	return w.at == len(w.segs)
}
