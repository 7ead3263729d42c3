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
type attempt func(context.Context, stub) error

// server is where a try goes.
type server struct {
	node   rowraft.NodeID
	addr   string
	leader rowraft.NodeID    // the leader that the try is meant for: node itself, unless node is to forward
	home   rowraft.ClusterID // of the call; a server of another cluster refuses it
	// before is the leader hint when the server was chosen. A later hint that names another
	// server ends the try (leaderMoved).
	before   *leaderHint
	mayRelay bool // if the leader cannot be reached
}

// forwards reports whether the server is to forward the call to the leader.
func (at *server) forwards() bool { return at.node != at.leader }

// shardCall runs call on the leader of shard of cluster home. It follows hints and tries the other replicas
// until call succeeds or fails for good, ctx ends, or the client closes (errClosed). err is that of the
// last try; maybe reports whether any try may have taken effect.
func (c *Client) shardCall(ctx context.Context, home rowraft.ClusterID, shard rowraft.ShardID, call attempt) (maybe bool, err error) {
	return c.onLeader(ctx, home, shard, callKind{}, func(at server) error { return c.try(ctx, shard, at, call) })
}

// callKind holds the options of a call of onLeader.
type callKind struct {
	failFast bool // it ends when the retry budget is spent
	direct   bool // servers do not forward it
}

// onLeader chooses a server for each try and calls try with it, until try returns nil, an error
// is for the caller (route.Return, route.Refresh), ctx ends, or the client is closed. The action
// of layer route.Table decides what follows an error. Results as in shardCall.
func (c *Client) onLeader(ctx context.Context, home rowraft.ClusterID, shard rowraft.ShardID, kind callKind, try func(at server) error) (maybe bool, err error) {
	b, retries, useHint := route.Backoff{}, c.budget.NewCall(kind.failFast), true
	var last rowraft.NodeID // the node of the last try
	var gone rowraft.NodeID // the leader that a try did not reach (route.Avoid)
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
			// The named leader may be the server just asked, which could not serve yet: do not follow that
			// hint at once.
			hint := c.shards.at(shard).leader.Load()
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
			continue // the server held the call for as long as the longest pause
		}
		if c.pause(ctx, &b, atLeast) != nil {
			break
		}
	}
	return maybe, c.ended(err)
}

// retryUntilTableKnown replaces CodeTableNotFound by CodeStarting, so that the call is tried
// again, if the map has all tables of payload: the scheduler puts a table into the map first
// and into every shard afterwards.
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

// named reports whether the cluster map has the table.
func (c *Client) named(id rowraft.TableID) bool {
	for _, s := range c.cluster.Load().Tables {
		if s.ID == id {
			return true
		}
	}
	return false
}

// errSilent ends a try on a server that does not answer while the shard has another leader.
var errSilent = errors.New("no answer, and another server leads the shard now")

// errCut ends a try on a leader that does not answer this client, while another server names
// it as the leader and can forward to it.
var errCut = errors.New("no answer, and another server reaches the leader")

// try is one attempt of call on the server at, within AttemptTimeout. watchSlowAttempt may end
// it earlier.
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
	err = call(ctx, stub{rowraftv1.NewTableClient(conn), at})
	if cause := context.Cause(ctx); err != nil && (cause == errSilent || cause == errCut) {
		return rowraft.Errorf(rowraft.CodeDeadline, "server %s: %w", at.addr, cause)
	}
	if err != nil {
		return fmt.Errorf("server %s: %w", at.addr, err)
	}
	return nil
}

// A suspended server, or one without a network, keeps its connections and does not answer. After
// slowTry without an answer the client asks the other replicas, every leaderPoll, which one
// leads.
const (
	slowTry    = 500 * time.Millisecond
	leaderPoll = 50 * time.Millisecond
)

// watchSlowAttempt starts watchLeader when the try has taken slowTry. From then on Close ends the
// try, and waits for the goroutine that watches.
func (c *Client) watchSlowAttempt(ctx context.Context, cancel context.CancelCauseFunc, shard rowraft.ShardID, at server) *time.Timer {
	return time.AfterFunc(slowTry, func() {
		_ = c.spawn(func() { // an error means that the client is closed, and the try ends anyway
			defer context.AfterFunc(c.ctx, func() { cancel(errClosed) })()
			c.watchLeader(ctx, cancel, shard, at)
		})
	})
}

// watchLeader cancels a try when a hint has come, since the try's server was chosen, that another
// server leads the shard. Hints are shared: if one of many tries on a silent leader finds the new
// one, all end. watchLeader returns when ctx, that of the try, ends.
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
		if r := c.shards.at(shard).relay.Load(); at.mayRelay && r != nil && r.leader == at.node {
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

// askReplicas asks the shard's replicas other than node for their leader hints, unless another try already
// does.
func (c *Client) askReplicas(ctx context.Context, shard rowraft.ShardID, node rowraft.NodeID) {
	if !c.shards.at(shard).asking.CompareAndSwap(false, true) {
		return
	}
	defer c.shards.at(shard).asking.Store(false)
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

// leaderMoved reports whether a hint that names another leader has come since the server of a try was
// chosen.
func (c *Client) leaderMoved(shard rowraft.ShardID, at server) bool {
	after := c.shards.at(shard).leader.Load()
	return after != nil && after != at.before && after.node != at.leader
}

// hintedAddr returns the address of the shard's leader; "" if it is unknown.
func (c *Client) hintedAddr(shard rowraft.ShardID) string {
	if hint := c.shards.at(shard).leader.Load(); hint != nil {
		return c.addrOf(hint.node)
	}
	return ""
}

// target returns the server for the next try: the hinted leader if useHint is set and there is a hint, else
// the replica after the last one tried, so that a server that hangs is not asked twice in a row. If
// mayRelay is set and only a follower reaches the leader, target returns that follower.
func (c *Client) target(shard rowraft.ShardID, last rowraft.NodeID, useHint, mayRelay bool) server {
	hint := c.shards.at(shard).leader.Load()
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

// confirmLeader stores that node answered as the leader. An answer has no term, so the hint
// keeps the term of the one before.
func (c *Client) confirmLeader(shard rowraft.ShardID, node rowraft.NodeID) {
	p := &c.shards.at(shard).leader
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

// raise raises the shard's highest acknowledged index, which later reads name as their minimum.
func (c *Client) raise(shard rowraft.ShardID, index uint64) {
	for {
		old := c.shards.at(shard).acked.Load()
		if old >= index || c.shards.at(shard).acked.CompareAndSwap(old, index) {
			return
		}
	}
}
