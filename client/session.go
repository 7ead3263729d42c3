package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// session is this client's incarnation and its state per shard.
type session struct {
	opening chan struct{} // token: one goroutine at a time opens sessions
	inc     rowraft.Incarnation
	epoch   atomic.Uint64 // of the tables it was opened for; 0 before
	shards  [clustermap.MaxShards]atomic.Pointer[shardSession]
}

func (s *session) init() { s.opening = make(chan struct{}, 1) }

// shardSession numbers the parts for one shard.
type shardSession struct {
	inc         rowraft.Incarnation
	maxInFlight int
	closed      <-chan struct{} // the client's

	mu      sync.Mutex
	next    rowraft.Seq
	floor   rowraft.Seq // every number up to it has been answered
	answers map[rowraft.Seq]struct{}
	pending int
	changed chan struct{} // closed at the next answer; nil if nobody waits
}

// window is how far a number may be above the floor; the shard remembers 1,024.
const window = 1000

// openSession returns the session of a shard, opening it at the first push:
// incarnation from the scheduler, then an entry in the shard's log.
func (c *Client) openSession(ctx context.Context, shard rowraft.ShardID) (*shardSession, error) {
	if ss := c.session.shards[shard].Load(); ss != nil {
		return ss, nil
	}
	select {
	case c.session.opening <- struct{}{}:
		defer func() { <-c.session.opening }()
	case <-ctx.Done():
		return nil, rowraft.Errorf(rowraft.CodeNoLeader, "open session: %w", ctx.Err())
	case <-c.ctx.Done():
		return nil, errClosed
	}
	if ss := c.session.shards[shard].Load(); ss != nil {
		return ss, nil
	}
	if c.session.inc == 0 {
		err := c.schedulerCall(ctx, "open session", func(ctx context.Context, stub rowraftv1.ClusterClient) error {
			reply, err := stub.IssueIncarnation(ctx, &rowraftv1.IssueIncarnationRequest{ClientId: c.opts.ClientID[:]})
			c.session.inc = rowraft.Incarnation(reply.GetIncarnation())
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	var epoch uint64
	_, err := c.shardCall(ctx, shard, func(ctx context.Context, stub rowraftv1.TableClient) error {
		reply, err := stub.OpenSession(ctx, &rowraftv1.OpenSessionRequest{Shard: uint32(shard), ClientId: c.opts.ClientID[:], Incarnation: uint64(c.session.inc)})
		epoch = reply.GetTableEpoch()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open session in shard %d: %w", shard, err)
	}
	if !c.session.epoch.CompareAndSwap(0, epoch) && c.session.epoch.Load() != epoch {
		return nil, rowraft.Errorf(rowraft.CodeSessionExpired, "open session in shard %d: the session began with tables of epoch %d, a restore has brought those of %d: connect anew", shard, c.session.epoch.Load(), epoch)
	}
	ss := &shardSession{inc: c.session.inc, maxInFlight: c.opts.MaxInFlight, closed: c.ctx.Done(), next: 1, answers: make(map[rowraft.Seq]struct{})}
	c.session.shards[shard].Store(ss)
	return ss, nil
}

// take waits for a free place and gives p its number.
func (ss *shardSession) take(ctx context.Context, p *part) error {
	err := ss.await(ctx, func() bool {
		if ss.pending >= ss.maxInFlight || ss.next > ss.floor+window {
			return false
		}
		p.seq = ss.next
		ss.next++
		ss.pending++
		return true
	})
	if err == errClosed {
		return err
	}
	if err != nil {
		return rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: too many unacknowledged pushes: %w", p.shard, err)
	}
	return nil
}

// await calls ready, under mu, now and after every answer until it returns true
// ctx ends, or the client is closed (errClosed).
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

// answered records a definite answer to seq and moves the floor.
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
	if ss.changed != nil {
		close(ss.changed)
		ss.changed = nil
	}
}

func (ss *shardSession) floorNow() rowraft.Seq {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.floor
}

// idle waits until every part has an answer.
func (ss *shardSession) idle(ctx context.Context) error {
	return ss.await(ctx, func() bool { return ss.pending == 0 })
}
