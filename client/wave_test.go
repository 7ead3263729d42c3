package client

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/wave"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// oneKeyPerShard returns a key of each shard, ascending.
func (s *fakeServer) oneKeyPerShard(table *Table) (keys []rowraft.Key) {
	for i := range s.m.Shards {
		keys = append(keys, s.keyOf(table, rowraft.ShardID(i)))
	}
	slices.Sort(keys)
	return keys
}

// A pull, a push and a step of several shards are one call each to a server that leads them all. A push to
// one shard is unary. The batch with the clock of a clocked push waits for the others.
func TestOneCallPerServer(t *testing.T) {
	var pulled, pushed, stepped atomic.Int64
	s := fakeServer{
		pull: func(_ context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
			pulled.Add(1)
			return zeros(req)
		},
		push: func(context.Context, *rowraftv1.WriteRequest) error { pushed.Add(1); return nil },
		step: func(context.Context, *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply, error) {
			stepped.Add(1)
			return &rowraftv1.PushStepReply{Outcome: rowraftv1.StepOutcome_STEP_OUTCOME_APPLIED}, nil
		},
	}
	s.serve(t, 5)
	c, table := s.dial(t, nil)
	ctx, keys := patience(t), s.oneKeyPerShard(table)
	job, err := c.Job(JobOptions{ID: rowraft.JobID{1}, Generation: 1, Incarnation: 1})
	if err != nil {
		t.Fatal(err)
	}
	all := Segment{Table: table, Keys: keys, Values: make([]float32, 10)}
	for i, call := range []struct {
		name    string
		do      func() error
		batches *atomic.Int64
		shared  int64
	}{
		{"pull", func() error { return table.Pull(ctx, keys, make([]float32, 10)) }, &pulled, 1},
		{"bounded pull", func() error {
			_, err := c.PullWith(ctx, tenSeconds, Segment{Table: table, Keys: keys, Values: make([]float32, 10)})
			return err
		}, &pulled, 1},
		{"push", func() error { _, err := table.Push(ctx, keys, make([]float32, 10)); return err }, &pushed, 1},
		{"step", func() error { _, err := job.PushStep(ctx, 1, nil, all); return err }, &stepped, 1},
		{"clocked push", func() error { _, err := job.PushClock(ctx, 1, nil, all); return err }, &pushed, 1},
		{"pull of one shard", func() error { return table.Pull(ctx, keys[:1], make([]float32, 2)) }, &pulled, 1},
		{"push of one shard", func() error { _, err := table.Push(ctx, keys[:1], make([]float32, 2)); return err }, &pushed,
			0},
	} {
		call.batches.Store(0)
		s.shared.Store(0)
		if err := call.do(); err != nil {
			t.Errorf("%s: %v", call.name, err)
		}
		want := int64(5)
		if i > 4 {
			want = 1
		}
		if got := call.batches.Load(); got != want || s.shared.Load() != call.shared {
			t.Errorf("%s: %d batches and %d shared calls, want %d and %d", call.name, got, s.shared.Load(), want, call.shared)
		}
	}
}

// sent records the numbers under which shards were asked.
type sent struct {
	mu   sync.Mutex
	seqs map[uint32][]uint64
}

func (s *sent) add(shard uint32, seq uint64) (try int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seqs == nil {
		s.seqs = make(map[uint32][]uint64)
	}
	s.seqs[shard] = append(s.seqs[shard], seq)
	return len(s.seqs[shard])
}

// counts returns how often each shard was asked.
func (s *sent) counts() map[uint32]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := make(map[uint32]int)
	for shard, seqs := range s.seqs {
		counts[shard] = len(seqs)
	}
	return counts
}

// Shard 2 has no quorum: its leader takes the batch and gives no answer. The other batches of the request
// get theirs. When the leader fails, the batch is sent again under the same number, and no other batch is.
func TestAShardWithoutAQuorumDelaysNoOther(t *testing.T) {
	var tries sent
	fail := make(chan struct{})
	s := fakeServer{push: func(_ context.Context, req *rowraftv1.WriteRequest) error {
		if tries.add(req.Shard, req.Seq) == 1 && req.Shard == 2 {
			<-fail
			return rowraft.Errorf(rowraft.CodeLeadershipLost, "no quorum")
		}
		return nil
	}}
	s.serve(t, 4)
	c, table := s.dial(t, nil)
	ctx, keys := patience(t), s.oneKeyPerShard(table)
	done := make(chan error, 1)
	go func() {
		_, err := table.Push(ctx, keys, make([]float32, 8))
		done <- err
	}()
	for s.shared.Load() == 0 {
		select {
		case err := <-done:
			t.Fatalf("the push ended before it was sent: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	for shard := range 4 {
		if shard != 2 {
			if err := c.sessions.shards.at(rowraft.ShardID(shard)).session.Load().idle(ctx); err != nil {
				t.Errorf("shard %d waits: %v", shard, err)
			}
		}
	}
	select {
	case err := <-done:
		t.Fatalf("the push ended without an answer of shard 2: %v", err)
	default:
	}
	close(fail)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for shard, seqs := range tries.seqs {
		if want := map[bool][]uint64{true: {1, 1}, false: {1}}[shard == 2]; !slices.Equal(seqs, want) {
			t.Errorf("shard %d was sent numbers %v, want %v", shard, seqs, want)
		}
	}
	if s.shared.Load() != 1 {
		t.Errorf("%d shared calls, want 1: a batch that is sent again goes alone", s.shared.Load())
	}
}

// Each batch of a request is answered with its own code, and its own hint when to come again.
func TestEachBatchKeepsItsCode(t *testing.T) {
	codes := map[uint32]error{
		1: rowraft.Errorf(rowraft.CodeInvalidArgument, "shard 1"),
		2: &rowraft.OverloadedError{What: "shard 2", RetryAfter: time.Millisecond},
		3: rowraft.Errorf(rowraft.CodeTableNotFound, "shard 3"),
	}
	var tries sent
	s := fakeServer{push: func(_ context.Context, req *rowraftv1.WriteRequest) error {
		if tries.add(req.Shard, req.Seq) == 1 {
			return codes[req.Shard]
		}
		return nil
	}}
	s.serve(t, 4)
	c, table := s.dial(t, nil)
	batches, err := c.cutBatches(1, []Segment{{Table: table, Keys: s.oneKeyPerShard(table), Values: make([]float32, 8)}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.sendBatches(patience(t), batches); rowraft.CodeOf(err) != rowraft.CodeUnknown {
		t.Errorf("three of four batches are applied: %v, want CodeUnknown", err)
	}
	for _, b := range batches {
		want, sent := rowraft.CodeInvalidArgument, 1
		if b.shard != 1 {
			want = 0
		}
		if codes[uint32(b.shard)] != nil && b.shard != 1 {
			sent = 2 // TableNotFound counts as Starting, because the map has the table
		}
		if b.err != nil != (want != 0) || b.err != nil && rowraft.CodeOf(b.err) != want ||
			len(tries.seqs[uint32(b.shard)]) != sent {
			t.Errorf("shard %d: %v after %d tries, want code %v after %d", b.shard, b.err, len(tries.seqs[uint32(b.shard)]),
				want, sent)
		}
	}
}

// sendTwo sends two batches of a step in one call, each with its own context.
func sendTwo(t *testing.T, c *Client, addr string, first, second context.Context) (results [2]chan error) {
	t.Helper()
	conn, err := c.conns.Get(addr)
	if err != nil {
		t.Fatal(err)
	}
	to := stub{TableClient: rowraftv1.NewTableClient(conn), Addr: addr}
	tries := wave.New(c.ctx, c.spawn, &wave.Steps, 2)
	for i, ctx := range []context.Context{first, second} {
		results[i] = make(chan error, 1)
		go func() {
			_, err := wave.Steps.Send(ctx, tries[i], to, &rowraftv1.PushStepRequest{Shard: uint32(i)})
			results[i] <- err
		}()
	}
	return results
}

// A caller that leaves does not end the call of the others. The last one does, and the server stops.
func TestTheLastCallerEndsASharedCall(t *testing.T) {
	arrived, ended := make(chan struct{}, 2), make(chan struct{}, 2)
	s := fakeServer{step: func(ctx context.Context, _ *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply, error) {
		arrived <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return nil, ctx.Err()
	}}
	s.serve(t, 2)
	c, _ := s.dial(t, nil)
	first, leave := context.WithCancel(patience(t))
	second, leaveLast := context.WithCancel(patience(t))
	results := sendTwo(t, c, s.m.Nodes[0].Addr, first, second)
	<-arrived
	<-arrived
	leave()
	if err := <-results[0]; rowraft.CodeOf(err) != rowraft.CodeDeadline {
		t.Errorf("the first caller: %v, want CodeDeadline", err)
	}
	select {
	case <-ended:
		t.Error("the call ended while a caller waited for it")
	case err := <-results[1]:
		t.Errorf("the second caller has the result %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	leaveLast()
	<-ended
	<-ended
	if err := <-results[1]; rowraft.CodeOf(err) != rowraft.CodeDeadline {
		t.Errorf("the second caller: %v, want CodeDeadline", err)
	}
}

// A call whose last batch is answered ends if the try of another batch has ended without its answer.
func TestTheLastAnswerEndsASharedCall(t *testing.T) {
	arrived, ended, answer := make(chan struct{}, 2), make(chan struct{}), make(chan struct{})
	s := fakeServer{}
	s.step = func(ctx context.Context, req *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply, error) {
		arrived <- struct{}{}
		select {
		case <-answer:
			if req.GetShard() == 1 {
				return &rowraftv1.PushStepReply{}, nil
			}
		case <-ctx.Done():
		}
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}
	s.serve(t, 2)
	c, _ := s.dial(t, nil)
	first, leave := context.WithCancel(patience(t))
	results := sendTwo(t, c, s.m.Nodes[0].Addr, first, patience(t))
	<-arrived
	<-arrived
	leave()
	<-results[0]
	close(answer)
	if err := <-results[1]; err != nil {
		t.Errorf("the second caller: %v", err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second): // the deadline of the call is a minute and more later
		t.Error("the server still works on the batch whose caller has left")
	}
}

// A batch that leaves before the others have joined is not sent.
func TestABatchThatLeavesIsNotWaitedFor(t *testing.T) {
	s := fakeServer{step: func(_ context.Context, req *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply, error) {
		if req.Shard == 0 {
			t.Error("a batch was sent after its caller had left")
		}
		return &rowraftv1.PushStepReply{}, nil
	}}
	s.serve(t, 2)
	c, _ := s.dial(t, nil)
	gone, cancel := context.WithCancel(patience(t))
	cancel()
	conn, err := c.conns.Get(s.m.Nodes[0].Addr)
	if err != nil {
		t.Fatal(err)
	}
	to := stub{TableClient: rowraftv1.NewTableClient(conn), Addr: s.m.Nodes[0].Addr}
	tries := wave.New(c.ctx, c.spawn, &wave.Steps, 3)
	a, b, never := tries[0], tries[1], tries[2]
	_, err = wave.Steps.Send(gone, a, to, &rowraftv1.PushStepRequest{Shard: 0})
	if rowraft.CodeOf(err) != rowraft.CodeDeadline {
		t.Errorf("a caller that has left: %v, want CodeDeadline", err)
	}
	never.Skip()
	never.Skip()
	if _, err := wave.Steps.Send(patience(t), b, to, &rowraftv1.PushStepRequest{Shard: 1}); err != nil {
		t.Error(err)
	}
}

// wrongServer answers shared calls wrongly.
type wrongServer struct {
	*fakeServer
	many func(grpc.ServerStreamingServer[rowraftv1.WriteReply]) error
}

func (s wrongServer) WriteMany(_ *rowraftv1.WriteManyRequest,
	stream grpc.ServerStreamingServer[rowraftv1.WriteReply]) error {
	return s.many(stream)
}

// A batch without an answer of its own may have been applied: it is sent again, under its number.
func TestWrongAnswersToASharedCall(t *testing.T) {
	for name, many := range map[string]func(grpc.ServerStreamingServer[rowraftv1.WriteReply]) error{
		"no answer": func(grpc.ServerStreamingServer[rowraftv1.WriteReply]) error { return nil },
		"a batch that was not sent": func(stream grpc.ServerStreamingServer[rowraftv1.WriteReply]) error {
			return stream.Send(&rowraftv1.WriteReply{Batch: 2, AppliedIndex: 1})
		},
		"the same batch twice": func(stream grpc.ServerStreamingServer[rowraftv1.WriteReply]) error {
			if err := stream.Send(&rowraftv1.WriteReply{Batch: 1, AppliedIndex: 1}); err != nil {
				return err
			}
			return stream.Send(&rowraftv1.WriteReply{Batch: 1, AppliedIndex: 1})
		},
		"an error of the call": func(grpc.ServerStreamingServer[rowraftv1.WriteReply]) error {
			return rpc.ToStatus(&rowraft.OverloadedError{What: "test", RetryAfter: time.Millisecond})
		},
	} {
		var tries sent
		s := fakeServer{push: func(_ context.Context, req *rowraftv1.WriteRequest) error {
			tries.add(req.Shard, req.Seq)
			return nil
		}}
		s.table = wrongServer{&s, many}
		s.serve(t, 2)
		_, table := s.dial(t, nil)
		if _, err := table.Push(patience(t), s.oneKeyPerShard(table), make([]float32, 4)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := 2
		if name == "the same batch twice" {
			want = 1
		}
		if len(tries.seqs) != want {
			t.Errorf("%s: %v were sent again alone, want %d", name, tries.seqs, want)
		}
		for shard, seqs := range tries.seqs {
			if !slices.Equal(seqs, []uint64{1}) {
				t.Errorf("%s: shard %d was sent %v again, want number 1 once", name, shard, seqs)
			}
		}
	}
}

// A batch that waits for a number holds up no batch that has one.
func TestABatchWithoutANumberIsNotWaitedFor(t *testing.T) {
	arrived, release := make(chan uint32, 3), make(chan struct{})
	s := fakeServer{push: func(_ context.Context, req *rowraftv1.WriteRequest) error {
		arrived <- req.Shard
		if req.Shard == 1 {
			<-release
		}
		return nil
	}}
	s.serve(t, 2)
	_, table := s.dial(t, func(o *Options) { o.MaxInFlight = 1 })
	ctx := patience(t)
	pushed := make(chan error, 2)
	push := func(keys ...rowraft.Key) {
		_, err := table.Push(ctx, keys, make([]float32, 2*len(keys)))
		pushed <- err
	}
	for i, keys := range [][]rowraft.Key{{s.keyOf(table, 1)}, s.oneKeyPerShard(table)} {
		go push(keys...) // the second push's batch for shard 1 waits for the first push
		select {
		case shard := <-arrived:
			if want := []uint32{1, 0}[i]; shard != want {
				t.Errorf("push %d: a batch of shard %d arrived, want %d", i, shard, want)
			}
		case <-ctx.Done():
			t.Fatalf("push %d: no batch arrived", i)
		}
	}
	close(release)
	for range 2 {
		if err := <-pushed; err != nil {
			t.Error(err)
		}
	}
}

// The batches for one server are cut at the limits of a request.
func TestSharedRequestsAreBounded(t *testing.T) {
	var sizes sync.Map
	var s fakeServer
	s.table = countingServer{&s, &sizes}
	s.step = func(context.Context, *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply, error) {
		return &rowraftv1.PushStepReply{}, nil
	}
	s.serve(t, 1)
	c, _ := s.dial(t, nil)
	conn, err := c.conns.Get(s.m.Nodes[0].Addr)
	if err != nil {
		t.Fatal(err)
	}
	to := stub{TableClient: rowraftv1.NewTableClient(conn), Addr: s.m.Nodes[0].Addr}
	for _, tc := range []struct{ batches, bytes, calls int }{
		{2 * rpc.MaxBatches, 8, 2},
		{8, wave.SharedBytes / 4, 2},
		{3, wave.SharedBytes, 0}, // each alone
	} {
		sizes.Clear()
		errs, ctx := make(chan error, tc.batches), patience(t)
		for _, try := range wave.New(c.ctx, c.spawn, &wave.Steps, tc.batches) {
			go func() {
				_, err := wave.Steps.Send(ctx, try, to, &rowraftv1.PushStepRequest{Payload: make([]byte, tc.bytes)})
				errs <- err
			}()
		}
		for range tc.batches {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		calls := 0
		sizes.Range(func(_, size any) bool {
			calls++
			if n := size.(int); n > rpc.MaxBatches || n*tc.bytes > wave.SharedBytes {
				t.Errorf("a request of %d batches of %d bytes", n, tc.bytes)
			}
			return true
		})
		if calls != tc.calls {
			t.Errorf("%d batches of %d bytes: %d shared calls, want %d", tc.batches, tc.bytes, calls, tc.calls)
		}
	}
}

// countingServer records the number of batches of each shared step.
type countingServer struct {
	*fakeServer
	sizes *sync.Map
}

func (s countingServer) PushStepMany(req *rowraftv1.PushStepManyRequest,
	stream grpc.ServerStreamingServer[rowraftv1.PushStepReply]) error {
	s.sizes.Store(req, len(req.Batches))
	return s.fakeServer.PushStepMany(req, stream)
}
