package pullstream

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// server answers each request of a stream by answer, which returns an error to end the stream. Each reply names in
// AppliedIndex the shard that was asked.
type server struct {
	rowraftv1.UnimplementedTableServer
	answer func(rowraftv1.Table_PullManyServer, *rowraftv1.PullManyRequest) error

	mu       sync.Mutex
	requests []int // of each stream
	ended    chan struct{}
}

func (s *server) PullMany(stream rowraftv1.Table_PullManyServer) error {
	s.mu.Lock()
	n := len(s.requests)
	s.requests = append(s.requests, 0)
	s.mu.Unlock()
	defer func() { s.ended <- struct{}{} }()
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.requests[n]++
		s.mu.Unlock()
		if err := s.answer(stream, req); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (s *server) counts() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// replyTo returns the reply with answers to the given batches of a request.
func replyTo(req *rowraftv1.PullManyRequest, batches ...uint32) *rowraftv1.PullManyReply {
	reply := &rowraftv1.PullManyReply{Number: req.Number}
	for _, b := range batches {
		a := &rowraftv1.PullReply{Batch: b}
		if int(b) < len(req.Batches) {
			a.AppliedIndex = uint64(req.Batches[b].Shard)
		}
		reply.Answers = append(reply.Answers, a)
	}
	return reply
}

// echo answers both batches of a request, the last one first.
func echo(stream rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
	if err := stream.Send(replyTo(req, 1)); err != nil {
		return err
	}
	return stream.Send(replyTo(req, 0))
}

// start serves s, and returns a pool for it and its address.
func (s *server) start(t *testing.T) (*Pool, string) {
	t.Helper()
	s.ended = make(chan struct{}, 1000)
	l := rpctest.Listen(t)
	rpctest.Serve(t, l, func(g *grpc.Server) { rowraftv1.RegisterTableServer(g, s) })
	conns := route.NewPool(nil, nil, 2)
	t.Cleanup(func() { conns.Close() })
	return New(t.Context(), conns), l.Addr().String()
}

// pull makes a call with batches of two shards, and checks its answers.
func pull(ctx context.Context, p *Pool, addr string, shard uint32) error {
	next, err := p.Call(ctx, "c", addr, []*rowraftv1.PullRequest{{Shard: shard}, {Shard: shard + 1}})
	for answers := 0; err == nil; {
		var some []*rowraftv1.PullReply
		some, err = next()
		for _, a := range some {
			if answers++; a.AppliedIndex != uint64(shard+a.Batch) {
				return rowraft.Errorf(rowraft.CodeInternal, "batch %d of shard %d has the rows of shard %d", a.Batch, shard,
					a.AppliedIndex)
			}
		}
		if errors.Is(err, io.EOF) && answers == 2 {
			return nil
		}
	}
	return err
}

func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Calls after each other share one stream, and concurrent ones have one each.
func TestStreamsAreUsedAgain(t *testing.T) {
	s := &server{answer: echo}
	p, addr := s.start(t)
	for shard := range uint32(20) {
		if err := pull(patience(t), p, addr, 10*shard); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.counts(); !slices.Equal(got, []int{20}) {
		t.Errorf("20 calls made the requests %v on streams, want one stream", got)
	}
	var wg sync.WaitGroup
	for caller := range uint32(8) {
		wg.Go(func() {
			for shard := range uint32(200) {
				if err := pull(patience(t), p, addr, 1000*caller+2*shard); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := s.counts(); len(got) > 8 {
		t.Errorf("8 callers used %d streams", len(got))
	}
}

// A server may end a stream between two requests: the next call is made on another stream.
func TestAStreamThatHasEndedIsReplaced(t *testing.T) {
	for _, late := range []bool{false, true} { // the client has sent the request when the stream ends
		s := &server{}
		again, ended := make(chan struct{}), false
		s.answer = func(stream rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
			if req.Batches[0].Shard == 2 && !ended {
				ended = true
				return io.EOF // as if it had not been read
			}
			if err := echo(stream, req); err != nil || late || ended {
				return err
			}
			defer close(again)
			ended = true
			return io.EOF
		}
		p, addr := s.start(t)
		if err := pull(patience(t), p, addr, 1); err != nil {
			t.Fatal(err)
		}
		if !late {
			<-again
			<-s.ended
		}
		if err := pull(patience(t), p, addr, 2); err != nil {
			t.Errorf("late=%v: %v", late, err)
		}
		if got := s.counts(); len(got) != 2 {
			t.Errorf("late=%v: requests on streams %v, want two streams", late, got)
		}
	}
}

// A stream with answers that were not asked for would give later calls the rows of other keys.
func TestWrongAnswersEndTheStream(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(rowraftv1.Table_PullManyServer, *rowraftv1.PullManyRequest) error
		code   rowraft.Code
	}{
		"another request": {func(s rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
			req.Number++
			return s.Send(replyTo(req, 0, 1))
		}, rowraft.CodeUnknown},
		"the same batch twice": {func(s rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
			return s.Send(replyTo(req, 1, 1))
		}, rowraft.CodeUnknown},
		"a batch that was not sent": {func(s rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
			return s.Send(replyTo(req, 0, 2))
		}, rowraft.CodeUnknown},
		"a batch far away": {func(s rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
			return s.Send(replyTo(req, 0, 1<<31))
		}, rowraft.CodeUnknown},
		"too many": {func(s rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
			return s.Send(replyTo(req, 0, 1, 1))
		}, rowraft.CodeUnknown},
	} {
		wrong := true
		s := &server{}
		s.answer = func(stream rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
			if wrong {
				wrong = false
				return tc.answer(stream, req)
			}
			return echo(stream, req)
		}
		p, addr := s.start(t)
		if err := pull(patience(t), p, addr, 1); rowraft.CodeOf(err) != tc.code {
			t.Errorf("%s: %v, want %v", name, err, tc.code)
		}
		<-s.ended
		if err := pull(patience(t), p, addr, 5); err != nil || len(s.counts()) != 2 {
			t.Errorf("%s: the next call: %v on stream %d, want another stream", name, err, len(s.counts()))
		}
	}
}

// Answers beyond those that a call reads are found by the next one.
func TestALateAnswerEndsTheStream(t *testing.T) {
	s := &server{answer: func(stream rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
		if err := echo(stream, req); err != nil {
			return err
		}
		return stream.Send(replyTo(req, 0))
	}}
	p, addr := s.start(t)
	if err := pull(patience(t), p, addr, 1); err != nil {
		t.Fatal(err)
	}
	if err := pull(patience(t), p, addr, 5); rowraft.CodeOf(err) != rowraft.CodeUnknown {
		t.Errorf("%v, want CodeUnknown", err)
	}
}

// A call that its caller leaves ends its stream, so that the server stops its work.
func TestACallerThatLeavesEndsItsStream(t *testing.T) {
	arrived := make(chan struct{}, 1)
	s := &server{answer: func(stream rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
		if req.TimeoutNs == 0 || req.TimeoutNs > uint64(2*time.Minute) {
			t.Errorf("the request has a timeout of %v, want at most that of the caller", time.Duration(req.TimeoutNs))
		}
		arrived <- struct{}{}
		<-stream.Context().Done()
		return stream.Context().Err()
	}}
	p, addr := s.start(t)
	why := errors.New("the caller has left")
	ctx, leave := context.WithCancelCause(patience(t))
	go func() { <-arrived; leave(why) }()
	if err := pull(ctx, p, addr, 1); rowraft.CodeOf(err) != rowraft.CodeDeadline || !errors.Is(err, why) {
		t.Errorf("%v, want CodeDeadline and the cause", err)
	}
	<-s.ended
	if idle := p.idle[addr]; len(idle) != 0 {
		t.Errorf("%d streams are idle, want none", len(idle))
	}
}

// Streams end that are old, of another cluster, or not needed.
func TestStreamsThatAreNotNeededEnd(t *testing.T) {
	s := &server{answer: echo}
	p, addr := s.start(t)
	open := func() *stream {
		if err := pull(patience(t), p, addr, 1); err != nil {
			t.Fatal(err)
		}
		return p.idle[addr][len(p.idle[addr])-1]
	}
	open().opened = time.Now().Add(-maxAge)
	open()
	<-s.ended
	open().home = "another"
	open()
	<-s.ended
	if n := len(s.counts()); n != 3 {
		t.Fatalf("%d streams, want 3", n)
	}
	first := p.take(addr, "c")
	open()
	p.put(addr, first)
	if p.idle[addr][0].used = time.Now().Add(-2 * idleFor); len(p.idle[addr]) != 2 {
		t.Fatalf("%d streams are idle, want 2", len(p.idle[addr]))
	}
	open() // on first
	<-s.ended
	if len(p.idle[addr]) != 1 || p.idle[addr][0] != first {
		t.Errorf("%d streams are idle, want the one that is used", len(p.idle[addr]))
	}
	for range maxIdle {
		p.put(addr, &stream{cancel: func() {}, home: "c", opened: time.Now()})
	}
	<-s.ended // the stream of the server is the first that goes
	if n := len(p.idle[addr]); n != maxIdle {
		t.Errorf("%d streams are idle, want at most %d", n, maxIdle)
	}
}

// A call to a server that cannot be reached ends.
func TestAServerThatIsAway(t *testing.T) {
	s := &server{answer: echo}
	p, _ := s.start(t)
	l := rpctest.Listen(t)
	l.Close()
	if err := pull(patience(t), p, l.Addr().String(), 1); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%v, want the error of the connection", err)
	}
	if err := pull(patience(t), p, "no address", 1); err == nil {
		t.Error("no error for an address that is none")
	}
}
