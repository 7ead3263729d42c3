package rowstore

import (
	"sync/atomic"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
)

// Listing goes through the rows that one slot had when it began, in no particular order and in
// pieces, between which rows may change. A row that is deleted meanwhile may be left out, one
// that is created meanwhile may be included. Until End, nothing that the table gives up is
// used again. One goroutine uses a Listing.
type Listing struct {
	t     *Table
	walk  walk
	epoch uint64
}

// List begins a Listing of slot. It is one of the readers of what the writer left between two
// calls, and takes time in the number of the slot's segments: some µs for a million rows.
func (t *Table) List(slot rowraft.Slot) *Listing {
	l := &Listing{t: t, epoch: t.grace.enter()}
	l.walk.begin(&t.slots[slot])
	return l
}

// Entries is how many index entries there are to look at.
func (l *Listing) Entries() (n int) {
	for _, seg := range l.walk.segs {
		n += len(seg)
	}
	return n
}

// End lets the table use again what it gives up. It may follow Close of the table.
func (l *Listing) End() { l.t.grace.leave(l.epoch) }

// AppendKeys appends the keys of the rows among the next most (> 0) index entries to dst. It
// may run beside all but Close, as a pull may. done says that there are no more.
func (l *Listing) AppendKeys(dst []rowraft.Key, most int) (out []rowraft.Key, done bool) {
	l.t.lock.RLock()
	defer l.t.lock.RUnlock()
	done = l.next(most, keyOffset+8, func(r record) {
		if r.loadVersion() != gone {
			dst = append(dst, rowraft.Key(r.key()))
		}
	})
	return dst, done
}

// next calls do with the records of the next most entries; touched is as in prefetch.
func (l *Listing) next(most, touched int, do func(r record)) (done bool) {
	var addr [scanRecords]unsafe.Pointer
	n := 0
	flush := func() {
		prefetch(&addr[0], n, keyOffset, min(touched, maxPrefetch))
		for _, p := range addr[:n] {
			do(record{p})
		}
		n = 0
	}
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
			addr[n] = l.t.rows.At(slab.Place(uint32(e) - 1))
			if n++; n == scanRecords {
				flush()
			}
		}
		if w.pos < len(seg) {
			break
		}
	}
	if n > 0 {
		flush()
	}
	return w.at == len(w.segs)
}
