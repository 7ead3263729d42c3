package client

import (
	"context"
	"sync"

	"github.com/rowraft/rowraft"
)

// shardSession numbers the batches for one shard.
type shardSession struct {
	cluster     rowraft.ClusterID
	shard       rowraft.ShardID
	maxInFlight int
	closed      <-chan struct{} // the client's

	mu      sync.Mutex
	inc     rowraft.Incarnation
	renewal renewal
	next    rowraft.Seq
	floor   rowraft.Seq              // every number up to it has a result
	ended   map[rowraft.Seq]struct{} // numbers above floor that have a result
	pending int                      // batches with a number and without a result
	queued  int                      // batches that take their number on their own goroutine
	changed chan struct{}            // closed at the next change; nil if no goroutine waits in waitUntil
}

// window is how far a number may be above the floor. The shard remembers the results of 1,024
// numbers above it and refuses a number beyond.
const window = 1000

// take waits until the session may give a number, and gives b the next one.
func (ss *shardSession) take(ctx context.Context, b *batch) error {
	err := ss.waitUntil(ctx, func() bool { return ss.takeLocked(b) })
	if err == nil || err == errClosed {
		return err
	}
	return rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: too many unacknowledged pushes: %w", b.shard, err)
}

// tryTake is take that does not wait. It reports whether b has a number.
func (ss *shardSession) tryTake(b *batch) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.takeLocked(b)
}

// takeLocked gives b the next number if fewer than maxInFlight batches are without a result and the number is
// within window. It reports whether it did.
// REQUIRES: ss.mu is held.
func (ss *shardSession) takeLocked(b *batch) bool {
	if ss.renewal.stalled > 0 || ss.pending >= ss.maxInFlight || ss.next > ss.floor+window {
		return false
	}
	b.seq, b.renewals = ss.next, ss.renewal.count
	ss.next++
	ss.pending++
	if b.queued {
		ss.queued--
	}
	return true
}

// queue counts a batch that gets its number later.
func (ss *shardSession) queue(b *batch) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	b.queued = true
	ss.queued++
}

// unqueue removes a queued batch that will not be sent from the count.
func (ss *shardSession) unqueue() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.queued--
	ss.wakeLocked()
}

// waitUntil calls ready, under mu, now and after every change of the session, until ready returns
// true, ctx ends, or the client is closed (errClosed).
func (ss *shardSession) waitUntil(ctx context.Context, ready func() bool) error {
	for {
		ss.mu.Lock()
		if ready() {
			ss.mu.Unlock()
			return nil
		}
		if ss.changed == nil {
			ss.changed = make(chan struct{})
		}
		changed := ss.changed
		ss.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-ss.closed:
			return errClosed
		}
	}
}

// end records that seq has a result and raises the floor.
func (ss *shardSession) end(seq rowraft.Seq) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.ended[seq] = struct{}{}
	for {
		if _, ok := ss.ended[ss.floor+1]; !ok {
			break
		}
		delete(ss.ended, ss.floor+1)
		ss.floor++
	}
	ss.pending--
	ss.wakeLocked()
}

// wakeLocked wakes the callers of waitUntil.
// REQUIRES: ss.mu is held.
func (ss *shardSession) wakeLocked() {
	if ss.changed != nil {
		close(ss.changed)
		ss.changed = nil
	}
}

// present returns the incarnation and the floor.
func (ss *shardSession) present() (inc, floor uint64) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return uint64(ss.inc), uint64(ss.floor)
}

// idle waits until every batch has a result.
func (ss *shardSession) idle(ctx context.Context) error {
	return ss.waitUntil(ctx, func() bool { return ss.pending == 0 && ss.queued == 0 })
}
