package rpc

import (
	"context"
	"sync"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// MaxBatches limits the batches of one request. A server answers them concurrently.
const MaxBatches = 64

// PullMany answers the batches of req on stream. It calls pull for each batch concurrently, on workers, and sends each
// answer when it is ready: a batch that waits delays no other. pull returns a PullReply or a Counted.
func PullMany(workers *Workers, req *rowraftv1.PullManyRequest, stream grpc.ServerStream,
	pull func(context.Context, *rowraftv1.PullRequest) (any, error)) error {
	return many(workers, stream, req.Batches, func(ctx context.Context, batch uint32, q *rowraftv1.PullRequest) any {
		reply, err := pull(ctx, q)
		if err != nil {
			return &rowraftv1.PullReply{Batch: batch, Error: Detail(err)}
		}
		switch r := reply.(type) {
		case *Counted:
			r.Reply.Batch = batch
		case *rowraftv1.PullReply:
			r.Batch = batch
		}
		return reply
	})
}

// WriteMany is PullMany for writes.
func WriteMany(workers *Workers, req *rowraftv1.WriteManyRequest, stream grpc.ServerStream,
	write func(context.Context, *rowraftv1.WriteRequest) (*rowraftv1.WriteReply, error)) error {
	return many(workers, stream, req.Batches, func(ctx context.Context, batch uint32, q *rowraftv1.WriteRequest) any {
		reply, err := write(ctx, q)
		if err != nil {
			return &rowraftv1.WriteReply{Batch: batch, Error: Detail(err)}
		}
		reply.Batch = batch
		return reply
	})
}

// PushStepMany is PullMany for steps.
func PushStepMany(workers *Workers, req *rowraftv1.PushStepManyRequest, stream grpc.ServerStream,
	push func(context.Context, *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply, error)) error {
	return many(workers, stream, req.Batches, func(ctx context.Context, batch uint32, q *rowraftv1.PushStepRequest) any {
		reply, err := push(ctx, q)
		if err != nil {
			return &rowraftv1.PushStepReply{Batch: batch, Error: Detail(err)}
		}
		reply.Batch = batch
		return reply
	})
}

// many calls answer for all batches concurrently, the last one on this goroutine, and sends what it
// returns. After an error of the stream it still passes each answer to the stream, which frees its memory.
func many[Q any](workers *Workers, stream grpc.ServerStream, batches []*Q,
	answer func(context.Context, uint32, *Q) any) error {
	var (
		mu    sync.Mutex // held to send
		first error
		wg    sync.WaitGroup
	)
	if len(batches) > MaxBatches {
		return ToStatus(rowraft.Errorf(rowraft.CodeInvalidArgument, "%d batches in one request: want at most %d",
			len(batches), MaxBatches))
	}
	one := func(i int) {
		reply := answer(stream.Context(), uint32(i), batches[i])
		mu.Lock()
		defer mu.Unlock()
		if err := stream.SendMsg(reply); first == nil {
			first = err
		}
	}
	for i := range batches {
		if i == len(batches)-1 {
			one(i)
		} else {
			wg.Add(1)
			workers.Run(func() {
				defer wg.Done()
				one(i)
			})
		}
	}
	wg.Wait()
	return first
}
