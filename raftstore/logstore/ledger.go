package logstore

import (
	"math"
	"slices"
	"sort"
	"sync"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// NewLedger returns an empty ledger. It calls noticed when an entry of raft's own is in the log; nil: it does not.
func NewLedger(noticed func()) *Ledger { return &Ledger{noticed: noticed} }

// Ledger holds the size of each log entry that was stored or read since the group started, and which entries are raft's
// own. All limits of raft count entries and ours count bytes; the ledger converts between them.
type Ledger struct {
	noticed func() // called, without mu, when an entry of raft's own is in the log; may be nil

	mu sync.Mutex // guards all fields below
	// own holds, ascending, the indices above the applied index of entries that never reach the state machine (no-ops
	// and barriers).
	own []uint64
	// cum[i] is the sum of bytes up to and including index base+1+i.
	base      uint64
	baseTotal int64
	cum       []int64
}

// Observe records entry l. Entries are observed in log order; known entries are ignored. An entry after a gap (a
// snapshot was installed) or below the first one (NewRaft reads the last entry, then all of them) restarts the count.
func (g *Ledger) Observe(l *raft.Log) {
	if g.noticed != nil && !reachesMachine(l.Type) {
		defer g.noticed() // after mu is unlocked
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch next := g.base + uint64(len(g.cum)) + 1; {
	case len(g.cum) > 0 && l.Index > g.base && l.Index < next:
		return
	case len(g.cum) == 0 || l.Index != next:
		g.base, g.baseTotal, g.cum = l.Index-1, g.lastTotalLocked(), g.cum[:0]
	}
	g.cum = append(g.cum, g.lastTotalLocked()+int64(len(l.Data))+entry.OverheadBytes)
	if reachesMachine(l.Type) {
		return
	}
	if i, found := slices.BinarySearch(g.own, l.Index); !found {
		g.own = slices.Insert(g.own, i, l.Index)
	}
}

// reachesMachine reports whether raft passes entries of type t to its BatchingFSM.
func reachesMachine(t raft.LogType) bool {
	return t == raft.LogCommand || t == raft.LogConfiguration
}

func (g *Ledger) lastTotalLocked() int64 {
	if n := len(g.cum); n > 0 {
		return g.cum[n-1]
	}
	return g.baseTotal
}

func (g *Ledger) totalLocked(index uint64) int64 {
	if index <= g.base || len(g.cum) == 0 {
		return g.baseTotal
	}
	return g.cum[min(index-g.base, uint64(len(g.cum)))-1]
}

// removed records that the log deleted the entries from min to max: a prefix after a snapshot, or a suffix that
// conflicts with the leader's log.
func (g *Ledger) removed(min, max uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := g.base + uint64(len(g.cum))
	if max >= last { // a suffix, or all entries
		g.own = slices.DeleteFunc(g.own, func(i uint64) bool { return i >= min })
		if min <= g.base+1 {
			g.baseTotal, g.base, g.cum = g.totalLocked(last), last, nil
		} else {
			g.cum = g.cum[:min-1-g.base]
		}
		return
	}
	if max > g.base {
		n := max - g.base
		g.baseTotal = g.cum[n-1]
		g.cum = slices.Clone(g.cum[n:])
		g.base = max
	}
}

// Between returns the bytes of the entries above from, up to and including to.
func (g *Ledger) Between(from, to uint64) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.totalLocked(to) - g.totalLocked(from)
}

// Bytes returns the size of the log, as far as it is known.
func (g *Ledger) Bytes() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lastTotalLocked() - g.baseTotal
}

// Trailing returns the smallest number of newest entries with at least want bytes, for a log that begins at entry first
// (0: the log is empty). If all entries together have fewer, it returns math.MaxUint64, because the log grows while a
// snapshot is taken. Entries from before the start of the group are not counted and do not stay: otherwise each start
// would keep more of them.
func (g *Ledger) Trailing(want int64, first uint64) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	end := g.lastTotalLocked()
	if end-g.baseTotal < want && (first == 0 || g.base < first) {
		return math.MaxUint64
	}
	i := sort.Search(len(g.cum), func(i int) bool { return end-g.cum[i] < want })
	return uint64(len(g.cum) - i)
}

// ThroughOwn returns the highest index, at most limit, that follows applied over raft's own entries only. The machine
// has seen everything up to there.
func (g *Ledger) ThroughOwn(applied, limit uint64) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	i, _ := slices.BinarySearch(g.own, applied+1)
	for ; i < len(g.own) && g.own[i] == applied+1 && applied < limit; i++ {
		applied++
	}
	return applied
}

// Advance checks that all entries between applied and index are raft's own, and deletes those up to index from own. It
// returns false if an entry was skipped.
func (g *Ledger) Advance(applied, index uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	lo, _ := slices.BinarySearch(g.own, applied+1)
	hi, _ := slices.BinarySearch(g.own, index)
	whole := uint64(hi-lo) == index-applied-1
	if whole && hi > 0 {
		g.own = append(g.own[:0], g.own[hi:]...)
	}
	return whole
}
