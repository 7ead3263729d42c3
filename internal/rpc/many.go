package rpc

import (
	"context"
	"sync"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// MaxBatches limits the batches of one request.
const MaxBatches = 64

// Fit returns how many of n payloads, from the first one on, have at most limit bytes together: at least one.
func Fit(n, limit int, payload func(i int) []byte) (fit int) {
	for bytes := 0; fit < n; fit++ {
		if bytes += len(payload(fit)); fit > 0 && bytes > limit {
			break
		}
	}
	return fit
}

// WriteMany answers the batches of req on stream, concurrently. It calls write for each of them, on workers, and sends
// each answer when it is ready.
func WriteMany(workers *Workers, req *rowraftv1.WriteManyRequest, stream grpc.ServerStream,
	write func(context.Context, *rowraftv1.WriteRequest) (*rowraftv1.WriteReply, error)) error {
	return each(workers, stream, req.Batches, func(ctx context.Context, batch uint32, q *rowraftv1.WriteRequest) any {
		reply, err := write(ctx, q)
		if err != nil {
			return &rowraftv1.WriteReply{Batch: batch, Error: Detail(err)}
		}
		reply.Batch = batch
		return reply
	})
}

// PushStepMany is WriteMany for steps.
func PushStepMany(workers *Workers, req *rowraftv1.PushStepManyRequest, stream grpc.ServerStream,
	push func(context.Context, *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply, error)) error {
	return each(workers, stream, req.Batches, func(ctx context.Context, batch uint32, q *rowraftv1.PushStepRequest) any {
		reply, err := push(ctx, q)
		if err != nil {
			return &rowraftv1.PushStepReply{Batch: batch, Error: Detail(err)}
		}
		reply.Batch = batch
		return reply
	})
}

// each calls answer for all batches and sends what it returns.
func each[Q any](workers *Workers, stream grpc.ServerStream, batches []*Q,
	answer func(context.Context, uint32, *Q) any) error {
	c := manyCall{workers: workers, stream: stream}
	return c.run(len(batches), func(int) int { return 1 }, func(i, _ int) {
		c.send(answer(stream.Context(), uint32(i), batches[i]))
	})
}

// manyCall is a request with several batches.
type manyCall struct {
	workers *Workers
	stream  grpc.ServerStream
	wg      sync.WaitGroup // the functions on workers

	mu    sync.Mutex // held to send
	first error      // the first error of the stream
}

// run cuts n batches into runs of length(first) batches from first on, and calls answer for them concurrently, for the
// last one on this goroutine. It returns the first error of the stream.
func (c *manyCall) run(n int, length func(first int) int, answer func(first, n int)) error {
	if n > MaxBatches {
		return ToStatus(rowraft.Errorf(rowraft.CodeInvalidArgument, "%d batches in one request: want at most %d", n,
			MaxBatches))
	}
	for first := 0; first < n; {
		k := length(first)
		if at := first; at+k < n {
			c.spawn(func() { answer(at, k) })
		} else {
			answer(at, k)
		}
		first += k
	}
	c.wg.Wait()
	return c.first
}

// spawn calls f on a worker.
func (c *manyCall) spawn(f func()) {
	c.wg.Add(1)
	c.workers.Run(func() {
		defer c.wg.Done()
		f()
	})
}

// send sends a message. After an error of the stream it still passes the message to the stream, which frees its
// memory.
func (c *manyCall) send(m any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.stream.SendMsg(m); c.first == nil {
		c.first = err
	}
}
