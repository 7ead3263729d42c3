package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/wave"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// leaderPull is a pull from the leaders of its shards, within one cluster map. One call goes to each server, and the
// goroutine of that call copies the rows of all its shards. Only a shard whose first try fails, or whose server is to
// be asked for it alone, gets a goroutine: with one for each shard, goroutines, contexts and timers took a third of the
// client's CPU time with 64 shards.
type leaderPull struct {
	c       *Client
	ctx     context.Context // of the caller
	home    rowraft.ClusterID
	reqs    []request
	msgs    []*rowraftv1.PullRequest // by request
	errs    []error                  // likewise
	pending sync.WaitGroup           // requests without a result
}

// pullLeaders asks the leaders of the shards for the rows of reqs. It returns the error of the first request that
// failed.
func (c *Client) pullLeaders(ctx context.Context, m *clustermap.Map, how *Read, reqs []request) error {
	p := &leaderPull{c: c, ctx: ctx, home: m.Cluster, reqs: reqs, msgs: make([]*rowraftv1.PullRequest, len(reqs)),
		errs: make([]error, len(reqs))}
	p.pending.Add(len(reqs))
	for i := range reqs {
		p.msgs[i] = c.pullRequest(m, how, &reqs[i])
	}
	shared, alone := p.plan()
	for _, call := range shared {
		call.start()
	}
	for n, i := range alone {
		if n < len(alone)-1 {
			go p.alone(i, nil)
		} else {
			p.alone(i, nil)
		}
	}
	p.pending.Wait()
	for _, err := range p.errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// plan returns the calls of several requests, and the other requests.
func (p *leaderPull) plan() (shared []*serverPull, alone []int) {
	open := make(map[string]*serverPull) // by the address of the server
	for i := range p.reqs {
		at := p.c.router.target(p.reqs[i].shard, "", true, true)
		at.home, at.mayRelay = p.home, true
		if at.addr == "" || at.forwards() { // servers do not forward a call of several requests
			alone = append(alone, i)
			continue
		}
		s := open[at.addr]
		if s == nil {
			s = &serverPull{p: p}
			open[at.addr] = s
		}
		s.at, s.index = append(s.at, at), append(s.index, i)
	}
	for _, s := range open {
		for at, index := s.at, s.index; len(index) > 0; {
			n := wave.Cut(len(index), func(j int) []byte { return p.msgs[index[j]].Payload })
			if n == 1 {
				alone = append(alone, index[0])
			} else {
				shared = append(shared, &serverPull{p: p, at: at[:n], index: index[:n]})
			}
			at, index = at[n:], index[n:]
		}
	}
	return shared, alone
}

// alone sends a request until it has its result. failed is its first try; nil: it was not tried.
func (p *leaderPull) alone(i int, failed *firstTry) {
	c, shard, req := p.c, p.reqs[i].shard, p.msgs[i]
	var reply *rowraftv1.PullReply
	tries := 0
	if failed != nil {
		tries++
	}
	kind := callKind{failFast: c.opts.FailWhenOverloaded, failed: failed}
	_, err := c.router.onLeader(p.ctx, p.home, shard, kind, func(at server) error {
		return c.router.try(p.ctx, shard, at, func(ctx context.Context, stub stub) (err error) {
			tries++
			reply, err = stub.Pull(ctx, req)
			return c.cluster.retryUntilTableKnown(err, req.Payload)
		})
	})
	p.take(i, reply, tries, err)
}

// take gives a request its result.
func (p *leaderPull) take(i int, reply *rowraftv1.PullReply, tries int, err error) {
	p.errs[i] = p.c.take(&p.reqs[i], p.msgs[i], reply, tries, err)
	p.pending.Done()
}

// serverPull is the first try of the requests of a leaderPull for one server.
type serverPull struct {
	p     *leaderPull
	at    []server
	index []int // of the requests

	ctx   context.Context
	began time.Time
	call  *wave.Shared[rowraftv1.PullRequest, rowraftv1.PullReply]

	mu       sync.Mutex
	endWatch []context.CancelCauseFunc // by request; nil: the call is not slow
}

// start makes the call on another goroutine, which ends later than the pull if the server is slow to end the call.
func (s *serverPull) start() {
	s.began = time.Now()
	conn, err := s.p.c.conns.Get(s.at[0].addr)
	if err == nil {
		err = s.p.c.spawn(func() { s.run(conn) })
	}
	if err != nil {
		for j := range s.index {
			s.again(j, err)
		}
	}
}

// run makes the call. When it returns, each request has its result or a goroutine of its own.
func (s *serverPull) run(conn *grpc.ClientConn) {
	p, c := s.p, s.p.c
	ctx, cancel := context.WithTimeout(rpc.WithCluster(p.ctx, p.home), c.opts.AttemptTimeout)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	s.ctx, s.call = ctx, wave.Pulls.NewShared(len(s.index), cancel, s.done)
	defer time.AfterFunc(slowTry, s.watch).Stop()
	msgs := make([]*rowraftv1.PullRequest, len(s.index))
	for j, i := range s.index {
		msgs[j] = p.msgs[i]
	}
	s.call.Run(ctx, rowraftv1.NewTableClient(conn), msgs)
}

// done takes the answer to a request.
func (s *serverPull) done(j int, reply *rowraftv1.PullReply, err error) {
	s.mu.Lock()
	if s.endWatch != nil {
		s.endWatch[j](nil)
	}
	s.mu.Unlock()
	if err != nil && s.p.ctx.Err() != nil {
		err = rowraft.Errorf(rowraft.CodeDeadline, "no answer: %w", context.Cause(s.p.ctx))
	}
	if err != nil {
		s.again(j, s.p.c.cluster.retryUntilTableKnown(err, s.p.msgs[s.index[j]].Payload))
		return
	}
	at := &s.at[j]
	s.p.c.router.answered(s.p.home, s.p.reqs[s.index[j]].shard, at.node)
	s.p.c.router.budget.NewCall(false)
	s.p.take(s.index[j], reply, 1, nil)
}

// again sends a request whose first try has failed, alone.
func (s *serverPull) again(j int, err error) {
	failed := &firstTry{at: s.at[j], began: s.began, err: fmt.Errorf("server %s: %w", s.at[j].addr, err)}
	go s.p.alone(s.index[j], failed)
}

// watch begins, when the call has taken slowTry, to watch the leaders of the shards that have no answer, as
// watchSlowAttempt does for a single request.
func (s *serverPull) watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endWatch = make([]context.CancelCauseFunc, len(s.index))
	for j := range s.index {
		ctx, cancel := context.WithCancelCause(s.ctx)
		s.endWatch[j] = cancel
		if s.call.Settled(j) {
			cancel(nil)
			continue
		}
		_ = s.p.c.spawn(func() { // an error means that the client is closed, and the call ends anyway
			defer cancel(nil)
			s.p.c.router.watchLeader(ctx, cancel, s.p.reqs[s.index[j]].shard, s.at[j])
			if cause := context.Cause(ctx); (cause == errSilent || cause == errCut) && s.call.Leave(j) {
				s.again(j, rowraft.Errorf(rowraft.CodeDeadline, "%w", cause))
			}
		})
	}
}
