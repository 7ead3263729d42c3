package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// testWorkers are those of all servers of the tests.
var testWorkers = NewWorkers()

// manyServer answers batches. The ones of shard 0 wait until all others have their answers.
type manyServer struct {
	rowraftv1.UnimplementedTableServer
	release  chan struct{}
	taken    atomic.Int64
	stopping context.Context // nil: it does not stop
	refuse   error           // every request of a stream of pulls
}

func (s *manyServer) PullMany(stream rowraftv1.Table_PullManyServer) error {
	p := Pulls{Workers: testWorkers, Stopping: s.stopping, Check: func(context.Context) error { return s.refuse },
		Ready: func(q *rowraftv1.PullRequest) bool { return q.Shard != 0 }, Pull: s.pullOf}
	if p.Stopping == nil {
		p.Stopping = context.Background()
	}
	return p.Serve(stream)
}

func (s *manyServer) pullOf(ctx context.Context, q *rowraftv1.PullRequest) (Counted, error) {
	switch q.Shard {
	case 0:
		select {
		case <-s.release:
		case <-ctx.Done():
			return Counted{}, ctx.Err()
		}
	case 1:
		return Counted{}, &rowraft.NotLeaderError{Shard: 1, Term: 4, Leader: "n2"}
	case 2:
		return Counted{}, rowraft.Errorf(rowraft.CodeCorrupt, "not UTF-8: \xff")
	}
	reply := &rowraftv1.PullReply{AppliedIndex: uint64(q.Shard), Payload: Pool.Bytes(5000)}
	return Counted{Reply: reply, Taken: func() { s.taken.Add(1) }}, nil
}

func (s *manyServer) WriteMany(req *rowraftv1.WriteManyRequest,
	stream grpc.ServerStreamingServer[rowraftv1.WriteReply]) error {
	return WriteMany(testWorkers, req, stream, func(_ context.Context,
		q *rowraftv1.WriteRequest) (*rowraftv1.WriteReply, error) {
		if q.Shard == 1 {
			return nil, &rowraft.NotLeaderError{Shard: 1, Term: 4, Leader: "n2"}
		}
		return &rowraftv1.WriteReply{AppliedIndex: q.Seq}, nil
	})
}

func (s *manyServer) PushStepMany(req *rowraftv1.PushStepManyRequest,
	stream grpc.ServerStreamingServer[rowraftv1.PushStepReply]) error {
	return PushStepMany(testWorkers, req, stream, func(context.Context,
		*rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply, error) {
		return &rowraftv1.PushStepReply{}, nil
	})
}

func (s *manyServer) Pull(_ context.Context, q *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	return &rowraftv1.PullReply{AppliedIndex: uint64(q.Shard), Payload: Pool.Bytes(5000)}, nil
}

func (s *manyServer) serve(t testing.TB, refuse map[string]func(context.Context) error) rowraftv1.TableClient {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(ServerOptions(nil)...)
	server.RegisterService(BeforeBodies(&rowraftv1.Table_ServiceDesc, refuse), s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-served })
	conn, err := Dial(l.Addr().String(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return rowraftv1.NewTableClient(conn)
}

// openPulls opens a stream of pulls.
func openPulls(t testing.TB, ctx context.Context, stub rowraftv1.TableClient) rowraftv1.Table_PullManyClient {
	t.Helper()
	stream, err := stub.PullMany(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// ask sends a request on a stream.
func ask(t testing.TB, stream rowraftv1.Table_PullManyClient, number uint64, batches []*rowraftv1.PullRequest) {
	t.Helper()
	if err := stream.Send(&rowraftv1.PullManyRequest{Number: number, Batches: batches}); err != nil {
		t.Fatal(err)
	}
}

func shards(n int) (out []*rowraftv1.PullRequest) {
	for i := range n {
		out = append(out, &rowraftv1.PullRequest{Shard: uint32(i)})
	}
	return out
}

func TestAnswersAreSentWhenTheyAreReady(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s := &manyServer{release: make(chan struct{})}
	stream := openPulls(t, ctx, s.serve(t, nil))
	ask(t, stream, 1, shards(5))
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	want := map[uint32]rowraft.Code{0: 0, 1: rowraft.CodeNotLeader, 2: rowraft.CodeCorrupt, 3: 0, 4: 0}
	for _, batches := range [][]uint32{{1, 2, 3, 4}, {0}} { // small ones together, and without the one that waits
		some, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var got []uint32
		for _, reply := range some.Answers {
			got = append(got, reply.Batch)
			if code := want[reply.Batch]; code != rowraft.Code(reply.Error.GetCode()) || code == 0 &&
				(reply.AppliedIndex != uint64(reply.Batch) || len(reply.Payload) != 5000) {
				t.Errorf("batch %d: %v at index %d with %d bytes, want code %v", reply.Batch, reply.Error, reply.AppliedIndex,
					len(reply.Payload), code)
			}
			if reply.Batch == 1 && (reply.Error.GetLeader() != "n2" || reply.Error.GetTerm() != 4) {
				t.Errorf("batch 1: %v, want the leader's name", reply.Error)
			}
		}
		if !slices.Equal(got, batches) {
			t.Errorf("a message has the answers %v, want %v", got, batches)
		}
		if batches[0] != 0 {
			close(s.release)
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after all answers: %v, want EOF", err)
	}
	for s.taken.Load() != 3 { // the transport frees a reply after the client has it
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%d replies were taken, want 3", s.taken.Load())
		}
	}
}

// Pulls of more than runBytes are answered by several workers, and rows of more than answerBytes in several messages.
func TestLargePullsAreAnsweredApart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	batches := slices.Repeat(shards(4)[3:], 40) // answers of 5,000 bytes
	type want struct{ payload, most int }
	for _, want := range []want{{0, answerBytes / 5000}, {runBytes / 2, 2}, {runBytes, 1}} {
		for _, q := range batches {
			q.Payload = make([]byte, want.payload)
		}
		stream := openPulls(t, ctx, new(manyServer).serve(t, nil))
		ask(t, stream, 1, batches)
		answered, most := 0, 0
		for answered < len(batches) {
			some, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			answered, most = answered+len(some.Answers), max(most, len(some.Answers))
		}
		if most != want.most {
			t.Errorf("pulls of %d bytes: %d answers in one message, want %d", want.payload, most, want.most)
		}
	}
}

func TestWritesAreAnsweredByBatch(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stream, err := new(manyServer).serve(t, nil).WriteMany(ctx, &rowraftv1.WriteManyRequest{
		Batches: []*rowraftv1.WriteRequest{{Shard: 3, Seq: 30}, {Shard: 1, Seq: 10}, {Shard: 2, Seq: 20}}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[uint32]uint64{}
	for range 3 {
		reply, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if (rowraft.Code(reply.Error.GetCode()) == rowraft.CodeNotLeader) != (reply.Batch == 1) {
			t.Errorf("batch %d: %v", reply.Batch, reply.Error)
		}
		got[reply.Batch] = reply.AppliedIndex
	}
	if got[0] != 30 || got[1] != 0 || got[2] != 20 {
		t.Errorf("indices by batch are %v, want 30, none, 20", got)
	}
}

// A caller that leaves ends the batches that wait.
func TestACallerThatLeavesEndsItsBatches(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &manyServer{release: make(chan struct{})}
	stub := s.serve(t, nil) // its cleanup waits for the handler
	stream := openPulls(t, ctx, stub)
	ask(t, stream, 1, shards(2))
	if some, err := stream.Recv(); err != nil || len(some.Answers) != 1 || some.Answers[0].Batch != 1 {
		t.Errorf("%v, %v, want the answer to batch 1", some, err)
	}
	cancel()
	if _, err := stream.Recv(); err == nil {
		t.Error("an answer to a batch that waits forever")
	}
}

func TestTooManyBatchesAreRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s := &manyServer{release: make(chan struct{})}
	close(s.release)
	stub := s.serve(t, nil)
	calls := map[string]func(n int) (grpc.ClientStream, error){
		"PullMany": func(n int) (grpc.ClientStream, error) {
			stream := openPulls(t, ctx, stub)
			ask(t, stream, 1, shards(n))
			return stream, nil
		},
		"WriteMany": func(n int) (grpc.ClientStream, error) {
			return stub.WriteMany(ctx, &rowraftv1.WriteManyRequest{Batches: empty[rowraftv1.WriteRequest](n)})
		},
		"PushStepMany": func(n int) (grpc.ClientStream, error) {
			return stub.PushStepMany(ctx, &rowraftv1.PushStepManyRequest{Batches: empty[rowraftv1.PushStepRequest](n)})
		},
	}
	for name, call := range calls {
		for n, ok := range map[int]bool{MaxBatches: true, MaxBatches + 1: false} {
			stream, err := call(n)
			if err == nil {
				err = stream.RecvMsg(new(rowraftv1.PushStepReply)) // only the error matters
			}
			if (err == nil) != ok {
				t.Errorf("%s of %d batches: %v", name, n, err)
			}
		}
	}
}

// empty returns n requests without content.
func empty[Q any](n int) []*Q {
	out := make([]*Q, n)
	for i := range out {
		out[i] = new(Q)
	}
	return out
}

// A stream is refused before its body is read, as a unary call is.
func TestSharedCallsAreRefusedBeforeTheirBodies(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stub := new(manyServer).serve(t, map[string]func(context.Context) error{"WriteMany": func(ctx context.Context) error {
		if len(BatchSizesOf(ctx)) == 2 {
			return &rowraft.OverloadedError{What: "busy", RetryAfter: 40 * time.Millisecond}
		}
		return nil
	}})
	for n := 1; n <= 2; n++ {
		stream, err := stub.WriteMany(WithBatchSizes(ctx, make([]BatchSize, n)...),
			&rowraftv1.WriteManyRequest{Batches: []*rowraftv1.WriteRequest{{}}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		o, refused := errors.AsType[*rowraft.OverloadedError](FromStatus(err))
		if refused != (n == 2) || refused && o.RetryAfter != 40*time.Millisecond {
			t.Errorf("%d announced batches: %v", n, err)
		}
	}
}

// BenchmarkPullMany compares unary calls, a stream for each request ("shared"), and one for all requests ("stream").
func BenchmarkPullMany(b *testing.B) {
	stub := new(manyServer).serve(b, nil)
	for _, n := range []int{1, 4} {
		var batches []*rowraftv1.PullRequest
		for range n {
			batches = append(batches, &rowraftv1.PullRequest{Shard: 3})
		}
		b.Run(fmt.Sprintf("unary/batches=%d", n), func(b *testing.B) {
			for b.Loop() {
				var wg sync.WaitGroup
				for _, q := range batches {
					wg.Go(func() {
						reply, err := stub.Pull(b.Context(), q)
						if err != nil {
							b.Error(err)
						}
						Pool.Release(reply.GetPayload())
					})
				}
				wg.Wait()
			}
		})
		b.Run(fmt.Sprintf("shared/batches=%d", n), func(b *testing.B) {
			for b.Loop() {
				ctx, cancel := context.WithCancel(b.Context())
				pullOnce(b, openPulls(b, ctx, stub), batches)
				cancel()
			}
		})
		b.Run(fmt.Sprintf("stream/batches=%d", n), func(b *testing.B) {
			stream := openPulls(b, b.Context(), stub)
			for b.Loop() {
				pullOnce(b, stream, batches)
			}
		})
	}
}

// pullOnce makes a request on a stream and reads its answers.
func pullOnce(b *testing.B, stream rowraftv1.Table_PullManyClient, batches []*rowraftv1.PullRequest) {
	ask(b, stream, 1, batches)
	for answers := 0; answers < len(batches); {
		some, err := stream.Recv()
		if err != nil {
			b.Fatal(err)
		}
		answers += len(some.Answers)
		for _, reply := range some.Answers {
			Pool.Release(reply.Payload)
		}
	}
}
