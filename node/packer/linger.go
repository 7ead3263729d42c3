package packer

import (
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// linger decides how long pack waits for the pushes of other clients before it makes an entry. Three replicas spend
// about 130 µs of CPU time on an entry, whatever its size, so a busy server with many shards spends most of its time on
// entries if each push gets one of its own.
//
// pack waits until the entry has as many parts as were in the shard at once when the last 32 to 64 entries were begun,
// or as many as these entries had clients, if they were fewer. So a client that is alone never waits. While the server
// is not busy, waiting would only delay the push. The server counts as busy if entries take on average more than three
// times the least time of the last 1,024 to 2,048 entries. A disk that became slow looks the same for so many entries.
type linger struct {
	// inside counts the parts that have been submitted and have no result.
	inside atomic.Int32
	// limit is how long an entry waits at most, in ns. 0 or less: not at all.
	limit atomic.Int64

	// Owned by pack.
	parts   window                           // inside, when the last entries were begun
	clients [2]map[rowraft.ClientID]struct{} // of this half of the last entries, and of the half before
	timer   *time.Timer

	// Owned by deliver: times from an entry's proposal to its result, in ns.
	average int64 // moving
	times   window
}

const (
	partsEntries = 32   // half of the window in which linger looks for the most parts
	timesEntries = 1024 // the same for the least time
	maxLinger    = 10 * time.Millisecond
)

// expected begins an entry and returns how many parts it waits for.
func (l *linger) expected() (parts int) {
	most := l.parts.add(int64(l.inside.Load()), partsEntries, larger)
	if l.parts.n == 1 { // parts has begun a new half
		l.clients = [2]map[rowraft.ClientID]struct{}{{}, l.clients[0]}
	}
	return min(int(most), max(len(l.clients[0]), len(l.clients[1])))
}

// add notes the client of a part of the entry.
func (l *linger) add(client rowraft.ClientID) { l.clients[0][client] = struct{}{} }

// deadline returns a channel that receives when the entry must not wait any longer; nil if it must not wait at all.
func (l *linger) deadline() <-chan time.Time {
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

// observe records that the result of an entry came took after its proposal.
func (l *linger) observe(took time.Duration) {
	least := l.times.add(int64(took), timesEntries, smaller)
	took = min(took, time.Duration(3*least)+maxLinger) // so that a hang is soon forgotten
	l.average += (int64(took) - l.average) / 8
	l.limit.Store(min(2*(l.average-3*least), int64(maxLinger)))
}

// window has the largest or the smallest of the last values. The zero window has seen none.
type window struct {
	n           int // values of now
	now, before int64
}

// add adds v and returns the largest or smallest, as pick says, of the last half to 2×half values.
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
