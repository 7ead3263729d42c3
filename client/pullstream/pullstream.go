package pullstream

import (
	"context"
	"errors"
	"io"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/wave"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	// maxKept limits the streams to one server that stay open after their first call. A server allows 256 calls on a
	// connection, and an open stream is one of them.
	maxKept = 64
	// idleFor is how long an unused stream is kept at least; at most it is twice as long.
	idleFor = time.Minute
	// maxAge is the age at which a stream ends after its call, so that a connection past its maximum age can close.
	maxAge = 10 * time.Minute
)

// Pool has the streams of one client.
type Pool struct {
	ctx   context.Context // ends all streams
	conns *route.Pool

	mu      sync.Mutex
	servers map[string]*streams // by address; without those that have none
	sweeps  bool                // a timer calls sweep
}

// streams are the streams to one server that are kept.
type streams struct {
	idle []*stream // the one last used is the last
	kept int       // these, and those that belong to a call
}

// stream is a stream that has no request, or belongs to one call.
type stream struct {
	rowraftv1.Table_PullManyClient
	cancel       context.CancelFunc
	home         rowraft.ClusterID
	kept         bool // it stays open after its call
	opened, used time.Time
	number       uint64 // the number of the last request
}

// New returns a pool without streams, on connections of conns. The end of ctx ends all streams.
func New(ctx context.Context, conns *route.Pool) *Pool {
	return &Pool{ctx: ctx, conns: conns, servers: make(map[string]*streams)}
}

// call is one request of a Pool.
type call struct {
	p       *Pool
	ctx     context.Context
	home    rowraft.ClusterID
	addr    string
	batches []*rowraftv1.PullRequest

	s        *stream
	detach   func() bool // stops the function that cancels s when ctx ends; false: it runs, or has run
	answered uint64      // a bit for each batch
}

// Call sends a request with 1 to rpc.MaxBatches batches to the server at addr, which refuses it if its cluster is not
// home. When ctx ends, so does the call. The caller must call the returned function until it returns an error.
func (p *Pool) Call(ctx context.Context, home rowraft.ClusterID, addr string,
	batches []*rowraftv1.PullRequest) (wave.Replies[*rowraftv1.PullReply], error) {
	c := &call{p: p, ctx: ctx, home: home, addr: addr, batches: batches}
	return c.next, c.send()
}

// send sends the request on an idle stream or, if that has ended, on a new one.
func (c *call) send() error {
	if c.s = c.p.take(c.addr, c.home); c.s != nil {
		c.detach = context.AfterFunc(c.ctx, c.s.cancel)
		if c.sendOn() == nil {
			return nil
		}
		c.drop()
	}
	ctx, cancel := context.WithCancel(rpc.WithCluster(c.p.ctx, c.home))
	c.s = &stream{cancel: cancel, home: c.home, opened: time.Now(), kept: c.p.keep(c.addr)}
	c.detach = context.AfterFunc(c.ctx, cancel)
	conn, err := c.p.conns.Get(c.addr)
	if err == nil {
		c.s.Table_PullManyClient, err = rowraftv1.NewTableClient(conn).PullMany(ctx)
	}
	if err == nil {
		err = c.sendOn()
	}
	if errors.Is(err, io.EOF) { // the stream has ended: Recv returns why
		_, err = c.s.Recv()
	}
	return c.fail(err)
}

// sendOn sends the request on c.s.
func (c *call) sendOn() error {
	c.s.number++
	req := &rowraftv1.PullManyRequest{Batches: c.batches, Number: c.s.number}
	if end, ok := c.ctx.Deadline(); ok {
		req.TimeoutNs = uint64(max(time.Until(end), 1))
	}
	return c.s.Send(req)
}

// next implements wave.Replies.
func (c *call) next() ([]*rowraftv1.PullReply, error) {
	if bits.OnesCount64(c.answered) == len(c.batches) {
		return nil, io.EOF
	}
	reply, err := c.s.Recv()
	if err == nil {
		err = c.check(reply)
	}
	if err != nil {
		return nil, c.fail(err)
	}
	if bits.OnesCount64(c.answered) == len(c.batches) {
		if c.detach() {
			c.p.put(c.addr, c.s)
		} else {
			c.p.end(c.addr, c.s)
		}
	}
	return reply.Answers, nil
}

// check refuses a reply to another request, and a second answer to a batch: after one of these, later requests on the
// stream would get the rows of other keys.
func (c *call) check(reply *rowraftv1.PullManyReply) error {
	if reply.Number != c.s.number {
		return rowraft.Errorf(rowraft.CodeUnknown, "the server answered request %d of a stream, want %d", reply.Number,
			c.s.number)
	}
	for _, a := range reply.Answers {
		bit := uint64(1) << a.Batch
		if int(a.Batch) >= len(c.batches) || c.answered&bit != 0 {
			return rowraft.Errorf(rowraft.CodeUnknown, "the server answered batch %d of %d, or answered it twice", a.Batch,
				len(c.batches))
		}
		c.answered |= bit
	}
	return nil
}

// fail drops the stream because of err, and returns the error of the call; nil if err is nil.
func (c *call) fail(err error) error {
	if err == nil {
		return nil
	}
	c.drop()
	if c.ctx.Err() != nil {
		return rowraft.Errorf(rowraft.CodeDeadline, "no answer: %w", context.Cause(c.ctx))
	}
	if errors.Is(err, io.EOF) {
		return rowraft.Errorf(rowraft.CodeClosing, "the server is stopping and has not read the request")
	}
	return err
}

// drop ends the stream of the call.
func (c *call) drop() {
	c.detach()
	c.p.end(c.addr, c.s)
}

// take returns the idle stream to addr that was used last; nil: none.
func (p *Pool) take(addr string, home rowraft.ClusterID) *stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	for t := p.servers[addr]; t != nil && len(t.idle) > 0; {
		last := len(t.idle) - 1
		s := t.idle[last]
		t.idle[last] = nil
		t.idle = t.idle[:last]
		if s.home == home {
			return s
		}
		p.endLocked(addr, s)
	}
	return nil
}

// keep reports whether one more stream to addr may be kept, and counts it.
func (p *Pool) keep(addr string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.servers[addr]
	if t == nil {
		t = &streams{}
		p.servers[addr] = t
	}
	if t.kept == maxKept {
		return false
	}
	t.kept++
	return true
}

// put makes s idle, or ends it.
func (p *Pool) put(addr string, s *stream) {
	s.used = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !s.kept || s.used.Sub(s.opened) > maxAge {
		p.endLocked(addr, s)
		return
	}
	t := p.servers[addr]
	if t.idle = append(t.idle, s); !p.sweeps {
		p.sweeps = true
		time.AfterFunc(idleFor, p.sweep)
	}
}

// sweep ends the streams that were not used for idleFor.
func (p *Pool) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweeps = false
	for addr, t := range p.servers {
		n := 0
		for n < len(t.idle) && (time.Since(t.idle[n].used) >= idleFor || p.ctx.Err() != nil) {
			n++
		}
		for _, s := range t.idle[:n] {
			p.endLocked(addr, s)
		}
		t.idle = slices.Delete(t.idle, 0, n)
		p.sweeps = p.sweeps || len(t.idle) > 0
	}
	if p.sweeps {
		time.AfterFunc(idleFor, p.sweep)
	}
}

// end ends s.
func (p *Pool) end(addr string, s *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked(addr, s)
}

// endLocked is end. It does nothing if s has ended.
// REQUIRES: p.mu is held.
func (p *Pool) endLocked(addr string, s *stream) {
	s.cancel()
	if !s.kept {
		return
	}
	s.kept = false
	t := p.servers[addr]
	if t.kept--; t.kept == 0 {
		delete(p.servers, addr)
	}
}
