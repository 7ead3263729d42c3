package transport

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/internal/ticks"
)

// quiet delays the AppendEntries that tell a follower nothing. Raft sends two kinds to each follower of each group,
// forever: one every one or two commit timeouts, so that followers learn the commit index soon after the last entry,
// and heartbeats. Without a delay they are most of the CPU of an idle cluster. Delayed ones leave together, those of
// all groups for one server (departure), for all servers at multiples of Replica.Quiet. Work every 125 or 250 ms is
// done at the same moments (package ticks): the process wakes once.
//
// A delayed message is sent, late, and not answered here, so raft counts no contact that did not happen.
type quiet struct {
	mu     sync.Mutex
	last   uint64        // of the entries of this replica; 0: unknown
	rounds int           // of reads that need answers
	news   chan struct{} // closed when last changes; nil: nothing waits
	hurry  chan struct{} // closed when a round begins; nil: no heartbeat waits
	over   bool          // nothing waits any more
}

// appendFactor is the longest wait of an AppendEntries without news, as a multiple of that of a heartbeat.
const appendFactor = 4

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

// REQUIRES: q.mu is held.
func (q *quiet) hurryLocked() {
	if q.hurry != nil {
		close(q.hurry)
		q.hurry = nil
	}
}

// BeginRound makes the heartbeats of this group leave at once, those that wait too, until EndRound: a read needs the
// answers to heartbeats that are sent from now on.
func (t *Transport) BeginRound() {
	q := &t.quiet
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rounds++
	q.hurryLocked()
}

// EndRound ends the effect of one BeginRound.
func (t *Transport) EndRound() {
	q := &t.quiet
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rounds--
}

// missed ends the waits for a follower that did not answer: it may have restarted, and then it knows no commit index.
func (q *quiet) missed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wakeLocked()
}

// end wakes what waits, for good.
func (q *quiet) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.over = true
	q.wakeLocked()
	q.hurryLocked()
}

// newsAfter returns a channel that is closed when the log has an entry after prev, or nil if it has one already.
func (q *quiet) newsAfter(prev uint64) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over || q.last != prev {
		return nil
	}
	if q.news == nil {
		q.news = make(chan struct{})
	}
	return q.news
}

// nextRound returns a channel that is closed when a round of reads begins, or nil if one is running.
func (q *quiet) nextRound() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over || q.rounds > 0 {
		return nil
	}
	if q.hurry == nil {
		q.hurry = make(chan struct{})
	}
	return q.hurry
}

// delayAppend waits until the log has an entry after prev, at most four times as long as a heartbeat waits. It reports
// whether it has waited.
func (t *Transport) delayAppend(target raft.ServerAddress, prev uint64) bool {
	news := t.quiet.newsAfter(prev)
	if news == nil {
		return false
	}
	appends, quiet := &t.shared.departuresTo(target).appends, t.replica.Quiet()
	select {
	case <-appends.next(ticks.Before(time.Now().Add(appendFactor*quiet), quiet)):
	case <-news:
	}
	return true
}

// delayHeartbeat waits for the next departure, at most until Replica.Quiet after the last heartbeat to follower id. A
// heartbeat has news, and does not wait, if the follower has not answered the last one of this term, or if a read waits
// for the answer. delayHeartbeat reports whether it has waited.
func (t *Transport) delayHeartbeat(id raft.ServerID, target raft.ServerAddress, term uint64) bool {
	if t.shared == nil || t.replica.Quiet == nil {
		return false
	}
	p, ok := t.Progress(id, term)
	if !ok || p.heartbeat.IsZero() || p.missed {
		return false
	}
	quiet := t.replica.Quiet()
	latest := ticks.Before(p.heartbeat.Add(quiet), quiet)
	round := t.quiet.nextRound()
	if round == nil || !time.Now().Before(latest) {
		return false
	}
	select {
	case <-t.shared.departuresTo(target).heartbeats.next(latest):
	case <-round:
	}
	return true
}

// tellsNothing reports whether the follower has answered that it has all that args carries: the log through
// PrevLogEntry, and the commit index. It is false while entries are not committed: then raft looks every commit timeout
// whether they are.
func (t *Transport) tellsNothing(id raft.ServerID, args *raft.AppendEntriesRequest) bool {
	if len(args.Entries) > 0 || args.LeaderCommitIndex != args.PrevLogEntry || t.shared == nil || t.replica.Quiet == nil {
		return false
	}
	p, ok := t.Progress(id, args.Term)
	return ok && p.failures == 0 && !p.missed && !p.Installing && p.Match >= args.PrevLogEntry &&
		p.told >= args.LeaderCommitIndex
}

// departures are those of the two kinds of messages without news. A kind has its own, because the kinds wait for
// different times.
type departures struct{ heartbeats, appends departure }

// departure is the moment at which waiting messages leave together for one server. The zero value is ready.
type departure struct {
	mu    sync.Mutex
	at    time.Time     // when the messages that wait leave
	now   chan struct{} // closed at that moment; nil: no message waits
	timer *time.Timer
}

// next returns a channel that is closed at the next departure, at the latest at latest.
func (d *departure) next(latest time.Time) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch wait := time.Until(latest); {
	case d.now == nil:
		d.now, d.at = make(chan struct{}), latest
		if d.timer == nil {
			d.timer = time.AfterFunc(wait, d.leave)
		} else {
			d.timer.Reset(wait)
		}
	case latest.Before(d.at):
		d.at = latest
		d.timer.Reset(wait)
	}
	return d.now
}

// leave lets all messages leave that wait.
func (d *departure) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.now == nil {
		return
	}
	if early := time.Until(d.at); early > 0 { // the timer fired before it was set to a later departure
		d.timer.Reset(early)
		return
	}
	close(d.now)
	d.now = nil
}
