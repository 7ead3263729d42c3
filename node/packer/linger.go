package packer

import (
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// linger decides how long pack waits for the pushes of other callers before it makes an entry. Three replicas spend
// about 130 µs of CPU time on an entry, whatever its size, so a busy server with many shards spends most of its time on
// entries if each push gets one of its own.
//
// pack waits until the entry has as many parts as were in the shard at once not long ago. So it does not wait for a
// caller that is alone. It does not wait while the server is not busy, either: then the push would be late for nothing.
// The server is busy if entries take more than three times as long as the quickest of them.
type linger struct {
	// inside counts the parts that have been submitted and have no result.
	inside atomic.Int32
	// limit is how long an entry waits at most, in ns.
	limit atomic.Int64

	// Owned by pack.
	parts window // inside, when the last entries were begun
	timer *time.Timer

	// Owned by deliver: times from an entry's proposal to its result, in ns.
	average int64 // moving
	times   window
}

const (
	partsEntries = 32   // half of the window in which linger looks for the most parts
	timesEntries = 1024 // the same for the least time
	maxLinger    = 10 * time.Millisecond
)

// begin begins an entry and returns how many parts to wait for.
func (l *linger) begin() (parts int) {
	return int(l.parts.add(int64(l.inside.Load()), partsEntries, larger))
}

// end returns a channel that receives when the entry must not wait any longer; nil if it must not wait at all.
func (l *linger) end() <-chan time.Time {
	limit := time.Duration(l.limit.Load())
	switch {
	case limit <= 0:
		return nil
	case l.timer == nil:
		l.timer = time.NewTimer(limit)
	default:
		l.timer.Reset(limit)
	}
	return l.timer.C
}

// done records that the result of an entry came took after its proposal.
func (l *linger) done(took time.Duration) {
	l.average += (int64(took) - l.average) / 8
	least := l.times.add(int64(took), timesEntries, smaller)
	l.limit.Store(min(2*(l.average-3*least), int64(maxLinger)))
}

// window has the largest or the smallest of the last values. The zero window has seen none.
type window struct {
	n           int // values of now
	now, before int64
}

// add adds v and returns which one pick prefers of the last values: half of them to twice as many.
func (w *window) add(v int64, half int, pick func(a, b int64) int64) int64 {
	switch w.n {
	case 0:
		w.now, w.before = v, v
	case half:
		w.n, w.now, w.before = 0, v, w.now
	}
	w.n++
	w.now = pick(w.now, v)
	return pick(w.now, w.before)
}

func larger(a, b int64) int64  { return max(a, b) }
func smaller(a, b int64) int64 { return min(a, b) }

// fits reports whether an entry of n parts with size bytes has room for another part like them.
func fits(n, size int) bool {
	return wire.EntryHeaderSize+size+size/n <= rowraft.TargetEntryBytes
}
