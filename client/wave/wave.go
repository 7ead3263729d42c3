package wave

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// SharedBytes limits the payloads of one shared request, unless it has a single batch. A larger request
// would delay its first batch, and the cost of a call is small against that of so many bytes.
const SharedBytes = 1 << 20

// AnnounceMinBytes: requests with a batch of at least this size announce it in a header, so
// that an overloaded server can refuse them before it reads the body. Reading a smaller
// body costs the server less than reading the header.
const AnnounceMinBytes = 16 << 10

// Server is the server of a try. A try that Relayed marks is for another server that forwards it: it is sent alone,
// because servers do not forward shared calls.
type Server struct {
	rowraftv1.TableClient
	Addr    string
	Relayed bool
}

// Calls are the two ways to send a request Q: alone, or with others in one call whose replies R come as
// they are ready and name their batch.
type Calls[Q any, R Reply] struct {
	alone   func(context.Context, rowraftv1.TableClient, *Q) (R, error)
	shared  func(context.Context, rowraftv1.TableClient, []*Q) (Replies[R], error)
	payload func(*Q) []byte
}

// oneByOne returns the replies of a call that has a message for each.
func oneByOne[T any, R interface {
	*T
	Reply
}](stream grpc.ServerStreamingClient[T], err error) (Replies[R], error) {
	return func() ([]R, error) {
		reply, err := stream.Recv()
		return []R{reply}, err
	}, err
}

// Writes and Steps are the calls of the Table service that can be shared.
var Writes = Calls[rowraftv1.WriteRequest, *rowraftv1.WriteReply]{
	alone: func(ctx context.Context, to rowraftv1.TableClient, q *rowraftv1.WriteRequest) (*rowraftv1.WriteReply, error) {
		return to.Write(announce(ctx, q), q)
	},
	shared: func(ctx context.Context, to rowraftv1.TableClient,
		qs []*rowraftv1.WriteRequest) (Replies[*rowraftv1.WriteReply], error) {
		return oneByOne(to.WriteMany(announce(ctx, qs...), &rowraftv1.WriteManyRequest{Batches: qs}))
	},
	payload: (*rowraftv1.WriteRequest).GetPayload,
}

var Steps = Calls[rowraftv1.PushStepRequest, *rowraftv1.PushStepReply]{
	alone: func(ctx context.Context, to rowraftv1.TableClient, q *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply,
		error) {
		return to.PushStep(ctx, q)
	},
	shared: func(ctx context.Context, to rowraftv1.TableClient,
		qs []*rowraftv1.PushStepRequest) (Replies[*rowraftv1.PushStepReply], error) {
		return oneByOne(to.PushStepMany(ctx, &rowraftv1.PushStepManyRequest{Batches: qs}))
	},
	payload: (*rowraftv1.PushStepRequest).GetPayload,
}

// announce returns ctx for a call with the given batches. If they are large, ctx announces them.
func announce(ctx context.Context, qs ...*rowraftv1.WriteRequest) context.Context {
	sizes, bytes := make([]rpc.BatchSize, len(qs)), 0
	for i, q := range qs {
		sizes[i] = rpc.BatchSize{Shard: q.Shard, Bytes: len(q.Payload), Delete: q.Op == rowraftv1.WriteOp(wire.OpDelete)}
		bytes += len(q.Payload)
	}
	if bytes < AnnounceMinBytes {
		return ctx
	}
	return rpc.WithBatchSizes(ctx, sizes...)
}

// wave is the set of the batches of one push or step whose first tries share one call per server. The calls
// start when each batch has joined, with the server that it has chosen, or is skipped. A batch whose first try fails is
// sent again alone.
//
// Lock order: mu, then the locks of spawn.
type wave[Q any, R Reply] struct {
	ctx   context.Context // ends with the client
	spawn func(func()) error
	calls *Calls[Q, R]

	mu     sync.Mutex
	absent int                             // batches that have neither joined nor are skipped
	joined map[string][]*sharedBatch[Q, R] // by the address of the server
}

// New returns the first tries of n batches that are sent together. The goroutine of each batch must call Send or
// Skip with its try soon, because the others wait for it. A single batch has a nil try.
func New[Q any, R Reply](ctx context.Context, spawn func(func()) error, calls *Calls[Q, R], n int) []*Try[Q, R] {
	tries := make([]*Try[Q, R], n)
	if n > 1 {
		w := &wave[Q, R]{ctx: ctx, spawn: spawn, calls: calls, absent: n, joined: make(map[string][]*sharedBatch[Q, R])}
		for i := range tries {
			tries[i] = &Try[Q, R]{wave: w}
		}
	}
	return tries
}

// sendLocked starts the calls if every batch has joined or is skipped.
// REQUIRES: w.mu is held.
func (w *wave[Q, R]) sendLocked() {
	if w.absent > 0 {
		return
	}
	for _, batches := range w.joined {
		batches = slices.DeleteFunc(batches, func(b *sharedBatch[Q, R]) bool { return b.gone })
		for len(batches) > 0 {
			n := Cut(len(batches), func(i int) []byte { return w.calls.payload(batches[i].req) })
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
	first := batches[0]
	ctx := context.WithoutCancel(first.ctx)
	var cancel context.CancelFunc
	if end, ok := first.ctx.Deadline(); ok {
		for _, b := range batches[1:] {
			if other, ok := b.ctx.Deadline(); ok && other.After(end) {
				end = other
			}
		}
		ctx, cancel = context.WithDeadline(ctx, end)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	call := NewShared(len(batches), cancel, func(batch int, reply R, err error) {
		batches[batch].result <- shared[R]{reply: reply, err: err}
	})
	reqs := make([]*Q, len(batches))
	for i, b := range batches {
		b.call, b.index, reqs[i] = call, i, b.req
	}
	err := w.spawn(func() {
		defer cancel()
		defer context.AfterFunc(w.ctx, cancel)()
		call.Run(w.calls.shared(ctx, first.to, reqs))
	})
	if err != nil {
		cancel()
		for _, b := range batches {
			b.result <- shared[R]{err: err}
		}
	}
}

// Try is the place of one batch in a wave. It is safe for concurrent use. A nil Try sends the batch alone.
type Try[Q any, R Reply] struct {
	wave *wave[Q, R]
	used bool // under wave.mu: the batch has joined or is skipped
}

// sharedBatch is a batch that has joined a wave.
type sharedBatch[Q any, R Reply] struct {
	ctx    context.Context // of the try
	to     rowraftv1.TableClient
	req    *Q
	result chan shared[R] // capacity 1: the try may have ended

	// Under wave.mu:
	call  *Shared[R] // that has the batch; nil: none yet, or it is sent alone
	index int        // in that call
	gone  bool       // the try has ended
}

// shared is the result of a sharedBatch. alone means that no other batch goes to its server.
type shared[R Reply] struct {
	reply R
	err   error
	alone bool
}

// Skip takes the batch out of the wave, so that the others do not wait for it. It has no effect after Send.
func (t *Try[Q, R]) Skip() {
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

// Send is one try of a batch. The first one joins the other batches for the server, unless the server is to
// forward it. When ctx ends, the batch leaves the shared call, which goes on for the others.
func (k *Calls[Q, R]) Send(ctx context.Context, t *Try[Q, R], to Server, req *Q) (reply R, err error) {
	if t == nil || to.Relayed {
		t.Skip()
		return k.alone(ctx, to.TableClient, req)
	}
	w := t.wave
	w.mu.Lock()
	if t.used { // it is sent again, or was skipped
		w.mu.Unlock()
		return k.alone(ctx, to.TableClient, req)
	}
	b := &sharedBatch[Q, R]{ctx: ctx, to: to.TableClient, req: req, result: make(chan shared[R], 1)}
	w.joined[to.Addr] = append(w.joined[to.Addr], b)
	t.used = true
	w.absent--
	w.sendLocked()
	w.mu.Unlock()
	select {
	case r := <-b.result:
		if r.alone {
			return k.alone(ctx, to.TableClient, req)
		}
		return r.reply, r.err
	case <-ctx.Done():
	}
	w.mu.Lock()
	b.gone = true
	call := b.call
	w.mu.Unlock()
	if call != nil {
		call.Leave(b.index)
	}
	return reply, rowraft.Errorf(rowraft.CodeDeadline, "no answer: %w", context.Cause(ctx))
}
