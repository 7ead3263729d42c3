package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// hedgeAfter is how long a bounded read waits for a server before it asks another one too. A server that was stopped,
// or that lost its network, keeps its connections and sends nothing.
const hedgeAfter = 100 * time.Millisecond

// pullAny asks servers for rows of a shard until one replies. It ends early with an error that every replica
// would return, or when all replicas have been asked and one of them cannot meet the bound. tries is the
// number of requests sent, with first, which was sent before the call; nil: none.
func (c *Client) pullAny(ctx context.Context, home rowraft.ClusterID, shard rowraft.ShardID, turn route.Turn,
	req *rowraftv1.PullRequest, first *firstTry) (reply *rowraftv1.PullReply, tries int, err error) {
	b, retries := route.Backoff{}, c.router.budget.NewCall(c.opts.FailWhenOverloaded)
	if first != nil {
		tries = 1
		defer first.leave()
	}
	for c.ctx.Err() == nil {
		if err := c.cluster.replaced(home); err != nil {
			return nil, tries, err
		}
		round := round{c: c, home: home, shard: shard, turn: turn, req: req, first: first}
		reply, err = round.run(ctx)
		first = nil
		tries += round.tries
		if err == nil {
			retries.Succeeded()
			return reply, tries, nil
		}
		turn = turn.Next()
		action := route.On(route.Replica, err)
		if endsRound(action) || action == route.Next || ctx.Err() != nil { // every replica was asked
			return reply, tries, err
		}
		c.cluster.askForMap()
		if action == route.Wait {
			if err := retries.Take(ctx, err, c.pause); err != nil {
				return nil, tries, c.ended(err)
			}
		}
		if c.pause(ctx, &b, route.RetryAfter(err)) != nil {
			break
		}
	}
	return nil, tries, c.ended(err)
}

// round is one pass over the servers for a shard; it asks each one at most once.
type round struct {
	c     *Client
	home  rowraft.ClusterID
	shard rowraft.ShardID
	turn  route.Turn
	req   *rowraftv1.PullRequest
	first *firstTry // made before the round; nil: none

	left    []rowraft.NodeID // not asked yet
	asked   []rowraft.NodeID // asked, without an answer yet
	results chan tried       // capacity: every server and first, so that a late result blocks no goroutine
	tries   int              // requests that the round has sent
}

type tried struct {
	node  rowraft.NodeID
	reply *rowraftv1.PullReply
	err   error
}

// run returns the first reply. Of several errors that another replica might not return, it returns the most
// useful one (see worse).
func (r *round) run(ctx context.Context) (*rowraftv1.PullReply, error) {
	r.left = r.c.spread.Order(r.c.cluster.Load(), r.shard, r.turn)
	if len(r.left) == 0 {
		return nil, rowraft.Errorf(rowraft.CodeNoLeader, "the map names no server for shard %d", r.shard)
	}
	r.results = make(chan tried, len(r.left)+1)
	began := time.Now()
	if r.first != nil {
		began = r.first.began
	}
	whole := ctx
	ctx, cancel := context.WithDeadline(rpc.WithCluster(ctx, r.home), began.Add(r.c.opts.AttemptTimeout))
	defer cancel()
	hedge := time.NewTicker(hedgeAfter)
	defer hedge.Stop()
	early := r.begin(ctx)
	var worst error
	for len(r.asked) > 0 {
		var a tried
		select {
		case <-hedge.C:
			r.hedge(ctx)
			continue
		case a = <-r.results:
		case a = <-early:
		}
		r.asked = slices.DeleteFunc(r.asked, func(n rowraft.NodeID) bool { return n == a.node })
		if a.err == nil {
			return a.reply, nil
		}
		if endsRound(route.On(route.Replica, a.err)) {
			return nil, a.err
		}
		if whole.Err() == nil {
			r.c.spread.Shun(r.shard, a.node)
		}
		worst = worse(worst, a.err)
		r.ask(ctx)
	}
	return nil, worst
}

// begin asks the first server, unless r.first has done so; it returns the channel for the answer to that.
func (r *round) begin(ctx context.Context) (early <-chan tried) {
	f := r.first
	if f == nil {
		r.c.spread.Read()
		r.ask(ctx)
		return nil
	}
	r.left = slices.DeleteFunc(r.left, func(n rowraft.NodeID) bool { return n == f.at.node })
	r.asked = append(r.asked, f.at.node)
	if f.err != nil {
		r.results <- tried{node: f.at.node, err: f.err}
		return nil
	}
	r.hedge(ctx)
	return f.answer
}

// hedge asks one more server, if the share of hedges allows it.
func (r *round) hedge(ctx context.Context) {
	if len(r.left) > 0 && r.c.spread.MayHedge() {
		for _, node := range r.asked {
			r.c.spread.Shun(r.shard, node)
		}
		r.ask(ctx)
	}
}

// endsRound reports whether every other replica would return the same error.
func endsRound(a route.Action) bool { return a == route.Return || a == route.Refresh }

// ask sends the request to the next replica, if one is left and ctx has not ended. The first request is
// always sent.
func (r *round) ask(ctx context.Context) {
	if len(r.left) == 0 || (r.tries > 0 || r.first != nil) && ctx.Err() != nil {
		return
	}
	node := r.left[0]
	r.left = r.left[1:]
	r.tries++
	r.asked = append(r.asked, node)
	results := r.results
	err := r.c.spawn(func() {
		reply, err := r.c.pullFrom(ctx, node, r.req)
		results <- tried{node, reply, err}
	})
	if err != nil {
		results <- tried{node, nil, err}
	}
}

// pullFrom sends the request to one server.
func (c *Client) pullFrom(ctx context.Context, node rowraft.NodeID,
	req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	addr := c.cluster.addrOf(node)
	if addr == "" {
		return nil, rowraft.Errorf(rowraft.CodeNoLeader, "server %s is not in the cluster map", node)
	}
	conn, err := c.conns.Get(addr)
	if err != nil {
		return nil, err
	}
	reply, err := rowraftv1.NewTableClient(conn).Pull(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", addr, c.cluster.retryUntilTableKnown(err, req.Payload))
	}
	return reply, nil
}

// worse returns the more useful of two errors of a round. A TooStaleError comes before any other error; of
// two, the one from the replica with the lowest age wins.
func worse(a, b error) error {
	sa, staleA := errors.AsType[*rowraft.TooStaleError](a)
	sb, staleB := errors.AsType[*rowraft.TooStaleError](b)
	switch {
	case a == nil:
		return b
	case !staleB:
		return a
	case !staleA:
		return b
	case sb.Age > 0 && (sa.Age == 0 || sb.Age < sa.Age):
		return b
	}
	return a
}
