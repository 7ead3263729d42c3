package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/wave"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	// hedgeAfter is how long a bounded read waits for a replica before it asks another one too. A server
	// that was stopped, or that lost its network, keeps its connections and sends nothing.
	hedgeAfter = 100 * time.Millisecond
	// hedgeEvery limits such reads to one in hedgeEvery, so that a cluster that is slow from overload does
	// not get twice the load. hedgeBurst of them may come at once.
	hedgeEvery = 10
	hedgeBurst = 20
	// shunFor is how long a replica that failed a bounded read comes last in the order.
	shunFor = 2 * time.Second
)

// spread selects the replicas for bounded reads.
type spread struct {
	next  atomic.Uint32 // index of the replica for the next read
	saved atomic.Int64  // reads since the last hedge, at most hedgeEvery × hedgeBurst

	mu   sync.Mutex
	bad  map[badReplica]time.Time // end of the time in which the replica comes last
	when time.Time                // last removal of old entries from bad
}

type badReplica struct {
	shard rowraft.ShardID
	node  rowraft.NodeID
}

func (s *spread) shun(shard rowraft.ShardID, node rowraft.NodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.bad == nil {
		s.bad = make(map[badReplica]time.Time)
	}
	if now.Sub(s.when) > time.Minute {
		for k, until := range s.bad {
			if now.After(until) {
				delete(s.bad, k)
			}
		}
		s.when = now
	}
	s.bad[badReplica{shard, node}] = now.Add(shunFor)
}

func (s *spread) shunned(shard rowraft.ShardID, node rowraft.NodeID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.bad[badReplica{shard, node}]
	return ok && time.Now().Before(until)
}

// mayHedge takes one hedge from the saved reads. It returns false if there are too few.
func (s *spread) mayHedge() bool {
	for {
		have := s.saved.Load()
		if have < hedgeEvery {
			return false
		}
		if s.saved.CompareAndSwap(have, have-hedgeEvery) {
			return true
		}
	}
}

func (s *spread) read() {
	if s.saved.Load() < hedgeEvery*hedgeBurst {
		s.saved.Add(1)
	}
}

// readers lists the replicas of a shard in the order in which a bounded read asks them. Each read begins
// with the next replica; replicas that failed recently come last.
func (c *Client) readers(shard rowraft.ShardID) (nodes []rowraft.NodeID) {
	m := c.cluster.Load()
	if int(shard) >= len(m.Shards) {
		return nil
	}
	replicas := m.Shards[shard].Replicas
	first := int(c.spread.next.Add(1))
	var bad []rowraft.NodeID
	for i := range replicas {
		node := replicas[(first+i)%len(replicas)].Node
		if c.spread.shunned(shard, node) {
			bad = append(bad, node)
		} else {
			nodes = append(nodes, node)
		}
	}
	return append(nodes, bad...)
}

// pullAny asks the replicas of a shard until one replies. It ends early with an error that every replica
// would return, or when all replicas have been asked and one of them cannot meet the bound. tries is the
// number of requests sent.
func (c *Client) pullAny(ctx context.Context, home rowraft.ClusterID, shard rowraft.ShardID, req *rowraftv1.PullRequest,
	first *firstPull) (reply *rowraftv1.PullReply, tries int, err error) {
	b, retries := route.Backoff{}, c.router.budget.NewCall(c.opts.FailWhenOverloaded)
	for c.ctx.Err() == nil {
		if err := c.cluster.replaced(home); err != nil {
			return nil, tries, err
		}
		round := round{c: c, home: home, shard: shard, req: req, first: first}
		reply, err = round.run(ctx)
		first.Skip()
		tries += round.tries
		if err == nil {
			retries.Succeeded()
			return reply, tries, nil
		}
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

// round is one pass over the replicas of a shard; it asks each one at most once.
type round struct {
	c     *Client
	home  rowraft.ClusterID
	shard rowraft.ShardID
	req   *rowraftv1.PullRequest
	first *firstPull

	left    []rowraft.NodeID // not asked yet
	asked   []rowraft.NodeID // asked, without an answer yet
	results chan tried       // capacity: every replica, so that a late result blocks no goroutine
	tries   int
}

type tried struct {
	node  rowraft.NodeID
	reply *rowraftv1.PullReply
	err   error
}

// run returns the first reply. Of several errors that another replica might not return, it returns the most
// useful one (see worse).
func (r *round) run(ctx context.Context) (*rowraftv1.PullReply, error) {
	r.left = r.c.readers(r.shard)
	if len(r.left) == 0 {
		return nil, rowraft.Errorf(rowraft.CodeNoLeader, "the map names no server for shard %d", r.shard)
	}
	r.results = make(chan tried, len(r.left))
	whole := ctx
	ctx, cancel := context.WithTimeout(rpc.WithCluster(ctx, r.home), r.c.opts.AttemptTimeout)
	defer cancel()
	r.c.spread.read()
	hedge := time.NewTicker(hedgeAfter)
	defer hedge.Stop()
	var worst error
	for r.ask(ctx); len(r.asked) > 0; {
		select {
		case <-hedge.C:
			if len(r.left) > 0 && r.c.spread.mayHedge() {
				for _, node := range r.asked {
					r.c.spread.shun(r.shard, node)
				}
				r.ask(ctx)
			}
		case a := <-r.results:
			r.asked = slices.DeleteFunc(r.asked, func(n rowraft.NodeID) bool { return n == a.node })
			if a.err == nil {
				return a.reply, nil
			}
			if endsRound(route.On(route.Replica, a.err)) {
				return nil, a.err
			}
			if whole.Err() == nil {
				r.c.spread.shun(r.shard, a.node)
			}
			worst = worse(worst, a.err)
			r.ask(ctx)
		}
	}
	return nil, worst
}

// endsRound reports whether every other replica would return the same error.
func endsRound(a route.Action) bool { return a == route.Return || a == route.Refresh }

// ask sends the request to the next replica, if one is left and ctx has not ended. The first request is
// always sent.
func (r *round) ask(ctx context.Context) {
	if len(r.left) == 0 || r.tries > 0 && ctx.Err() != nil {
		return
	}
	node := r.left[0]
	r.left = r.left[1:]
	r.tries++
	r.asked = append(r.asked, node)
	results := r.results
	err := r.c.spawn(func() {
		reply, err := r.c.pullFrom(ctx, node, r.req, r.first)
		results <- tried{node, reply, err}
	})
	if err != nil {
		results <- tried{node, nil, err}
	}
}

// pullFrom sends the request to one server.
func (c *Client) pullFrom(ctx context.Context, node rowraft.NodeID, req *rowraftv1.PullRequest,
	first *firstPull) (*rowraftv1.PullReply, error) {
	defer first.Skip()
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
	to := stub{TableClient: rowraftv1.NewTableClient(conn), Addr: addr}
	reply, err := wave.Pulls.Send(ctx, first, to, req)
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
