package transport

import (
	"time"

	"github.com/hashicorp/raft"
)

// Progress is what a leader learned about one follower from its answers.
type Progress struct {
	term       uint64    // in which the other fields were learned
	Match      uint64    // highest index known to be in the follower's log
	MatchSince time.Time // when Match last increased
	Contact    time.Time // last answer of any kind
	Confirmed  time.Time // when the newest RPC was sent that was answered in this term
	Proved     time.Time // last answer that proved that the follower's log has Match
	Attempt    time.Time // start of the last replication RPC (not a heartbeat)
	Installing bool      // a snapshot is being sent
	Recovering uint64    // index of the last snapshot sent; 0 after Match has reached the commit index
	told       uint64    // highest commit index in an answered AppendEntries
	failures   int       // replication RPCs that failed in a row
	heartbeat  time.Time // when the last heartbeat was sent
	missed     bool      // it was not answered
}

// note updates what is known of follower id. In a later term it starts with nothing: the follower's log may have been
// cut.
func (t *Transport) note(id raft.ServerID, term uint64, update func(*Progress)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.followers[id]
	if p == nil || p.term < term {
		now := time.Now()
		p = &Progress{term: term, MatchSince: now, Attempt: now}
		t.followers[id] = p
		t.matches.Add(1)
	}
	if p.term == term {
		update(p)
	}
}

// Progress returns what is known of follower id in term.
func (t *Transport) Progress(id raft.ServerID, term uint64) (Progress, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.followers[id]
	if p == nil || p.term != term {
		return Progress{}, false
	}
	return *p, true
}

// Backoff returns how long raft may pause after failures of a follower, by the formula of its replicateTo. Such a pause
// is not a wedge.
func (p *Progress) Backoff() time.Duration {
	if p.failures == 0 {
		return 0
	}
	return 10 * time.Millisecond << min(max(p.failures, 2)-2, 10)
}

// Matches returns a number that increases when the match index of any follower changes.
func (t *Transport) Matches() uint64 { return t.matches.Load() }
