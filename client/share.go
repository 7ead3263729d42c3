package client

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// sharedBytes limits the payloads of one shared request, unless it has a single batch. A larger request
// would delay its first batch, and the cost of a call is small against that of so many bytes.
const sharedBytes = 1 << 20

// stub is the server of a try.
type stub struct {
	rowraftv1.TableClient
	at server
}

// calls are the two ways to send a request Q: alone, or with others in one call whose replies R come as
// they are ready and name their batch. A call for one batch stays unary, because a stream costs a third
// more (DESIGN.md).
type calls[Q, R any] struct {
	alone   func(context.Context, rowraftv1.TableClient, *Q) (*R, error)
	shared  func(context.Context, rowraftv1.TableClient, []*Q) (grpc.ServerStreamingClient[R], error)
	payload func(*Q) []byte
	batch   func(*R) uint32 // index in the shared request
	err     func(*R) *rowraftv1.ErrorDetail
}

var pulls = calls[rowraftv1.PullRequest, rowraftv1.PullReply]{
	alone: func(ctx context.Context, to rowraftv1.TableClient, q *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
		return to.Pull(ctx, q)
	},
	shared: func(ctx context.Context, to rowraftv1.TableClient,
		qs []*rowraftv1.PullRequest) (grpc.ServerStreamingClient[rowraftv1.PullReply], error) {
		return to.PullMany(ctx, &rowraftv1.PullManyRequest{Batches: qs})
	},
	payload: (*rowraftv1.PullRequest).GetPayload,
	batch:   (*rowraftv1.PullReply).GetBatch,
	err:     (*rowraftv1.PullReply).GetError,
}

var writes = calls[rowraftv1.WriteRequest, rowraftv1.WriteReply]{
	alone: func(ctx context.Context, to rowraftv1.TableClient, q *rowraftv1.WriteRequest) (*rowraftv1.WriteReply, error) {
		return to.Write(announce(ctx, q), q)
	},
	shared: func(ctx context.Context, to rowraftv1.TableClient,
		qs []*rowraftv1.WriteRequest) (grpc.ServerStreamingClient[rowraftv1.WriteReply], error) {
		return to.WriteMany(announce(ctx, qs...), &rowraftv1.WriteManyRequest{Batches: qs})
	},
	payload: (*rowraftv1.WriteRequest).GetPayload,
	batch:   (*rowraftv1.WriteReply).GetBatch,
	err:     (*rowraftv1.WriteReply).GetError,
}

var stepPushes = calls[rowraftv1.PushStepRequest, rowraftv1.PushStepReply]{
	alone: func(ctx context.Context, to rowraftv1.TableClient, q *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply,
		error) {
		return to.PushStep(ctx, q)
	},
	shared: func(ctx context.Context, to rowraftv1.TableClient,
		qs []*rowraftv1.PushStepRequest) (grpc.ServerStreamingClient[rowraftv1.PushStepReply], error) {
		return to.PushStepMany(ctx, &rowraftv1.PushStepManyRequest{Batches: qs})
	},
	payload: (*rowraftv1.PushStepRequest).GetPayload,
	batch:   (*rowraftv1.PushStepReply).GetBatch,
	err:     (*rowraftv1.PushStepReply).GetError,
}

// announce returns ctx for a call with the given batches. If they are large, ctx announces them.
func announce(ctx context.Context, qs ...*rowraftv1.WriteRequest) context.Context {
	parts, bytes := make([]rpc.PartSize, len(qs)), 0
	for i, q := range qs {
		parts[i] = rpc.PartSize{Shard: q.Shard, Bytes: len(q.Payload), Delete: q.Op == rowraftv1.WriteOp(wire.OpDelete)}
		bytes += len(q.Payload)
	}
	if bytes < announceMinBytes {
		return ctx
	}
	return rpc.WithPartSizes(ctx, parts...)
}

// sharing puts the first tries of the batches of one pull, push or step into one call per server. A batch whose
// first try fails is sent again alone. A nil sharing sends each batch alone.
//
// One goroutine calls add and start. Each firstTry belongs to the goroutine of its batch.
type sharing[Q, R any] struct {
	c     *Client
	calls *calls[Q, R]
	wave  *wave[Q, R] // of the batches since the last start; nil: none
}

// sharedWrites shares the calls of a push.
type sharedWrites = sharing[rowraftv1.WriteRequest, rowraftv1.WriteReply]

// add adds a batch. Its goroutine must call send or leave of the result soon, because the other batches
// wait for it.
func (s *sharing[Q, R]) add() *firstTry[Q, R] {
	if s == nil {
		return nil
	}
	if s.wave == nil {
		s.wave = &wave[Q, R]{c: s.c, calls: s.calls, open: true, joined: make(map[string][]*sharedBatch[Q, R])}
	}
	s.wave.mu.Lock()
	defer s.wave.mu.Unlock()
	s.wave.absent++
	return &firstTry[Q, R]{wave: s.wave}
}

// start lets the batches that were added be sent, as soon as each has chosen its server.
func (s *sharing[Q, R]) start() {
	if s == nil || s.wave == nil {
		return
	}
	s.wave.mu.Lock()
	defer s.wave.mu.Unlock()
	s.wave.open = false
	s.wave.sendLocked()
	s.wave = nil
}

// wave is a set of batches that are sent together.
type wave[Q, R any] struct {
	c     *Client
	calls *calls[Q, R]

	mu     sync.Mutex
	open   bool                            // more batches may be added
	absent int                             // batches that have neither joined nor left
	joined map[string][]*sharedBatch[Q, R] // by the address of the server
}

// sendLocked starts the calls if every batch has joined or left.
// REQUIRES: w.mu is held.
func (w *wave[Q, R]) sendLocked() {
	if w.open || w.absent > 0 {
		return
	}
	for _, batches := range w.joined {
		batches = slices.DeleteFunc(batches, func(b *sharedBatch[Q, R]) bool { return b.gone })
		for len(batches) > 0 {
			n, bytes := 0, 0
			for ; n < min(len(batches), rpc.MaxBatches); n++ {
				if bytes += len(w.calls.payload(batches[n].req)); n > 0 && bytes > sharedBytes {
					break
				}
			}
			w.callLocked(batches[:n])
			batches = batches[n:]
		}
	}
	w.joined = nil
}

// callLocked sends batches, which have the same server.
// REQUIRES: w.mu is held.
func (w *wave[Q, R]) callLocked(batches []*sharedBatch[Q, R]) {
	if len(batches) == 1 {
		batches[0].result <- shared[R]{alone: true}
		return
	}
	call := &sharedCall[Q, R]{calls: w.calls, batches: batches, waiting: len(batches), over: make([]bool, len(batches))}
	first := batches[0]
	ctx := context.WithoutCancel(first.ctx)
	if end, ok := first.ctx.Deadline(); ok {
		for _, b := range batches[1:] {
			if other, ok := b.ctx.Deadline(); ok && other.After(end) {
				end = other
			}
		}
		ctx, call.cancel = context.WithDeadline(ctx, end)
	} else {
		ctx, call.cancel = context.WithCancel(ctx)
	}
	for i, b := range batches {
		b.call, b.index = call, i
	}
	err := w.c.spawn(func() {
		defer call.cancel()
		defer context.AfterFunc(w.c.ctx, call.cancel)()
		call.run(ctx, first.to)
	})
	if err != nil {
		call.cancel()
		for _, b := range batches {
			b.result <- shared[R]{err: err}
		}
	}
}

// firstTry is the first try of one batch. A nil firstTry sends the batch alone.
type firstTry[Q, R any] struct {
	wave *wave[Q, R]
	used bool // under wave.mu: the batch has joined or left
}

// sharedBatch is a batch that has joined a wave.
type sharedBatch[Q, R any] struct {
	ctx    context.Context // of the try
	to     rowraftv1.TableClient
	req    *Q
	result chan shared[R] // capacity 1: the try may have ended

	// Under wave.mu:
	call  *sharedCall[Q, R] // that has the batch; nil: none yet, or it is sent alone
	index int               // in that call
	gone  bool              // the try has ended
}

// shared is the result of a sharedBatch. alone means that no other batch goes to its server.
type shared[R any] struct {
	reply *R
	err   error
	alone bool
}

// leave makes the other batches not wait for this one. It has no effect after send.
func (t *firstTry[Q, R]) leave() {
	if t == nil {
		return
	}
	w := t.wave
	w.mu.Lock()
	defer w.mu.Unlock()
	if !t.used {
		t.used = true
		w.absent--
		w.sendLocked()
	}
}

// join adds a batch to the wave. It returns nil if the batch was sent before, or has left.
func (t *firstTry[Q, R]) join(ctx context.Context, to stub, req *Q) *sharedBatch[Q, R] {
	w := t.wave
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.used {
		return nil
	}
	t.used = true
	w.absent--
	b := &sharedBatch[Q, R]{ctx: ctx, to: to.TableClient, req: req, result: make(chan shared[R], 1)}
	w.joined[to.at.addr] = append(w.joined[to.at.addr], b)
	w.sendLocked()
	return b
}

// send is one try of a batch. The first one joins the other batches for the server, unless the server is to
// forward it. When ctx ends, the batch leaves the shared call, which goes on for the others.
func (k *calls[Q, R]) send(ctx context.Context, t *firstTry[Q, R], to stub, req *Q) (*R, error) {
	if t == nil || to.at.forwards() {
		t.leave()
		return k.alone(ctx, to.TableClient, req)
	}
	b := t.join(ctx, to, req)
	if b == nil {
		return k.alone(ctx, to.TableClient, req)
	}
	select {
	case r := <-b.result:
		if r.alone {
			return k.alone(ctx, to.TableClient, req)
		}
		return r.reply, r.err
	case <-ctx.Done():
	}
	t.wave.mu.Lock()
	b.gone = true
	call := b.call
	t.wave.mu.Unlock()
	if call != nil {
		if call.markOver(b.index) {
			call.cancel() // no batch waits any more: the server stops its work
		}
	}
	return nil, rowraft.Errorf(rowraft.CodeDeadline, "no answer: %w", context.Cause(ctx))
}

// sharedCall is one call with several batches. Its goroutine gives each batch its result.
type sharedCall[Q, R any] struct {
	calls   *calls[Q, R]
	batches []*sharedBatch[Q, R]
	cancel  context.CancelFunc

	mu      sync.Mutex
	over    []bool // by batch: it has its answer, or its try has ended
	waiting int    // batches that are not over
}

// markOver records that a batch is over. It reports whether it was the last one.
func (c *sharedCall[Q, R]) markOver(batch int) (last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over[batch] {
		return false
	}
	c.over[batch] = true
	c.waiting--
	return c.waiting == 0
}

// run makes the call. An error of the call is the result of each batch that has no answer.
func (c *sharedCall[Q, R]) run(ctx context.Context, to rowraftv1.TableClient) {
	answered := make([]bool, len(c.batches))
	err := c.exchange(ctx, to, answered)
	for i, b := range c.batches {
		if !answered[i] {
			b.result <- shared[R]{err: err}
		}
	}
}

// exchange sends the request and passes the answers to the batches until the call ends. Its error is not
// nil.
func (c *sharedCall[Q, R]) exchange(ctx context.Context, to rowraftv1.TableClient, answered []bool) error {
	reqs := make([]*Q, len(c.batches))
	for i, b := range c.batches {
		reqs[i] = b.req
	}
	stream, err := c.calls.shared(ctx, to, reqs)
	if err != nil {
		return rpc.FromStatus(err)
	}
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return rowraft.Errorf(rowraft.CodeUnknown, "the server ended the call without an answer to this batch")
		}
		if err != nil {
			return rpc.FromStatus(err)
		}
		i := c.calls.batch(reply)
		if int(i) >= len(answered) || answered[i] {
			return rowraft.Errorf(rowraft.CodeUnknown, "the server answered batch %d of %d, or answered it twice", i,
				len(answered))
		}
		answered[i] = true
		r := shared[R]{reply: reply}
		if d := c.calls.err(reply); d != nil {
			r = shared[R]{err: rpc.FromDetail(d)}
		}
		last := c.markOver(int(i))
		c.batches[i].result <- r
		if last && slices.Contains(answered, false) { // the server still works on a batch whose try has ended
			c.cancel()
		}
	}
}
