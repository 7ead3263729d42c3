package rpc

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// answersOf reads the answers to n batches of a request.
func answersOf(t *testing.T, stream rowraftv1.Table_PullManyClient, number uint64, n int) (out []*rowraftv1.PullReply) {
	t.Helper()
	for len(out) < n {
		some, err := stream.Recv()
		if err != nil {
			t.Fatalf("request %d: %v", number, err)
		}
		if some.Number != number {
			t.Fatalf("an answer to request %d, want %d", some.Number, number)
		}
		out = append(out, some.Answers...)
	}
	return out
}

func TestAStreamHasManyRequests(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stream := openPulls(t, ctx, new(manyServer).serve(t, nil))
	for number := range uint64(3) {
		ask(t, stream, number, shards(5)[1:])
		for _, a := range answersOf(t, stream, number, 4) {
			if want := []rowraft.Code{rowraft.CodeNotLeader, rowraft.CodeCorrupt, 0, 0}[a.Batch]; rowraft.Code(
				a.Error.GetCode()) != want {
				t.Errorf("request %d, batch %d: %v, want %v", number, a.Batch, a.Error, want)
			}
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v, want EOF", err)
	}
}

// A server that stops answers the requests that it has, and ends the streams without one.
func TestAServerThatStopsEndsItsStreams(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stopping, stop := context.WithCancel(ctx)
	s := &manyServer{stopping: stopping, release: make(chan struct{})}
	stub := s.serve(t, nil)
	idle, busy := openPulls(t, ctx, stub), openPulls(t, ctx, stub)
	ask(t, idle, 1, shards(4)[3:])
	answersOf(t, idle, 1, 1)
	ask(t, busy, 1, shards(2)) // batch 0 waits
	answersOf(t, busy, 1, 1)
	stop()
	if _, err := idle.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the idle stream ends with %v, want EOF", err)
	}
	close(s.release)
	if a := answersOf(t, busy, 1, 1); a[0].Batch != 0 || a[0].Error != nil {
		t.Errorf("the request at the stop gets %v, want the rows of batch 0", a)
	}
	if _, err := busy.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the busy stream ends with %v, want EOF", err)
	}
	late := openPulls(t, ctx, stub)
	_ = late.Send(&rowraftv1.PullManyRequest{Batches: shards(4)[3:]}) // it may have ended
	if some, err := late.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("a stream after the stop: %v, %v, want EOF", some, err)
	}
}

func TestABatchThatWaitsTooLongFails(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stream := openPulls(t, ctx, new(manyServer).serve(t, nil)) // nothing releases shard 0
	if err := stream.Send(&rowraftv1.PullManyRequest{Number: 1, TimeoutNs: 1, Batches: shards(2)}); err != nil {
		t.Fatal(err)
	}
	answersOf(t, stream, 1, 2)
	ask(t, stream, 2, shards(2)[1:]) // the stream goes on
	answersOf(t, stream, 2, 1)
}

func TestARequestOfAStreamMayBeRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s := &manyServer{refuse: rowraft.Errorf(rowraft.CodeIdentity, "another cluster")}
	stream := openPulls(t, ctx, s.serve(t, nil))
	ask(t, stream, 1, shards(4)[3:])
	if some, err := stream.Recv(); rowraft.CodeOf(FromStatus(err)) != rowraft.CodeIdentity {
		t.Errorf("a refused request: %v, %v, want CodeIdentity", some, err)
	}
}
