package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// attempt is one try of a call on one server.
type attempt func(context.Context, rowraftv1.TableClient) error

// server is where a try goes.
type server struct {
	node   rowraft.NodeID
	addr   string
	leader rowraft.NodeID    // for which the try is: node itself, unless node is to forward
	home   rowraft.ClusterID // of the call; a server of another cluster refuses it
	// before is the hint when the server was chosen: a later one that names another server
	// is news for the try, whenever it is looked at.
	before   *leaderHint
	mayRelay bool // if the leader cannot be reached
}

// forwards reports that the server is to forward to the leader.
func (at *server) forwards() bool { return at.node != at.leader }

// shardCall runs call on the leader of shard of cluster home, following hints and trying the
// other replicas, until it succeeds, fails for good, ctx ends, or the client is
// closed (errClosed). The error is the last answer; maybe says whether any try may have taken effect.
func (c *Client) shardCall(ctx context.Context, home rowraft.ClusterID, shard rowraft.ShardID, call attempt) (maybe bool, err error) {
	return c.onLeader(ctx, home, shard, callKind{}, func(at server) error { return c.try(ctx, shard, at, call) })
}

// callKind is what onLeader is told of a call.
type callKind struct {
	failFast bool // it ends when the retry budget is spent
	direct   bool // servers do not forward it
}

// onLeader is shardCall of any way to try.
func (c *Client) onLeader(ctx context.Context, home rowraft.ClusterID, shard rowraft.ShardID, kind callKind, try func(at server) error) (maybe bool, err error) {
	b, retries, useHint := route.Backoff{}, c.budget.NewCall(kind.failFast), true
	var last rowraft.NodeID // that answered, or did not
	var gone rowraft.NodeID // that did not
	mayRelay := !kind.direct
	for c.ctx.Err() == nil {
		if err := c.replaced(home); err != nil {
			return maybe, err
		}
		at := c.target(shard, last, useHint, mayRelay)
		at.home, at.mayRelay = home, mayRelay
		node := at.node
		last = node
		begin := time.Now()
		err = try(at)
		if err == nil {
			if !at.forwards() {
				c.inCluster(home, func() { c.confirmLeader(shard, node) })
			}
			retries.Succeeded()
			return false, nil
		}
		code := rowraft.CodeOf(err)
		c.log.Debug("a try failed", "shard", shard, "node", string(node), "code", code.String(), "err", err)
		maybe = maybe || code.MaybeApplied()
		action := route.OnCode(route.Table, code)
		if action == route.Return || action == route.Refresh {
			return maybe, err
		}
		if ctx.Err() != nil {
			break
		}
		useHint = false
		if at.forwards() && action != route.Wait && code != rowraft.CodeTooStale {
			mayRelay = false // until the next call
			c.endRelay(shard, at)
		}
		if action == route.Avoid {
			gone = at.leader
		} else if gone == node {
			gone = ""
		}
		var atLeast time.Duration
		if nl, ok := errors.AsType[*rowraft.NotLeaderError](err); ok {
			c.inCluster(home, func() { c.learnLeader(shard, nl.Leader, nl.Term) })
			// A leader that is known already may have been asked before it could serve.
			hint := c.leaders[shard].Load()
			useHint = nl.Leader != "" && hint != nil && hint.node != at.leader && hint.node != gone
			if mayRelay && gone != "" && nl.Leader == gone && hint != nil && hint.node == gone {
				c.relayBy(shard, gone, node)
			}
			if mayRelay && hint != nil && c.relayOf(shard, hint) != nil {
				useHint = true
				continue
			}
		}
		if errors.Is(err, errCut) && mayRelay {
			useHint = true
			continue
		}
		if c.leaderMoved(shard, at) {
			useHint = true
			c.conns.Reach(ctx, c.hintedAddr(shard))
			continue // follow a new hint at once
		}
		if action == route.Wait {
			useHint, atLeast = true, route.RetryAfter(err)
			if err := retries.Take(ctx, err, c.pause); err != nil {
				return maybe, c.ended(err)
			}
		} else {
			c.askForMap()
		}
		if atLeast == 0 && time.Since(begin) >= route.Longest {
			continue // the server has waited already
		}
		if c.pause(ctx, &b, atLeast) != nil {
			break
		}
	}
	return maybe, c.ended(err)
}

// retryUntilTableKnown makes CodeTableNotFound an answer to try again after, if the map names
// all tables of payload: the scheduler puts a table into the map first, and then
// into every shard.
func (c *Client) retryUntilTableKnown(err error, payload []byte) error {
	if err == nil || rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		return err
	}
	for len(payload) > 0 {
		s, _, rest, perr := wire.ParseSegment(payload)
		if perr != nil || !c.named(s.Table) {
			return err
		}
		payload = rest
	}
	return rowraft.Errorf(rowraft.CodeStarting, "the shard does not have every table of the cluster map yet: %w", err)
}

// named says that the cluster map has the table.
func (c *Client) named(id rowraft.TableID) bool {
	for _, s := range c.cluster.Load().Tables {
		if s.ID == id {
			return true
		}
	}
	return false
}

// errSilent ends a try on a server that does not answer while the shard has found
// another leader.
var errSilent = errors.New("no answer, and another server leads the shard now")

// errCut ends a try on a leader that does not answer here while another server, which can
// forward, names it as the leader.
var errCut = errors.New("no answer, and another server reaches the leader")

func (c *Client) try(ctx context.Context, shard rowraft.ShardID, at server, call attempt) error {
	if at.addr == "" {
		return rowraft.Errorf(rowraft.CodeNoLeader, "the map names no server for this shard")
	}
	conn, err := c.conns.Get(at.addr)
	if err != nil {
		return err
	}
	ctx, timeout := context.WithTimeout(ctx, c.opts.AttemptTimeout)
	defer timeout()
	ctx, cancel := context.WithCancelCause(rpc.WithCluster(ctx, at.home))
	defer cancel(nil)
	defer c.watchSlowAttempt(ctx, cancel, shard, at).Stop()
	if at.forwards() {
		ctx = rpc.AskForward(ctx)
	}
	err = call(ctx, rowraftv1.NewTableClient(conn))
	if cause := context.Cause(ctx); err != nil && (cause == errSilent || cause == errCut) {
		return rowraft.Errorf(rowraft.CodeDeadline, "server %s: %w", at.addr, cause)
	}
	if err != nil {
		return fmt.Errorf("server %s: %w", at.addr, err)
	}
	return nil
}

// A server that was stopped, or whose network is gone, keeps its connections and
// says nothing. After slowTry without an answer the other replicas are asked, every
// leaderPoll, who leads.
const (
	slowTry    = 500 * time.Millisecond
	leaderPoll = 50 * time.Millisecond
)

// watchSlowAttempt watches the leader of a try from slowTry on. Close ends the try then,
// and waits for who watches.
func (c *Client) watchSlowAttempt(ctx context.Context, cancel context.CancelCauseFunc, shard rowraft.ShardID, at server) *time.Timer {
	return time.AfterFunc(slowTry, func() {
		_ = c.spawn(func() { // else the client is closed, and who watches would help nobody
			defer context.AfterFunc(c.ctx, func() { cancel(errClosed) })()
			c.watchLeader(ctx, cancel, shard, at)
		})
	})
}

// watchLeader cancels a try when another server is found to lead the shard since the try's
// server was chosen: of many tries on a silent leader one finds it, and all end. It returns
// when ctx, the try's, ends.
func (c *Client) watchLeader(ctx context.Context, cancel context.CancelCauseFunc, shard rowraft.ShardID, at server) {
	t := time.NewTicker(leaderPoll)
	defer t.Stop()
	if at.mayRelay && !at.forwards() {
		_ = c.spawn(func() { c.findRelay(shard, at.node) })
	}
	for ctx.Err() == nil {
		if c.leaderMoved(shard, at) {
			cancel(errSilent)
			return
		}
		if r := c.relays[shard].Load(); at.mayRelay && r != nil && r.leader == at.node {
			cancel(errCut)
			return
		}
		c.askReplicas(ctx, shard, at.leader)
		if c.leaderMoved(shard, at) {
			continue
		}
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
}

// askReplicas asks the shard's replicas other than node for their leader hints,
// unless another try is at it.
func (c *Client) askReplicas(ctx context.Context, shard rowraft.ShardID, node rowraft.NodeID) {
	if !c.asking[shard].CompareAndSwap(false, true) {
		return
	}
	defer c.asking[shard].Store(false)
	m := c.cluster.Load()
	if int(shard) >= len(m.Shards) {
		return
	}
	for _, r := range m.Shards[shard].Replicas {
		if r.Node == node {
			continue
		}
		if _, err := c.askHint(ctx, r.Node, shard); err != nil {
			c.log.Debug("leader hints", "err", err)
		}
	}
}

// leaderMoved reports that, since the server of a try was chosen, a hint has come that another
// server leads the shard.
func (c *Client) leaderMoved(shard rowraft.ShardID, at server) bool {
	after := c.leaders[shard].Load()
	return after != nil && after != at.before && after.node != at.leader
}

// hintedAddr is the address of the shard's leader, "" if none is known.
func (c *Client) hintedAddr(shard rowraft.ShardID) string {
	if hint := c.leaders[shard].Load(); hint != nil {
		return c.addrOf(hint.node)
	}
	return ""
}

// target picks the server for the next try: the leader hint if wanted and known,
// else the replica after the one that was tried last, so that a server that hangs
// is not asked twice running. Instead of a leader that only a follower reaches it is the
// follower, if mayRelay.
func (c *Client) target(shard rowraft.ShardID, last rowraft.NodeID, useHint, mayRelay bool) server {
	hint := c.leaders[shard].Load()
	m := c.cluster.Load()
	if useHint && hint != nil {
		to := hint.node
		if r := c.relayOf(shard, hint); r != nil && mayRelay {
			to = r.node
		}
		if n, ok := m.Node(to); ok {
			return server{node: n.ID, addr: n.Addr, leader: hint.node, before: hint}
		}
	}
	if int(shard) >= len(m.Shards) || len(m.Shards[shard].Replicas) == 0 {
		return server{before: hint}
	}
	replicas := m.Shards[shard].Replicas
	next := 0
	for i, r := range replicas {
		if r.Node == last {
			next = (i + 1) % len(replicas)
		}
	}
	n, _ := m.Node(replicas[next].Node)
	return server{node: n.ID, addr: n.Addr, leader: n.ID, before: hint}
}

// confirmLeader remembers who answered as the leader; an answer does not tell its term.
func (c *Client) confirmLeader(shard rowraft.ShardID, node rowraft.NodeID) {
	p := &c.leaders[shard]
	old := p.Load()
	if old != nil && old.node == node {
		return
	}
	hint := &leaderHint{node: node, guessed: true}
	if old != nil {
		hint.term = old.term
	}
	p.CompareAndSwap(old, hint)
}

// raise lifts the shard's highest acknowledged index, which later reads ask for.
func (c *Client) raise(shard rowraft.ShardID, index uint64) {
	for {
		old := c.acked[shard].Load()
		if old >= index || c.acked[shard].CompareAndSwap(old, index) {
			return
		}
	}
}
