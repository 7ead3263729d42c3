package client

import (
	"github.com/rowraft/rowraft"
)

// renewal is how a shardSession continues under another incarnation after the shard has dropped its
// session: the session made room for another client's, or expired.
type renewal struct {
	count   int   // renewals that ended; each batch records the count at which it got its number
	stalled int   // pending batches that wait for a renewal
	running bool  // one of the stalled batches opens the new session
	err     error // the error of the last renewal
}

// renew gives b a number in a session of another incarnation. It may do so because three things hold: the
// shard refused b as its session is over, no other try of b may have been applied, and that session never
// opens again. So no copy of b can be applied under its old number.
//
// renew waits until no pending batch of the session can still be applied: each one either has its answer,
// or waits here too. Renumbering earlier could apply a batch twice. Errors: errClosed, or why no session
// could be opened.
func (s *sessions) renew(b *batch) error {
	ss := b.session
	ss.mu.Lock()
	ss.renewal.stalled++
	ss.wakeLocked()
	ss.mu.Unlock()
	first := false
	err := ss.waitUntil(s.ctx, func() bool {
		r := &ss.renewal
		if r.count == b.renewals && r.stalled == ss.pending && !r.running {
			r.running, first = true, true
		}
		return first || r.count != b.renewals
	})
	if err != nil {
		return errClosed
	}
	var inc rowraft.Incarnation
	if first {
		inc, err = s.reopen(ss)
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	defer ss.wakeLocked()
	r := &ss.renewal
	r.stalled--
	if first {
		r.running, r.err = false, err
		r.count++
		if err == nil {
			ss.inc, ss.next, ss.floor = inc, 1, 0
			clear(ss.ended)
		}
	}
	if r.err != nil {
		return r.err
	}
	b.seq, b.renewals = ss.next, r.count
	ss.next++
	return nil
}

// reopen opens another session for ss and returns its incarnation.
func (s *sessions) reopen(ss *shardSession) (rowraft.Incarnation, error) {
	inc, err := s.issueIncarnation(s.ctx)
	if err != nil {
		return 0, err
	}
	inc, epoch, err := s.openAs(s.ctx, ss.cluster, ss.shard, inc)
	if err != nil {
		return 0, err
	}
	same := false
	if !s.cluster.within(ss.cluster, func() { same = s.epoch.Load() == epoch }) {
		return 0, s.cluster.replaced(ss.cluster)
	}
	if !same {
		return 0, s.otherEpoch(ss.shard, epoch)
	}
	return inc, nil
}
