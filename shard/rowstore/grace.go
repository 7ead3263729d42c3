package rowstore

import (
	"sync/atomic"

	"github.com/rowraft/rowraft/internal/slab"
)

// grace tells when no reader can hold what was taken out of the index any more.
//
// Time is cut into epochs. A reader counts itself in the epoch that it enters,
// and leaves it when it is done; it never waits. What the writer takes out of the
// index in epoch e can be held by readers of e and of those before, not by one
// that entered later: that one finds the index without it. The writer goes on
// from e to e+1 only when no reader of e-1 is left, so when it enters e+2, nobody
// holds what it took out in e. It never waits either: a reader that stays keeps
// memory from being used again, nothing else.
//
// Atomic operations of Go are in one order that all goroutines agree on. A reader
// that counts itself in e and then still sees e did so before the writer left e;
// one that sees a later epoch takes its count back and tries again.
type grace struct {
	epoch   atomic.Uint64
	readers [2]struct {
		n atomic.Int64 // of epochs with this last bit
		_ [56]byte     // a cache line of its own
	}
}

// enter returns what leave takes.
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

// advance enters the next epoch and returns it, unless a reader of the one before
// the present is left.
func (g *grace) advance() (e uint64, ok bool) {
	e = g.epoch.Load() + 1
	if g.readers[e&1].n.Load() != 0 {
		return 0, false
	}
	g.epoch.Store(e)
	return e, true
}

// retired is what was taken out of the index in one epoch.
type retired struct {
	segs   []segment
	places []slab.Place
}

func (r *retired) empty() bool { return len(r.segs)+len(r.places) == 0 }

// retire frees seg, which no new reader finds, once no reader holds it.
func (t *Table) retire(seg segment) {
	r := &t.retired[t.grace.epoch.Load()&1]
	r.segs = append(r.segs, seg)
}

// retirePlace frees the record at p, which no new reader finds, once no reader
// holds it. Until then it reads as gone.
func (t *Table) retirePlace(p slab.Place) {
	t.at(p).setVersion(gone)
	r := &t.retired[t.grace.epoch.Load()&1]
	r.places = append(r.places, p)
}

// reclaim frees what no reader holds any more. Every change of rows begins with it.
func (t *Table) reclaim() {
	if t.wantStrict.Load() {
		t.mayLoosen()
	}
	if t.retired[0].empty() && t.retired[1].empty() {
		return
	}
	e, ok := t.grace.advance()
	if !ok {
		return
	}
	r := &t.retired[e&1] // of two epochs ago
	for _, seg := range r.segs {
		t.blocks.Free(seg)
	}
	for _, p := range r.places {
		t.rows.Free(p)
	}
	r.segs, r.places = r.segs[:0], r.places[:0]
}
