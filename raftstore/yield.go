package raftstore

import (
	"io"
	"runtime"
	"time"
)

// When the writing of a snapshot waits
//
// A snapshot need not be fast, and its writing takes processor and disk from pushes. But the longer it takes, the more
// rows change before they are written, and each of these is kept in its old form; also the log that cannot be cut gets
// longer. So a snapshot waits while a log is written, as long as it is ahead of its budgets for both.
const (
	yieldBytes = 512 << 10        // bytes between two checks
	yieldStep  = time.Millisecond // time between two checks while it waits
	yieldMost  = 40 * time.Millisecond
	// 1/yieldShare of the log between two snapshots may be applied while one is written. The replicas of a group write
	// one after the other, so three of them need most of the interval.
	yieldShare = 4
	// yieldImages sets the memory for old images beyond which the snapshot no longer waits: yieldImages × size × x × (1
	// − x) when the share x is written, and a tenth of the state from the half on. Under uniform pushes the images
	// follow such a curve if 0.4 times as many rows are pushed as there are. That leaves a third of the allowed memory
	// for delays of the disk.
	yieldImages = 0.4
)

// measuredSnapshot is a Snapshot that knows its size and the memory that it holds because the state changes.
type measuredSnapshot interface {
	Bytes() int64
	ImageBytes() int64 // highest value so far
}

// yield decides when the writing of one snapshot waits. Only one goroutine uses it.
type yield struct {
	snap    measuredSnapshot
	budget  int64        // bytes of log that may be applied until the snapshot is written
	log     func() int64 // bytes applied since the snapshot began
	writing func() bool  // a log of this node is being written
	hurry   func() bool  // the snapshot must not wait at all

	written int64
	next    int64 // value of written at the next check
	seen    int64 // bytes of log at the last check
}

// newYield returns nil for a snapshot without a known size.
func (p *snapshotter) newYield(s Snapshot, index uint64) *yield {
	g := p.g
	m, ok := s.(measuredSnapshot)
	if !ok || m.Bytes() == 0 {
		return nil
	}
	g.store.mu.Lock()
	groups := int64(len(g.store.mu.groups))
	g.store.mu.Unlock()
	return &yield{
		snap: m,
		// Only few groups write at the same time, and every group must get its turn.
		budget:  p.every() / max(yieldShare, groups),
		log:     func() int64 { return g.ledger.Between(index, g.fsm.applied.Load()) },
		writing: func() bool { return g.store.logs.IsWriting() },
		hurry: func() bool {
			return p.hurry.Load() || p.wanted.Load() || g.snaps.IsStopping()
		},
	}
}

// wrote counts n bytes and waits if it may.
func (y *yield) wrote(n int) {
	y.written += int64(n)
	runtime.Gosched() // otherwise raft's goroutines would wait for a whole time slice
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

// due reports whether the snapshot must continue now, after that much log was applied.
func (y *yield) due(log int64) bool {
	size := float64(max(1, y.snap.Bytes()))
	x := float64(y.written) / size
	half := min(x, 0.5)
	return log > 0 && float64(log) >= x*float64(y.budget) ||
		float64(y.snap.ImageBytes()) > yieldImages*size*half*(1-half) ||
		y.hurry()
}

// yieldingWriter reports written bytes to yield.
type yieldingWriter struct {
	w     io.Writer
	yield *yield
}

func (w *yieldingWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	w.yield.wrote(n)
	return n, err
}
