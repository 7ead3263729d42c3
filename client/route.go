package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/wave"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// stub is the server of a try.
type stub = wave.Server

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

// router finds the leader of each shard, and remembers it.
type router struct {
	*lifetime
	log     *slog.Logger
	conns   *route.Pool
	cluster *cluster
	attempt time.Duration // Options.AttemptTimeout
	budget  route.Budget  // of retries
	leaders perShard[leaderState]
}

// leaderState is what the router knows of the leader of one shard.
type leaderState struct {
	leader  atomic.Pointer[leaderHint]
	relay   atomic.Pointer[relay]
	probing atomic.Bool // at most one goroutine looks for a relay
	asking  atomic.Bool // at most one goroutine asks the replicas for the leader
}

type leaderHint struct {
	node rowraft.NodeID
	term rowraft.Term
	// guessed means that node answered as the leader does, but its term is unknown: an answer does not
	// carry the term. The answer may be old, so learnLeader replaces a guessed hint by any hint of the same
	// term.
	guessed bool
}

// dropCluster drops what the router knows of its cluster.
func (r *router) dropCluster() {
	for _, st := range r.leaders.all() {
		st.leader.Store(nil)
		st.relay.Store(nil)
	}
}

// call runs do on the leader of shard of cluster home. It follows hints and tries the other replicas
// until do succeeds or fails for good, ctx ends, or the client closes (errClosed). err is that of the
// last try; maybe reports whether any try may have taken effect.
func (r *router) call(ctx context.Context, home rowraft.ClusterID, shard rowraft.ShardID,
	do attempt) (maybe bool, err error) {
	return r.onLeader(ctx, home, shard, callKind{}, func(at server) error { return r.try(ctx, shard, at, do) })
}

// callKind holds the options of a call of onLeader.
type callKind struct {
	failFast bool      // it ends when the retry budget is spent
	direct   bool      // servers do not forward it
	first    *firstTry // the first try, which failed before this call; nil: there was none
}

// firstTry is a try that was made in a call shared with other shards. If it failed, err is set. A try without err is a
// bounded read that still runs: answer receives its result. leave removes it from the call.
type firstTry struct {
	at     server
	began  time.Time
	err    error
	answer chan tried
	leave  func()
}

// onLeader chooses a server for each try and calls try with it, until try returns nil, an error
// is for the caller (route.Return, route.Refresh), ctx ends, or the client is closed. The action
// of layer route.Table decides what follows an error. Results as in call.
func (r *router) onLeader(ctx context.Context, home rowraft.ClusterID, shard rowraft.ShardID, kind callKind,
	try func(at server) error) (maybe bool, err error) {
	b, retries, useHint := route.Backoff{}, r.budget.NewCall(kind.failFast), true
	var last rowraft.NodeID // the node of the last try
	var gone rowraft.NodeID // the leader that a try did not reach (route.Avoid)
	mayRelay := !kind.direct
	for r.ctx.Err() == nil {
		if err := r.cluster.replaced(home); err != nil {
			return maybe, err
		}
		var at server
		begin := time.Now()
		if kind.first != nil {
			at, begin, err, kind.first = kind.first.at, kind.first.began, kind.first.err, nil
		} else {
			at = r.target(shard, last, useHint, mayRelay)
			at.home, at.mayRelay = home, mayRelay
			err = try(at)
		}
		node := at.node
		last = node
		if err == nil {
			if !at.forwards() {
				r.answered(home, shard, node)
			}
			retries.Succeeded()
			return false, nil
		}
		code := rowraft.CodeOf(err)
		r.log.Debug("a try failed", "shard", shard, "server", string(node), "code", code.String(), "err", err)
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
			r.endRelay(shard, at)
		}
		if action == route.Avoid {
			gone = at.leader
		} else if gone == node {
			gone = ""
		}
		var atLeast time.Duration
		if nl, ok := errors.AsType[*rowraft.NotLeaderError](err); ok {
			r.cluster.within(home, func() { r.learnLeader(shard, nl.Leader, nl.Term) })
			// The named leader may be the server just asked, which could not serve yet: do not follow that
			// hint at once.
			hint := r.leaders.at(shard).leader.Load()
			useHint = nl.Leader != "" && hint != nil && hint.node != at.leader && hint.node != gone
			if mayRelay && gone != "" && nl.Leader == gone && hint != nil && hint.node == gone {
				r.relayBy(shard, gone, node)
			}
			if mayRelay && hint != nil && r.relayOf(shard, hint) != nil {
				useHint = true
				continue
			}
		}
		if errors.Is(err, errCut) && mayRelay {
			useHint = true
			continue
		}
		if r.leaderMoved(shard, at) {
			useHint = true
			r.conns.Reach(ctx, r.hintedAddr(shard))
			continue // follow a new hint at once
		}
		if action == route.Wait {
			useHint, atLeast = true, route.RetryAfter(err)
			if err := retries.Take(ctx, err, r.pause); err != nil {
				return maybe, r.ended(err)
			}
		} else {
			r.cluster.askForMap()
		}
		if atLeast == 0 && time.Since(begin) >= route.Longest {
			continue // the server held the call for as long as the longest pause
		}
		if r.pause(ctx, &b, atLeast) != nil {
			break
		}
	}
	return maybe, r.ended(err)
}

// errSilent ends a try on a server that does not answer while the shard has another leader.
var errSilent = errors.New("no answer, and another server leads the shard now")

// errCut ends a try on a leader that does not answer this client, while another server names
// it as the leader and can forward to it.
var errCut = errors.New("no answer, and another server reaches the leader")

// try is one attempt of call on the server at, within AttemptTimeout. watchSlowAttempt may end
// it earlier.
func (r *router) try(ctx context.Context, shard rowraft.ShardID, at server, call attempt) error {
	if at.addr == "" {
		return rowraft.Errorf(rowraft.CodeNoLeader, "the map names no server for this shard")
	}
	conn, err := r.conns.Get(at.addr)
	if err != nil {
		return err
	}
	ctx, timeout := context.WithTimeout(ctx, r.attempt)
	defer timeout()
	ctx, cancel := context.WithCancelCause(rpc.WithCluster(ctx, at.home))
	defer cancel(nil)
	defer r.watchSlowAttempt(ctx, cancel, shard, at).Stop()
	if at.forwards() {
		ctx = rpc.AskForward(ctx)
	}
	err = call(ctx, stub{TableClient: rowraftv1.NewTableClient(conn), Addr: at.addr, Relayed: at.forwards()})
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
func (r *router) watchSlowAttempt(ctx context.Context, cancel context.CancelCauseFunc, shard rowraft.ShardID,
	at server) *time.Timer {
	return time.AfterFunc(slowTry, func() {
		_ = r.spawn(func() { // an error means that the client is closed, and the try ends anyway
			defer context.AfterFunc(r.ctx, func() { cancel(errClosed) })()
			r.watchLeader(ctx, cancel, shard, at)
		})
	})
}

// watchLeader cancels a try when a hint has come, since the try's server was chosen, that another
// server leads the shard. Hints are shared: if one of many tries on a silent leader finds the new
// one, all end. watchLeader returns when ctx, that of the try, ends.
func (r *router) watchLeader(ctx context.Context, cancel context.CancelCauseFunc, shard rowraft.ShardID, at server) {
	t := time.NewTicker(leaderPoll)
	defer t.Stop()
	if at.mayRelay && !at.forwards() {
		_ = r.spawn(func() { r.findRelay(shard, at.node) })
	}
	for ctx.Err() == nil {
		if r.leaderMoved(shard, at) {
			cancel(errSilent)
			return
		}
		if by := r.leaders.at(shard).relay.Load(); at.mayRelay && by != nil && by.leader == at.node {
			cancel(errCut)
			return
		}
		r.askReplicas(ctx, shard, at.leader)
		if r.leaderMoved(shard, at) {
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
func (r *router) askReplicas(ctx context.Context, shard rowraft.ShardID, node rowraft.NodeID) {
	if !r.leaders.at(shard).asking.CompareAndSwap(false, true) {
		return
	}
	defer r.leaders.at(shard).asking.Store(false)
	m := r.cluster.Load()
	if int(shard) >= len(m.Shards) {
		return
	}
	for _, replica := range m.Shards[shard].Replicas {
		if replica.Node == node {
			continue
		}
		if _, err := r.askHint(ctx, replica.Node, shard); err != nil {
			r.log.Debug("leader hints", "err", err)
		}
	}
}

// leaderMoved reports whether a hint that names another leader has come since the server of a try was
// chosen.
func (r *router) leaderMoved(shard rowraft.ShardID, at server) bool {
	after := r.leaders.at(shard).leader.Load()
	return after != nil && after != at.before && after.node != at.leader
}

// hintedAddr returns the address of the shard's leader; "" if it is unknown.
func (r *router) hintedAddr(shard rowraft.ShardID) string {
	if hint := r.leaders.at(shard).leader.Load(); hint != nil {
		return r.cluster.addrOf(hint.node)
	}
	return ""
}

// target returns the server for the next try: the hinted leader if useHint is set and there is a hint, else
// the replica after the last one tried, so that a server that hangs is not asked twice in a row. If
// mayRelay is set and only a follower reaches the leader, target returns that follower.
func (r *router) target(shard rowraft.ShardID, last rowraft.NodeID, useHint, mayRelay bool) server {
	hint := r.leaders.at(shard).leader.Load()
	m := r.cluster.Load()
	if useHint && hint != nil {
		to := hint.node
		if by := r.relayOf(shard, hint); by != nil && mayRelay {
			to = by.node
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

// answered records that node answered for a shard of cluster home.
func (r *router) answered(home rowraft.ClusterID, shard rowraft.ShardID, node rowraft.NodeID) {
	if hint := r.leaders.at(shard).leader.Load(); hint == nil || hint.node != node {
		r.cluster.within(home, func() { r.noteLeader(shard, node) })
	}
}

// noteLeader stores that node answered as the leader. An answer has no term, so the hint
// keeps the term of the one before.
func (r *router) noteLeader(shard rowraft.ShardID, node rowraft.NodeID) {
	p := &r.leaders.at(shard).leader
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

// learnLeader stores the hint unless the current one has a higher term, or the same term and is not
// guessed.
func (r *router) learnLeader(shard rowraft.ShardID, node rowraft.NodeID, term rowraft.Term) {
	if shard >= clustermap.MaxShards || node == "" {
		return
	}
	p := &r.leaders.at(shard).leader
	for {
		old := p.Load()
		if old != nil && (old.term > term || old.term == term && !old.guessed) {
			return
		}
		if p.CompareAndSwap(old, &leaderHint{node: node, term: term}) {
			return
		}
	}
}
