package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// session is this client's incarnation and its state per shard.
type session struct {
	naming   ctxMutex // guards inc, cluster and the client id
	inc      rowraft.Incarnation
	cluster  rowraft.ClusterID                     // the cluster whose scheduler issued inc
	member   atomic.Pointer[rowraftv1.JobIdentity] // the client's membership of a job; nil: none
	left     []*shardSession                       // of clusters that the client has left; guarded by Client.endpoints
	underway atomic.Int32                          // openings in progress: inc and the client id must not change then

	epoch atomic.Uint64 // epoch of the tables that the session is for; 0: no session yet
}

// ctxMutex is a mutex of capacity 1 whose lock ends with a context.
type ctxMutex chan struct{}

// lock waits until m is free, ctx ends, or the client is closed (errClosed).
func (c *Client) lock(ctx context.Context, m ctxMutex) error {
	select {
	case m <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return errClosed
	}
}

func (m ctxMutex) unlock() { <-m }

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
	answers map[rowraft.Seq]struct{} // numbers above floor that have a result
	pending int                      // batches with a number and without a result
	queued  int                      // batches that take their number on their own goroutine
	changed chan struct{}            // closed at the next change; nil if no goroutine waits in await
}

// window is how far a number may be above the floor. The shard remembers the results of 1,024
// numbers above it and refuses a number beyond.
const window = 1000

// openSessions opens, concurrently, the sessions that batches need and the client does not
// have. It runs before any batch is sent, so the code of its error says that nothing was
// applied, also where the code of the failed call leaves that open.
func (c *Client) openSessions(ctx context.Context, batches []*batch) error {
	var missing []rowraft.ShardID
	for _, p := range batches {
		if c.shards.at(p.shard).session.Load() == nil && !slices.Contains(missing, p.shard) {
			missing = append(missing, p.shard)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	g, opening := errgroup.WithContext(ctx)
	for _, shard := range missing {
		g.Go(func() error {
			_, err := c.openSession(opening, shard)
			return err
		})
	}
	err := g.Wait()
	switch code := rowraft.CodeOf(err); {
	case err == nil || code == rowraft.CodeClosing:
		return err
	case ctx.Err() != nil || code.Retryable():
		return rowraft.Errorf(rowraft.CodeNotSent, "nothing was sent, because the client had no session before the call ended; the call can be made again: %w", err)
	case code.MaybeApplied(): // for example SessionExpired: another call cannot succeed either
		return rowraft.Errorf(rowraft.CodePrecondition, "nothing was sent: %w", err)
	}
	return err
}

// openSession returns the session of a shard. It opens the session at the first push: the scheduler issues
// the incarnation, and an entry in the shard's log opens the session. Openings in different shards run
// concurrently.
func (c *Client) openSession(ctx context.Context, shard rowraft.ShardID) (*shardSession, error) {
	at := c.shards.at(shard)
	if ss := at.session.Load(); ss != nil {
		return ss, nil
	}
	if err := c.lock(ctx, at.opening); err != nil {
		return nil, fmt.Errorf("open session in shard %d: %w", shard, err)
	}
	defer at.opening.unlock()
	if ss := at.session.Load(); ss != nil {
		return ss, nil
	}
	home := c.cluster.Load().Cluster
	inc, err := c.beginOpening(ctx, home)
	if err != nil {
		return nil, fmt.Errorf("open session in shard %d: %w", shard, err)
	}
	defer c.session.underway.Add(-1)
	inc, epoch, err := c.openAs(ctx, home, shard, inc)
	if err != nil {
		return nil, fmt.Errorf("open session in shard %d: %w", shard, err)
	}
	ss := &shardSession{cluster: home, shard: shard, inc: inc, maxInFlight: c.opts.MaxInFlight, closed: c.ctx.Done(), next: 1, answers: make(map[rowraft.Seq]struct{})}
	same := false
	if !c.inCluster(home, func() {
		if same = c.session.epoch.CompareAndSwap(0, epoch) || c.session.epoch.Load() == epoch; same {
			at.session.Store(ss)
		}
	}) {
		return nil, c.replaced(home)
	}
	if !same {
		return nil, c.otherEpoch(shard, epoch)
	}
	return ss, nil
}

// beginOpening returns the client's incarnation in a cluster and counts an opening in underway. For the
// first session, the cluster's scheduler issues the incarnation.
func (c *Client) beginOpening(ctx context.Context, home rowraft.ClusterID) (rowraft.Incarnation, error) {
	if err := c.lock(ctx, c.session.naming); err != nil {
		return 0, err
	}
	defer c.session.naming.unlock()
	if c.session.inc == 0 || c.session.cluster != home {
		if c.session.cluster != home {
			c.session.member.Store(nil) // it belonged to a job of another cluster
		}
		inc, err := c.issueIncarnation(ctx)
		if err != nil {
			return 0, err
		}
		c.session.inc, c.session.cluster = inc, home
	}
	c.session.underway.Add(1)
	return c.session.inc, nil
}

// allSessions lists the sessions that may have batches without a result.
func (c *Client) allSessions() (out []*shardSession) {
	c.endpoints.RLock()
	defer c.endpoints.RUnlock()
	for _, st := range c.shards.all() {
		if ss := st.session.Load(); ss != nil {
			out = append(out, ss)
		}
	}
	return append(out, c.session.left...)
}

// take waits until the session may give a number, and gives p the next one.
func (ss *shardSession) take(ctx context.Context, p *batch) error {
	err := ss.await(ctx, func() bool { return ss.takeLocked(p) })
	if err == errClosed {
		return err
	}
	if err != nil {
		return rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: too many unacknowledged pushes: %w", p.shard, err)
	}
	return nil
}

// tryTake is take that does not wait. It reports whether p has a number.
func (ss *shardSession) tryTake(p *batch) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.takeLocked(p)
}

// takeLocked gives p a number if fewer than maxInFlight batches are without a result and the number is
// within window.
// REQUIRES: ss.mu is held.
func (ss *shardSession) takeLocked(p *batch) bool {
	if ss.renewal.stalled > 0 || ss.pending >= ss.maxInFlight || ss.next > ss.floor+window {
		return false
	}
	ss.numberLocked(p)
	ss.pending++
	if p.queued {
		ss.queued--
	}
	return true
}

// queue counts a batch that gets its number later.
func (ss *shardSession) queue(p *batch) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	p.queued = true
	ss.queued++
}

// unqueue removes a queued batch that will not be sent from the count.
func (ss *shardSession) unqueue() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.queued--
	ss.announceLocked()
}

// await calls ready, under mu, now and after every change of the session, until ready returns
// true, ctx ends, or the client is closed (errClosed).
func (ss *shardSession) await(ctx context.Context, ready func() bool) error {
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

// answered records that seq has a result and raises the floor.
func (ss *shardSession) answered(seq rowraft.Seq) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.answers[seq] = struct{}{}
	for {
		if _, ok := ss.answers[ss.floor+1]; !ok {
			break
		}
		delete(ss.answers, ss.floor+1)
		ss.floor++
	}
	ss.pending--
	ss.announceLocked()
}

// announceLocked wakes the waiters of await.
// REQUIRES: ss.mu is held.
func (ss *shardSession) announceLocked() {
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
	return ss.await(ctx, func() bool { return ss.pending == 0 && ss.queued == 0 })
}
