package rowstore

import (
	"sync/atomic"

	"github.com/rowraft/rowraft/internal/slab"
)

// grace reports when no reader can hold an object that was taken out of the index (epoch-based
// reclamation).
//
// A reader counts itself in the epoch that it enters, and leaves that epoch when it is done; it
// never waits. Readers of epoch e and of earlier epochs can hold an object that the writer took
// out of the index in e. A reader that entered later cannot: it sees the index without the object.
// The writer moves from e to e+1 only when no reader of e-1 is left. So when it enters e+2, no
// reader holds an object that was taken out in e. The writer never waits either: a slow reader
// only delays the reuse of memory.
//
// Go's atomic operations have one total order. A reader that counts itself in e and
// then still sees e did so before the writer left e. A reader that sees a later epoch takes its
// count back and tries again.
type grace struct {
	epoch   atomic.Uint64
	readers [2]struct {
		n atomic.Int64 // readers in epochs with this last bit
		_ [56]byte     // pads to a cache line
	}
}

// enter registers a reader. The caller passes the result to leave.
func (g *grace) enter() uint64 {
	for {
		e := g.epoch.Load()
		g.readers[e&1].n.Add(1)
		if g.epoch.Load() == e {
			return e
		}
		g.readers[e&1].n.Add(-1)
	}
}

func (g *grace) leave(e uint64) { g.readers[e&1].n.Add(-1) }

// advance enters the next epoch and returns it. It returns false if a reader of the previous
// epoch is left.
func (g *grace) advance() (e uint64, ok bool) {
	e = g.epoch.Load() + 1
	if g.readers[e&1].n.Load() != 0 {
		return 0, false
	}
	g.epoch.Store(e)
	return e, true
}

// reclaimer frees segments and records when no reader can hold them any more. The writer owns retired.
//
// Invariant: retired[e&1] has what was taken out of the index in epoch e, or in an epoch with the same last bit from
// which no reader is left.
type reclaimer struct {
	grace   grace
	retired [2]retired
}

// retired is the objects that were taken out of the index in one epoch.
type retired struct {
	segs   []segment
	places []slab.Place

	extents []int // of the tier
}

func (r *retired) empty() bool { return len(r.segs)+len(r.places)+len(r.extents) == 0 }

func (c *reclaimer) now() *retired { return &c.retired[c.grace.epoch.Load()&1] }

// retire frees seg when no reader holds it. REQUIRES: new readers cannot find seg.
func (c *reclaimer) retire(seg segment) {
	r := c.now()
	r.segs = append(r.segs, seg)
}

// retirePlace frees the record at p when no reader holds it. Until then the record reads as gone.
// REQUIRES: new readers cannot find the record.
func (c *reclaimer) retirePlace(rs *records, p slab.Place) {
	rs.at(p).setVersion(gone)
	r := c.now()
	r.places = append(r.places, p)
}

// reclaim frees the retired objects of x that no reader holds any more.
func (x *index) reclaim() {
	if x.retired[0].empty() && x.retired[1].empty() {
		return
	}
	e, ok := x.grace.advance()
	if !ok {
		return
	}
	r := &x.retired[e&1] // from two epochs ago
	for _, seg := range r.segs {
		x.blocks.Free(seg)
	}
	for _, p := range r.places {
		x.slab.Free(p)
	}
	if len(r.extents) > 0 {
		x.tier.file.Reuse(r.extents)
	}
	r.segs, r.places, r.extents = r.segs[:0], r.places[:0], r.extents[:0]
}
