package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/wave"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// planned is a pull within one cluster map. Its first tries are one request for each server (package pullstream), and
// the goroutine that sends it copies the rows of all its shards. Only a shard whose first try fails or is slow, or
// whose server is unknown, gets a goroutine: with one for each shard, goroutines, contexts and timers took a third of
// the client's CPU time with 64 shards.
type planned struct {
	c       *Client
	ctx     context.Context // the caller's
	m       *clustermap.Map
	how     *Read
	reqs    []request
	msgs    []*rowraftv1.PullRequest // by request
	errs    []error                  // likewise
	pending sync.WaitGroup           // requests without a result
}

// pullAll gets the rows of reqs. It returns the error of the first request that failed.
func (c *Client) pullAll(ctx context.Context, m *clustermap.Map, how *Read, reqs []request) error {
	p := &planned{c: c, ctx: ctx, m: m, how: how, reqs: reqs, msgs: make([]*rowraftv1.PullRequest, len(reqs)),
		errs: make([]error, len(reqs))}
	p.pending.Add(len(reqs))
	for i := range reqs {
		p.msgs[i] = c.pullRequest(m, how, &reqs[i])
	}
	servers, alone := p.split()
	for _, i := range alone {
		go p.alone(i, nil)
	}
	for n, s := range servers {
		if n == len(servers)-1 || c.spawn(s.run) != nil { // an error means that the client closes: run ends soon
			s.run()
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

// target returns the server for the first try of a request; ok is false if the request is to be sent alone.
func (p *planned) target(i int) (at server, ok bool) {
	c, shard := p.c, p.reqs[i].shard
	if p.how.Mode != Bounded {
		at = c.router.target(shard, "", true, true)
		at.home, at.mayRelay = p.m.Cluster, true
		return at, at.addr != "" && !at.forwards() // servers do not forward such a request
	}
	order := c.spread.Order(p.m, shard, p.how.turn)
	if len(order) == 0 {
		return at, false
	}
	at = server{node: order[0], addr: c.cluster.addrOf(order[0])}
	return at, at.addr != ""
}

// split returns the first tries by server, and the requests that are to be sent alone.
func (p *planned) split() (servers []*serverPull, alone []int) {
	byAddr := make(map[string]*serverPull)
	for i := range p.reqs {
		at, ok := p.target(i)
		if !ok {
			alone = append(alone, i)
			continue
		}
		s := byAddr[at.addr]
		if s == nil {
			s = &serverPull{p: p}
			byAddr[at.addr] = s
		}
		s.at, s.index = append(s.at, at), append(s.index, i)
	}
	for _, s := range byAddr {
		for at, index := s.at, s.index; len(index) > 0; {
			n := wave.Cut(len(index), func(j int) []byte { return p.msgs[index[j]].Payload })
			servers = append(servers, &serverPull{p: p, at: at[:n], index: index[:n]})
			at, index = at[n:], index[n:]
		}
	}
	return servers, alone
}

// alone sends a request until it has its result. first is its first try; nil: it was not tried.
func (p *planned) alone(i int, first *firstTry) {
	c, shard, req := p.c, p.reqs[i].shard, p.msgs[i]
	if p.how.Mode == Bounded {
		reply, tries, err := c.pullAny(p.ctx, p.m.Cluster, shard, p.how.turn, req, first)
		p.take(i, reply, tries, err)
		return
	}
	var reply *rowraftv1.PullReply
	tries := 0
	if first != nil {
		tries++
	}
	kind := callKind{failFast: c.opts.FailWhenOverloaded, first: first}
	_, err := c.router.onLeader(p.ctx, p.m.Cluster, shard, kind, func(at server) error {
		return c.router.try(p.ctx, shard, at, func(ctx context.Context, stub stub) (err error) {
			tries++
			reply, err = stub.Pull(ctx, req)
			return c.cluster.retryUntilTableKnown(err, req.Payload)
		})
	})
	p.take(i, reply, tries, err)
}

// take gives a request its result.
func (p *planned) take(i int, reply *rowraftv1.PullReply, tries int, err error) {
	p.errs[i] = p.c.take(&p.reqs[i], p.msgs[i], reply, tries, err)
	p.pending.Done()
}

// serverPull is the first try of the requests of a pull for one server. Its slices are by request.
type serverPull struct {
	p     *planned
	at    []server
	index []int // where each request is in p

	ctx   context.Context
	began time.Time
	call  *wave.Shared[*rowraftv1.PullReply]

	mu       sync.Mutex
	endWatch []context.CancelCauseFunc // ends the watch of each shard's leader; nil: there is no watch
	slow     []*firstTry               // the tries that are hedged; an element is nil if its request had a result
}

// run makes the call. When it returns, each request has its result or a goroutine of its own.
func (s *serverPull) run() {
	p, c := s.p, s.p.c
	s.began = time.Now()
	ctx, cancel := context.WithTimeout(p.ctx, c.opts.AttemptTimeout)
	defer cancel()
	s.ctx, s.call = ctx, wave.NewShared(len(s.index), cancel, s.done)
	if p.how.Mode == Bounded {
		for range s.index {
			c.spread.Read()
		}
		defer time.AfterFunc(hedgeAfter, s.hedge).Stop()
	} else {
		defer time.AfterFunc(slowTry, s.watch).Stop()
	}
	msgs := make([]*rowraftv1.PullRequest, len(s.index))
	for j, i := range s.index {
		msgs[j] = p.msgs[i]
	}
	s.call.Run(c.pulls.Call(ctx, p.m.Cluster, s.at[0].addr, msgs))
}

// done takes the answer to a request.
func (s *serverPull) done(j int, reply *rowraftv1.PullReply, err error) {
	p, i := s.p, s.index[j]
	if err != nil {
		err = fmt.Errorf("server %s: %w", s.at[j].addr, p.c.cluster.retryUntilTableKnown(err, p.msgs[i].Payload))
	}
	s.mu.Lock()
	if s.endWatch != nil {
		s.endWatch[j](nil)
	}
	var slow *firstTry
	if s.slow != nil {
		slow = s.slow[j]
	}
	s.mu.Unlock()
	switch {
	case slow != nil:
		slow.answer <- tried{s.at[j].node, reply, err}
		return
	case err != nil:
		s.again(j, err)
		return
	case p.how.Mode != Bounded:
		p.c.router.answered(p.m.Cluster, p.reqs[i].shard, s.at[j].node)
	}
	p.c.router.budget.NewCall(false)
	p.take(i, reply, 1, nil)
}

// again sends a request whose first try has failed with err, alone.
func (s *serverPull) again(j int, err error) {
	go s.p.alone(s.index[j], &firstTry{at: s.at[j], began: s.began, err: err, leave: func() {}})
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
				s.again(j, rowraft.Errorf(rowraft.CodeDeadline, "server %s: %w", s.at[j].addr, cause))
			}
		})
	}
}

// hedge lets the requests of a bounded read that have no answer after hedgeAfter ask other servers, too.
func (s *serverPull) hedge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow = make([]*firstTry, len(s.index))
	for j, i := range s.index {
		if !s.call.Settled(j) {
			s.slow[j] = &firstTry{at: s.at[j], began: s.began, answer: make(chan tried, 1), leave: func() { s.call.Leave(j) }}
			go s.p.alone(i, s.slow[j])
		}
	}
}
