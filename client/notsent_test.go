package client

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// seen counts pushes by shard and number.
type seen struct {
	mu    sync.Mutex
	parts [][2]uint64
}

func (s *seen) push(_ context.Context, req *rowraftv1.WriteRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parts = append(s.parts, [2]uint64{uint64(req.Shard), req.Seq})
	return nil
}

func (s *seen) sorted() [][2]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.parts)
	slices.SortFunc(out, func(a, b [2]uint64) int { return slices.Compare(a[:], b[:]) })
	return out
}

// A deadline ends while one of a push's sessions opens: the client has sent nothing to any shard, and the
// error says so. The same call succeeds later and is applied once.
func TestAPushWithoutASessionIsNotSent(t *testing.T) {
	opening := make(chan struct{})
	var works atomic.Bool
	var got seen
	s := fakeServer{push: got.push, open: func(ctx context.Context, req *rowraftv1.OpenSessionRequest) error {
		if req.Shard == 1 && !works.Load() {
			close(opening)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}}
	s.serve(t, 2)
	c, table := s.dial(t, nil)
	keys := []rowraft.Key{s.keyOf(table, 0), s.keyOf(table, 1)}
	ctx, cancel := context.WithCancel(patience(t))
	go func() { <-opening; cancel() }()
	_, err := table.Push(ctx, keys, make([]float32, 4))
	if code := rowraft.CodeOf(err); code != rowraft.CodeNotSent || code.MaybeApplied() || !code.Retryable() {
		t.Errorf("a push whose session was not there in time: %v (%v), want CodeNotSent", err, code)
	}
	if err := c.Flush(patience(t)); err != nil {
		t.Errorf("Flush: %v", err)
	}
	if parts := got.sorted(); len(parts) != 0 {
		t.Fatalf("a push that was not sent arrived as %v", parts)
	}
	works.Store(true)
	if _, err := table.Push(patience(t), keys, make([]float32, 4)); err != nil {
		t.Errorf("the same push again: %v", err)
	}
	if parts := got.sorted(); !slices.Equal(parts, [][2]uint64{{0, 1}, {1, 1}}) {
		t.Errorf("the second push arrived as %v, want number 1 in both shards", parts)
	}
}

// A shard may answer the opening of a session with a code that leaves the outcome of a push unknown. The
// push was never sent, so its error has another code.
func TestASessionThatIsRefusedLeavesNothingUnknown(t *testing.T) {
	for _, tc := range []struct{ refused, want rowraft.Code }{
		{rowraft.CodeSessionExpired, rowraft.CodePrecondition},
		{rowraft.CodeInternal, rowraft.CodePrecondition},
		{rowraft.CodeDenied, rowraft.CodeDenied},
	} {
		s := fakeServer{open: func(context.Context, *rowraftv1.OpenSessionRequest) error {
			return rowraft.Errorf(tc.refused, "a test")
		}}
		s.serve(t, 1)
		_, table := s.dial(t, nil)
		_, err := table.Push(patience(t), []rowraft.Key{1}, []float32{1, 1})
		if code := rowraft.CodeOf(err); code != tc.want || code.MaybeApplied() {
			t.Errorf("refused with %v: %v (%v), want %v", tc.refused, code, err, tc.want)
		}
	}
}

// The openings of all shards run concurrently, and the client sends no batch before all have ended.
func TestSessionsOpenTogetherBeforeTheFirstPart(t *testing.T) {
	const shards = 4
	var begun, opened atomic.Int32
	all := make(chan struct{})
	s := fakeServer{
		open: func(ctx context.Context, _ *rowraftv1.OpenSessionRequest) error {
			if begun.Add(1) == shards {
				close(all)
			}
			select {
			case <-all:
				opened.Add(1)
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		push: func(context.Context, *rowraftv1.WriteRequest) error {
			if n := opened.Load(); n != shards {
				t.Errorf("a part was sent when %d of %d sessions were open", n, shards)
			}
			return nil
		},
	}
	s.serve(t, shards)
	_, table := s.dial(t, nil)
	var keys []rowraft.Key
	for shard := range rowraft.ShardID(shards) {
		keys = append(keys, s.keyOf(table, shard))
	}
	if _, err := table.Push(patience(t), keys, make([]float32, 2*shards)); err != nil {
		t.Error(err)
	}
}

// The caller leaves when the first batch of a push is in progress and the others have no place yet. The
// client sends all of them, and Flush waits for that.
func TestTheRestOfAPushIsQueued(t *testing.T) {
	var got seen
	arrived, answer := make(chan struct{}), make(chan struct{})
	begun := sync.OnceFunc(func() { close(arrived) })
	s := fakeServer{push: func(ctx context.Context, req *rowraftv1.WriteRequest) error {
		begun()
		select {
		case <-answer:
			return got.push(ctx, req)
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	s.serve(t, 1)
	c, table := s.dial(t, func(o *Options) { o.MaxInFlight = 1 })
	keys := make([]rowraft.Key, 3*rowraft.MaxKeysPerPart)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	ctx, cancel := context.WithCancel(patience(t))
	go func() { <-arrived; cancel() }()
	if _, err := table.Push(ctx, keys, make([]float32, 2*len(keys))); rowraft.CodeOf(err) != rowraft.CodeDeadline {
		t.Errorf("%v (%v), want CodeDeadline: the client goes on sending all of it", err, rowraft.CodeOf(err))
	}
	soon, stop := context.WithCancel(context.Background())
	stop()
	if err := c.Flush(soon); rowraft.CodeOf(err) != rowraft.CodeDeadline {
		t.Errorf("Flush before the first answer: %v, want CodeDeadline", err)
	}
	close(answer)
	if err := c.Flush(patience(t)); err != nil {
		t.Error(err)
	}
	if parts := got.sorted(); len(parts) < 3 || parts[len(parts)-1] != [2]uint64{0, uint64(len(parts))} {
		t.Errorf("after Flush the parts %v had arrived, want all of at least 3, numbered from 1", parts)
	}
}

// The batch with the clock waits for the others. The client sends it when they are acknowledged, even if
// the caller has left, and does not send it if one of them is refused.
func TestTheClockOfAPushIsQueued(t *testing.T) {
	for _, refusal := range []error{nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "a test")} {
		var got seen
		arrived, answer := make(chan struct{}), make(chan struct{})
		s := fakeServer{push: func(ctx context.Context, req *rowraftv1.WriteRequest) error {
			if raisesClock(req) {
				return got.push(ctx, req)
			}
			close(arrived)
			<-answer
			return refusal
		}}
		s.serve(t, 2)
		c, table := s.dial(t, nil)
		j, err := c.Job(JobOptions{ID: testJob, Generation: 3, Rank: 1, Incarnation: 2})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(patience(t))
		go func() { <-arrived; cancel() }()
		seg := Segment{Table: table, Keys: []rowraft.Key{s.keyOf(table, 1-j.clockShard())}, Values: []float32{1, 1}}
		if _, err := j.PushClock(ctx, 9, nil, seg); rowraft.CodeOf(err) != rowraft.CodeDeadline {
			t.Errorf("%v (%v), want CodeDeadline", err, rowraft.CodeOf(err))
		}
		close(answer)
		want := 1
		if refusal != nil {
			want = 0
		}
		if err := c.Flush(patience(t)); (err == nil) != (refusal == nil) || rowraft.CodeOf(err) != rowraft.CodeOf(refusal) {
			t.Errorf("Flush: %v, want that of the part that was refused: %v", err, refusal)
		}
		if parts := got.sorted(); len(parts) != want {
			t.Errorf("after Flush the clock had arrived %d times, want %d (%v)", len(parts), want, refusal)
		}
	}
}
