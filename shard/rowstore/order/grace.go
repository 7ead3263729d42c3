package order

import "sync/atomic"

// Grace reports when no reader can hold an object that was taken out of the index (epoch-based
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
type Grace struct {
	epoch   atomic.Uint64
	readers [2]struct {
		n atomic.Int64 // readers in epochs with this last bit
		_ [56]byte     // pads to a cache line
	}
}

// Enter registers a reader. The caller passes the result to Leave.
func (g *Grace) Enter() uint64 {
	for {
		e := g.epoch.Load()
		g.readers[e&1].n.Add(1)
		if g.epoch.Load() == e {
			return e
		}
		g.readers[e&1].n.Add(-1)
	}
}

// Leave ends the reader that Enter has registered.
func (g *Grace) Leave(e uint64) { g.readers[e&1].n.Add(-1) }

// Advance enters the next epoch and returns it. It returns false if a reader of the previous
// epoch is left.
func (g *Grace) Advance() (e uint64, ok bool) {
	e = g.epoch.Load() + 1
	if g.readers[e&1].n.Load() != 0 {
		return 0, false
	}
	g.epoch.Store(e)
	return e, true
}

// Epoch returns the epoch of the writer.
func (g *Grace) Epoch() uint64 { return g.epoch.Load() }
