package pullstream

import (
	"context"
	"errors"
	"io"
	"math/bits"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/wave"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	// maxIdle limits the idle streams to one server: a server allows 256 calls on a connection, and idle streams count.
	maxIdle = 64
	// idleFor is how long a stream is kept that is not used.
	idleFor = time.Minute
	// maxAge is the age at which a stream is given up, so that a connection that the server wants to end ends.
	maxAge = 10 * time.Minute
)

// Pool has the idle streams of one client.
type Pool struct {
	ctx   context.Context // ends all streams
	conns *route.Pool

	mu   sync.Mutex
	idle map[string][]*stream // by the address of the server; the one last used is the last
}

// stream is a stream that has no request, or belongs to one call.
type stream struct {
	rowraftv1.Table_PullManyClient
	cancel       context.CancelFunc
	home         rowraft.ClusterID
	opened, used time.Time
	number       uint64 // of the last request
}

// New returns a pool without streams, on connections of conns. The end of ctx ends all streams.
func New(ctx context.Context, conns *route.Pool) *Pool {
	return &Pool{ctx: ctx, conns: conns, idle: make(map[string][]*stream)}
}

// call is one request of a Pool.
type call struct {
	p       *Pool
	ctx     context.Context
	home    rowraft.ClusterID
	addr    string
	batches []*rowraftv1.PullRequest

	s        *stream
	reused   bool        // s had other requests before, and nothing has come for this one
	detach   func() bool // ends the tie between ctx and s; false: ctx has ended
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
		c.reused = true
		c.detach = context.AfterFunc(c.ctx, c.s.cancel)
		if c.sendOn() == nil {
			return nil
		}
	}
	return c.sendOnNew()
}

func (c *call) sendOnNew() error {
	if c.s != nil {
		c.drop()
	}
	c.reused = false
	ctx, cancel := context.WithCancel(rpc.WithCluster(c.p.ctx, c.home))
	c.s = &stream{cancel: cancel, home: c.home, opened: time.Now()}
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
	if errors.Is(err, io.EOF) && c.reused { // the server has ended the stream before it read the request
		if err = c.sendOnNew(); err != nil {
			return nil, err
		}
		reply, err = c.s.Recv()
	}
	if err == nil {
		err = c.check(reply)
	}
	if err != nil {
		return nil, c.fail(err)
	}
	c.reused = false
	if bits.OnesCount64(c.answered) == len(c.batches) && c.detach() {
		c.p.put(c.addr, c.s)
	}
	return reply.Answers, nil
}

// check refuses a reply to another request, and a second answer to a batch: a stream that had one of these would give
// later requests wrong rows.
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
	return err
}

// drop ends the stream of the call.
func (c *call) drop() {
	c.detach()
	c.s.cancel()
}

// take returns the idle stream to addr that was used last; nil: none.
func (p *Pool) take(addr string, home rowraft.ClusterID) *stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := p.idle[addr]
	for len(idle) > 0 {
		s := idle[len(idle)-1]
		idle[len(idle)-1] = nil
		idle = idle[:len(idle)-1]
		p.idle[addr] = idle
		if s.home == home && time.Since(s.opened) < maxAge {
			return s
		}
		s.cancel()
	}
	return nil
}

// put makes s idle, and ends the stream that was idle for longest if it is not needed.
func (p *Pool) put(addr string, s *stream) {
	s.used = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := append(p.idle[addr], s)
	if first := idle[0]; len(idle) > maxIdle || s.used.Sub(first.used) > idleFor {
		first.cancel()
		idle[0] = nil
		idle = idle[1:]
	}
	p.idle[addr] = idle
}
