package transport

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// quiet delays the AppendEntries that tell a follower nothing. Raft sends one to each follower of each group every one
// or two commit timeouts, forever, so that followers learn the commit index soon after the last entry: without a delay
// they are most of the CPU of an idle cluster.
//
// A delayed message is sent, late, and not answered here, so raft counts no contact that did not happen.
type quiet struct {
	mu   sync.Mutex
	last uint64        // of the entries of this replica; 0: unknown
	news chan struct{} // closed when last changes; nil: nothing waits
	over bool          // nothing waits any more
}

// Stored records that this replica's log ends with entry last. A leader calls it before raft replicates the entry.
func (t *Transport) Stored(last uint64) {
	q := &t.quiet
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last = last
	q.wakeLocked()
}

// REQUIRES: q.mu is held.
func (q *quiet) wakeLocked() {
	if q.news != nil {
		close(q.news)
		q.news = nil
	}
}

// end wakes what waits, for good.
func (q *quiet) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.over = true
	q.wakeLocked()
}

// await waits until the log has an entry after prev, at most for d.
func (q *quiet) await(prev uint64, d time.Duration) {
	q.mu.Lock()
	if q.over || q.last != prev {
		q.mu.Unlock()
		return
	}
	if q.news == nil {
		q.news = make(chan struct{})
	}
	news := q.news
	q.mu.Unlock()
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-news:
	case <-late.C:
	}
}

// tellsNothing reports whether the follower has answered that it has all that args carries: the log through
// PrevLogEntry, and the commit index. It is false while entries are not committed: then raft looks every commit timeout
// whether they are.
func (t *Transport) tellsNothing(id raft.ServerID, args *raft.AppendEntriesRequest) bool {
	if len(args.Entries) > 0 || args.LeaderCommitIndex != args.PrevLogEntry || t.replica.Quiet == nil {
		return false
	}
	p, ok := t.Progress(id, args.Term)
	return ok && p.failures == 0 && !p.Installing && p.Match >= args.PrevLogEntry && p.told >= args.LeaderCommitIndex
}
