package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// renewal is how a shardSession continues under another incarnation after the shard has dropped its
// session: the session made room for another client's, or expired.
type renewal struct {
	count   int   // renewals that ended; each batch records the count at which it got its number
	stalled int   // pending batches that wait for a renewal
	running bool  // one of the stalled batches opens the new session
	err     error // the error of the last renewal
}

// numberLocked gives p the next number.
// REQUIRES: ss.mu is held.
func (ss *shardSession) numberLocked(p *batch) {
	p.seq, p.renewals = ss.next, ss.renewal.count
	ss.next++
}

// renew gives p a number in a session of another incarnation. It may do so because three things hold: the
// shard refused p as its session is over, no other try of p may have been applied, and that session never
// opens again. So no copy of p can be applied under its old number.
//
// renew waits until no pending batch of the session can still be applied: each one either has its answer,
// or waits here too. Renumbering earlier could apply a batch twice. Errors: errClosed, or why no session
// could be opened.
func (c *Client) renew(ss *shardSession, p *batch) error {
	ss.mu.Lock()
	ss.renewal.stalled++
	ss.announceLocked()
	ss.mu.Unlock()
	first := false
	err := ss.await(c.ctx, func() bool {
		r := &ss.renewal
		if r.count == p.renewals && r.stalled == ss.pending && !r.running {
			r.running, first = true, true
		}
		return first || r.count != p.renewals
	})
	if err != nil {
		return errClosed
	}
	var inc rowraft.Incarnation
	if first {
		inc, err = c.reopen(ss)
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	defer ss.announceLocked()
	r := &ss.renewal
	r.stalled--
	if first {
		r.running, r.err = false, err
		r.count++
		if err == nil {
			ss.inc, ss.next, ss.floor = inc, 1, 0
			clear(ss.answers)
		}
	}
	if r.err != nil {
		return r.err
	}
	ss.numberLocked(p)
	return nil
}

// reopen opens another session for ss and returns its incarnation.
func (c *Client) reopen(ss *shardSession) (rowraft.Incarnation, error) {
	inc, err := c.issueIncarnation(c.ctx)
	if err != nil {
		return 0, err
	}
	inc, epoch, err := c.openAs(c.ctx, ss.cluster, ss.shard, inc)
	if err != nil {
		return 0, err
	}
	same := false
	if !c.inCluster(ss.cluster, func() { same = c.session.epoch.Load() == epoch }) {
		return 0, c.replaced(ss.cluster)
	}
	if !same {
		return 0, c.otherEpoch(ss.shard, epoch)
	}
	return inc, nil
}

// openAs opens the session of a shard under inc. If the session of that incarnation is already over there,
// openAs uses a new incarnation. It returns the incarnation in use and the table epoch. OpenSession takes
// two calls: the first returns a ticket, the second opens the session with it.
func (c *Client) openAs(ctx context.Context, home rowraft.ClusterID, shard rowraft.ShardID, inc rowraft.Incarnation) (_ rowraft.Incarnation, epoch uint64, err error) {
	for tries := 0; ; tries++ {
		_, err := c.shardCall(ctx, home, shard, func(ctx context.Context, stub stub) error {
			q := &rowraftv1.OpenSessionRequest{Shard: uint32(shard), ClientId: c.opts.ClientID[:], Incarnation: uint64(inc)}
			reply, err := stub.OpenSession(ctx, q)
			if err != nil {
				return err
			}
			q.Ticket = reply.GetTicket()
			reply, err = stub.OpenSession(ctx, q)
			epoch = reply.GetTableEpoch()
			return err
		})
		if err == nil || !sessionEnded(err) || tries == 3 {
			return inc, epoch, err
		}
		if inc, err = c.issueIncarnation(ctx); err != nil {
			return 0, 0, err
		}
	}
}

func (c *Client) otherEpoch(shard rowraft.ShardID, epoch uint64) error {
	return rowraft.Errorf(rowraft.CodeSessionExpired, "open session in shard %d: the session began with tables of epoch %d, a restore has brought those of %d: connect again", shard, c.session.epoch.Load(), epoch)
}

// sessionEnded reports whether err says that the shard has no session any more, for another reason than a
// later client with the same id.
func sessionEnded(err error) bool {
	_, ended := errors.AsType[*rowraft.SessionEndedError](err)
	return ended
}

// issueIncarnation asks the scheduler for an incarnation. If the client is a member of a job, the scheduler
// issues one only while that membership holds: the session of a rank belongs to the worker that has the
// rank now.
func (c *Client) issueIncarnation(ctx context.Context) (inc rowraft.Incarnation, err error) {
	q := &rowraftv1.IssueIncarnationRequest{ClientId: c.opts.ClientID[:]}
	if id := c.session.member.Load(); id != nil {
		q.Job, q.Run, q.Rank, q.Incarnation = id.GetJob(), id.GetRun(), id.GetRank(), id.GetIncarnation()
	}
	// Only other servers may be able to reach the scheduler's leader.
	err = c.schedulerCall(rpc.AskForward(ctx), "get an incarnation", func(ctx context.Context, stub rowraftv1.ClusterClient) error {
		ctx, cancel := context.WithTimeout(ctx, c.opts.AttemptTimeout)
		defer cancel()
		reply, err := stub.IssueIncarnation(ctx, q)
		inc = rowraft.Incarnation(reply.GetIncarnation())
		return err
	})
	return inc, err
}

// closeWithin is how long Close waits for shards to close the sessions.
const closeWithin = time.Second

// closeSessions closes this client's session in every shard. It tries for closeWithin only: a session that
// stays open expires, or makes room for others once it is idle. REQUIRES: no batch is being sent any more.
func (c *Client) closeSessions() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	var wg sync.WaitGroup
	for shard, st := range c.shards.all() {
		if ss := st.session.Load(); ss != nil {
			wg.Go(func() {
				if err := c.closeSession(ctx, shard, ss); err != nil {
					c.log.Debug("close session", "shard", shard, "err", err)
				}
			})
		}
	}
	wg.Wait()
}

func (c *Client) closeSession(ctx context.Context, shard rowraft.ShardID, ss *shardSession) (err error) {
	inc, _ := ss.present()
	q := &rowraftv1.CloseSessionRequest{Shard: uint32(shard), ClientId: c.opts.ClientID[:], Incarnation: inc}
	var to server
	for hint, tries := true, 0; tries < 4 && ctx.Err() == nil; tries++ {
		to = c.target(shard, to.node, hint, true)
		conn, cerr := c.conns.Get(to.addr)
		if cerr != nil {
			return fmt.Errorf("server %s: %w", to.addr, cerr)
		}
		attempt, cancel := context.WithTimeout(rpc.WithCluster(ctx, ss.cluster), closeWithin/2) // the server may hang
		if to.forwards() {
			attempt = rpc.AskForward(attempt)
		}
		_, err = rowraftv1.NewTableClient(conn).CloseSession(attempt, q)
		cancel()
		if err == nil || route.On(route.Table, err) == route.Return {
			return err
		}
		hint = false
		if nl, ok := errors.AsType[*rowraft.NotLeaderError](err); ok && nl.Leader != "" && nl.Leader != to.node {
			c.learnLeader(shard, nl.Leader, nl.Term)
			hint = true
		}
	}
	return err
}
