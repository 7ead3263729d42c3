package raftstore

import (
	"io"
	"runtime"
	"time"
)

// A snapshot need not be fast, and whoever writes one takes processor and disk from
// those who push. But the longer it takes the more rows change before they are written,
// each of which is kept as it was, and the longer the log is that cannot be cut. So a
// snapshot waits while the log is written, as long as neither is due.
const (
	yieldBytes = 512 << 10        // are written between two looks
	yieldStep  = time.Millisecond // between two looks while it waits
	yieldMost  = 40 * time.Millisecond
	// yieldShare of the log between two snapshots may be applied while one is written.
	yieldShare = 3
	// yieldImages shapes how much memory old images may have taken before the snapshot
	// hurries: that × size × x × (1 − x) when the share x is written, from the half on a
	// tenth of the state. Under uniform pushes images follow such a curve when 0.4 times
	// as many rows are pushed as there are. It leaves a third of what they may have for
	// what the disk is late.
	yieldImages = 0.4
)

// measuredSnapshot is a Snapshot that knows how large it is, and how much memory it
// holds because the state changes.
type measuredSnapshot interface {
	Bytes() int64
	ImageBytes() int64 // at most so far
}

// yield decides when the writing of one snapshot waits. Used by one goroutine.
type yield struct {
	snap    measuredSnapshot
	budget  int64        // log that may be applied until it is written
	log     func() int64 // applied since the snapshot began
	writing func() bool  // a log of this node is being written
	hurry   func() bool  // it must not wait at all

	written int64
	next    int64 // where the next look is
	seen    int64 // of log, at the last look
}

// newYield returns nil for a snapshot that says too little of itself.
func (g *Group) newYield(s Snapshot, index uint64) *yield {
	m, ok := s.(measuredSnapshot)
	if !ok || m.Bytes() == 0 {
		return nil
	}
	g.store.mu.Lock()
	groups := int64(len(g.store.mu.groups))
	g.store.mu.Unlock()
	return &yield{
		snap: m,
		// Few groups write at a time, and all must have their turn.
		budget:  g.snapshotEvery() / max(yieldShare, groups),
		log:     func() int64 { return g.ledger.between(index, g.fsm.applied.Load()) },
		writing: func() bool { return g.store.writing.Load() > 0 },
		hurry: func() bool {
			return g.snapHurry.Load() || g.snapWanted.Load() || g.snaps.stopping.Load()
		},
	}
}

// wrote counts n bytes and waits if it may.
func (y *yield) wrote(n int) {
	y.written += int64(n)
	runtime.Gosched() // raft's goroutines would wait for a whole time slice
	if y.written < y.next {
		return
	}
	y.next = y.written + yieldBytes
	if log := y.log(); y.due(log) {
		y.seen = log
		return
	}
	for waited := time.Duration(0); waited < yieldMost; waited += yieldStep {
		log := y.log()
		idle := log == y.seen && !y.writing()
		y.seen = log
		if idle || y.due(log) {
			break
		}
		time.Sleep(yieldStep)
	}
}

// due reports whether the snapshot must go on, now that so much log was applied.
func (y *yield) due(log int64) bool {
	size := float64(max(1, y.snap.Bytes()))
	x := float64(y.written) / size
	half := min(x, 0.5)
	return log > 0 && float64(log) >= x*float64(y.budget) ||
		float64(y.snap.ImageBytes()) > yieldImages*size*half*(1-half) ||
		y.hurry()
}

// yieldingWriter lets yield know what is written.
type yieldingWriter struct {
	w     io.Writer
	yield *yield
}

func (w *yieldingWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	w.yield.wrote(n)
	return n, err
}
