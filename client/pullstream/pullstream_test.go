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

// A server may end a stream between two requests. A call that finds it so is made on another one. A call that has sent
// its request fails, and its caller asks elsewhere: the server is stopping.
func TestAStreamThatHasEnded(t *testing.T) {
	for _, late := range []bool{false, true} { // the client has sent a request when the stream ends
		s := &server{}
		first := true
		s.answer = func(stream rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
			if late && req.Batches[0].Shard == 2 {
				return io.EOF // as if it had not been read
			}
			if err := echo(stream, req); err != nil || late || !first {
				return err
			}
			first = false
			return io.EOF
		}
		p, addr := s.start(t)
		if err := pull(patience(t), p, addr, 1); err != nil {
			t.Fatal(err)
		}
		if !late {
			if _, err := p.servers[addr].idle[0].Recv(); !errors.Is(err, io.EOF) { // then the client knows
				t.Fatal(err)
			}
		}
		err := pull(patience(t), p, addr, 2)
		if rowraft.CodeOf(err) != map[bool]rowraft.Code{true: rowraft.CodeClosing}[late] {
			t.Errorf("late=%v: %v, want CodeClosing for a late end only", late, err)
		}
	}
}

// A stream with answers that were not asked for would give later calls the rows of other keys.
func TestWrongAnswersEndTheStream(t *testing.T) {
	for name, answer := range map[string]func(rowraftv1.Table_PullManyServer, *rowraftv1.PullManyRequest) error{
		"another request": func(s rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
			req.Number++
			return s.Send(replyTo(req, 0, 1))
		},
		"the same batch twice": func(s rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
			return s.Send(replyTo(req, 1, 1))
		},
		"a batch that was not sent": func(s rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
			return s.Send(replyTo(req, 0, 2))
		},
		"a batch far away": func(s rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
			return s.Send(replyTo(req, 0, 1<<31))
		},
		"too many": func(s rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
			return s.Send(replyTo(req, 0, 1, 1))
		},
	} {
		wrong := true
		s := &server{}
		s.answer = func(stream rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
			if wrong {
				wrong = false
				return answer(stream, req)
			}
			return echo(stream, req)
		}
		p, addr := s.start(t)
		if err := pull(patience(t), p, addr, 1); rowraft.CodeOf(err) != rowraft.CodeUnknown {
			t.Errorf("%s: %v, want CodeUnknown", name, err)
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
	if len(p.servers) != 0 {
		t.Errorf("streams are left: %v", p.servers)
	}
}

// Streams end that are old, of another cluster, or not needed.
func TestStreamsThatAreNotNeededEnd(t *testing.T) {
	s := &server{answer: echo}
	p, addr := s.start(t)
	use := func() *streams {
		if err := pull(patience(t), p, addr, 1); err != nil {
			t.Fatal(err)
		}
		return p.servers[addr]
	}
	use().idle[0].home = "another"
	use().idle[0].opened = time.Now().Add(-2 * maxAge)
	<-s.ended
	if use() != nil { // the stream has ended after its call
		t.Errorf("an old stream is kept")
	}
	<-s.ended
	var all []*stream
	for range 3 {
		use()
		all = append(all, p.take(addr, "c"))
	}
	for _, s := range all {
		p.put(addr, s)
	}
	if n := len(p.servers[addr].idle); n != 3 {
		t.Fatalf("%d streams are idle, want 3", n)
	}
	all[0].used = time.Now().Add(-idleFor)
	p.sweep()
	<-s.ended
	if idle := p.servers[addr].idle; len(idle) != 2 || idle[0] != all[1] || !p.sweeps {
		t.Errorf("%d streams are idle, want the two that were used, and a timer for them (%v)", len(idle), p.sweeps)
	}
	all[1].used, all[2].used = all[0].used, all[0].used
	p.sweep()
	if len(p.servers) != 0 || p.sweeps {
		t.Errorf("%v is left, want nothing, and no timer (%v)", p.servers, p.sweeps)
	}
}

// A client with more concurrent calls than a connection may have does not keep its other calls from the connection.
func TestManyCallersLeaveRoom(t *testing.T) {
	const callers = 300
	s := &server{answer: echo}
	p, addr := s.start(t)
	p.conns = route.NewPool(nil, nil, 1)
	defer p.conns.Close()
	var wg sync.WaitGroup
	other := make(chan struct{}) // closed after a call that is no pull of the pool
	for caller := range uint32(callers) {
		wg.Go(func() {
			for {
				select {
				case <-other:
					return
				default:
				}
				if err := pull(patience(t), p, addr, 2*caller); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	defer wg.Wait()
	defer close(other)
	for ctx := patience(t); len(s.counts()) < callers; {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%d callers have got a stream", len(s.counts()))
		}
	}
	conn, err := p.conns.Get(addr)
	if err != nil {
		t.Fatal(err)
	}
	_, err = rowraftv1.NewTableClient(conn).WaitClock(patience(t), &rowraftv1.WaitClockRequest{})
	if rowraft.CodeOf(err) != rowraft.CodeVersionTooNew { // the server has no such call
		t.Errorf("another call: %v", err)
	}
}

// The end of a client ends its calls and its idle streams.
func TestAClientThatClosesEndsItsStreams(t *testing.T) {
	arrived := make(chan struct{}, 1)
	s := &server{}
	s.answer = func(stream rowraftv1.Table_PullManyServer, req *rowraftv1.PullManyRequest) error {
		if req.Batches[0].Shard == 1 {
			return echo(stream, req)
		}
		arrived <- struct{}{}
		<-stream.Context().Done()
		return nil
	}
	p, addr := s.start(t)
	ctx, end := context.WithCancel(t.Context())
	p.ctx = ctx
	if err := pull(patience(t), p, addr, 1); err != nil {
		t.Fatal(err)
	}
	idle := p.take(addr, "c")
	go func() { <-arrived; p.put(addr, idle); end() }()
	if err := pull(patience(t), p, addr, 5); err == nil {
		t.Error("a call succeeded without an answer")
	}
	<-s.ended
	<-s.ended
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
