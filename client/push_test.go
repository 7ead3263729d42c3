package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/wave"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// refuse answers pushes to some shards with an error.
func refuse(codes map[uint32]rowraft.Code) func(context.Context, *rowraftv1.WriteRequest) error {
	return func(_ context.Context, req *rowraftv1.WriteRequest) error {
		if code, ok := codes[req.Shard]; ok {
			return rowraft.Errorf(code, "shard %d refuses", req.Shard)
		}
		return nil
	}
}

// The code of a push's error applies to the whole push.
func TestAPushThatIsAppliedInPartMayHaveBeenApplied(t *testing.T) {
	for _, tc := range []struct {
		name    string
		refused map[uint32]rowraft.Code
		want    rowraft.Code
	}{
		{"one of two shards refuses", map[uint32]rowraft.Code{1: rowraft.CodeInvalidArgument}, rowraft.CodeUnknown},
		{"the first of two shards refuses", map[uint32]rowraft.Code{0: rowraft.CodeInvalidArgument}, rowraft.CodeUnknown},
		{"both refuse", map[uint32]rowraft.Code{0: rowraft.CodeInvalidArgument, 1: rowraft.CodeInvalidArgument},
			rowraft.CodeInvalidArgument},
		{"one does not know the session", map[uint32]rowraft.Code{1: rowraft.CodeSessionExpired}, rowraft.CodeSessionExpired},
		{"one refuses, the other cannot say", map[uint32]rowraft.Code{0: rowraft.CodeInvalidArgument,
			1: rowraft.CodeSessionExpired}, rowraft.CodeSessionExpired},
	} {
		s := fakeServer{push: refuse(tc.refused)}
		s.serve(t, 2)
		c, table := s.dial(t, nil)
		_, err := table.Push(patience(t), []rowraft.Key{s.keyOf(table, 0), s.keyOf(table, 1)}, make([]float32, 4))
		if err == nil || rowraft.CodeOf(err) != tc.want {
			t.Errorf("%s: %v (%v), want %v", tc.name, rowraft.CodeOf(err), err, tc.want)
		}
		if err := c.Flush(patience(t)); err != nil {
			t.Errorf("%s: Flush repeats what Push has said: %v", tc.name, err)
		}
	}
}

// The map names a table before every shard has it.
func TestAShardThatDoesNotKnowTheTableYetIsAskedAgain(t *testing.T) {
	var pushes, pulls atomic.Int32
	var hidden rowraft.Code = rowraft.CodeTableNotFound
	s := fakeServer{
		push: func(context.Context, *rowraftv1.WriteRequest) error {
			if pushes.Add(1) < 3 {
				return rowraft.Errorf(hidden, "no such table")
			}
			return nil
		},
		pull: func(_ context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
			if pulls.Add(1) < 3 {
				return nil, rowraft.Errorf(hidden, "no such table")
			}
			return zeros(req)
		},
	}
	s.serve(t, 1)
	c, table := s.dial(t, nil)
	if _, err := table.Push(patience(t), []rowraft.Key{1}, []float32{1, 1}); err != nil {
		t.Error(err)
	}
	if err := table.Pull(patience(t), []rowraft.Key{1}, make([]float32, 2)); err != nil {
		t.Error(err)
	}
	// The client does not wait for a table that the map does not name.
	pushes.Store(-1 << 20)
	pulls.Store(-1 << 20)
	gone := &Table{c: c, cluster: table.cluster, schema: table.schema, seed: table.seed, slots: table.slots}
	gone.schema.ID++
	if _, err := gone.Push(patience(t), []rowraft.Key{1},
		[]float32{1, 1}); rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		t.Errorf("push to a table that is in no map: %v", err)
	}
	if err := gone.Pull(patience(t), []rowraft.Key{1},
		make([]float32, 2)); rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		t.Errorf("pull from a table that is in no map: %v", err)
	}
}

// A leader whose machine stops cannot know the outcome of a push. The next leader can.
func TestAPushThatItsServerCannotTellOfIsSentAgain(t *testing.T) {
	for _, tc := range []struct {
		name   string
		broken int           // number of answers
		try    time.Duration // time of one try; the limit is a multiple of it
		want   rowraft.Code
	}{
		{"then there is another leader", 2, time.Minute, 0},
		{"for ever", 1 << 30, 500 * time.Millisecond, rowraft.CodeInternal},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for {
				numbers, err := pushToBroken(t, tc.broken, tc.try)
				if tc.want == 0 && err != nil || tc.want != 0 && rowraft.CodeOf(err) != tc.want {
					t.Errorf("%v after %d tries, want code %d", err, len(numbers), tc.want)
				}
				if len(numbers) == 0 || slices.Max(numbers) != 1 {
					t.Errorf("it was sent as %v, want number 1 alone", numbers)
				}
				if len(numbers) >= 3 {
					return
				}
				if tc.try *= 4; tc.try > 10*time.Second { // a loaded machine may be suspended for most of it
					t.Fatalf("it was sent as %v, want three times or more", numbers)
				}
			}
		})
	}
}

// pushToBroken pushes to a server that does not know the outcome of the first pushes, and returns the
// numbers that the server received.
func pushToBroken(t *testing.T, broken int, try time.Duration) ([]uint64, error) {
	t.Helper()
	var mu sync.Mutex
	var numbers []uint64
	s := fakeServer{push: func(_ context.Context, req *rowraftv1.WriteRequest) error {
		mu.Lock()
		defer mu.Unlock()
		if numbers = append(numbers, req.Seq); len(numbers) <= broken {
			return rowraft.Errorf(rowraft.CodeInternal, "the machine has stopped")
		}
		return nil
	}}
	s.serve(t, 1)
	c, table := s.dial(t, func(o *Options) { o.AttemptTimeout = try })
	_, err := table.Push(patience(t), []rowraft.Key{1}, []float32{1, 1})
	if err := c.Flush(patience(t)); err != nil {
		t.Errorf("Flush after that: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(numbers), err
}

// lateAnswer is a push whose caller leaves before the server answers.
type lateAnswer struct {
	s      fakeServer
	c      *Client
	table  *Table
	answer chan error
}

func pushAndLeave(t *testing.T) *lateAnswer {
	t.Helper()
	l := &lateAnswer{answer: make(chan error, 1)}
	arrived := make(chan struct{})
	l.s.push = func(ctx context.Context, req *rowraftv1.WriteRequest) error {
		if req.Seq > 1 {
			return nil
		}
		close(arrived)
		select {
		case err := <-l.answer:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	l.s.serve(t, 1)
	l.c, l.table = l.s.dial(t, func(o *Options) { o.AttemptTimeout = time.Hour })
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-arrived; cancel() }()
	if err := l.push(ctx); rowraft.CodeOf(err) != rowraft.CodeDeadline {
		t.Fatalf("a push whose caller leaves: %v, want CodeDeadline", err)
	}
	return l
}

func (l *lateAnswer) push(ctx context.Context) error {
	_, err := l.table.Push(ctx, []rowraft.Key{1}, []float32{1, 1})
	return err
}

// No other call would return the error.
func TestFlushTellsOfAPushThatWasRefusedAfterItsCallerLeft(t *testing.T) {
	l := pushAndLeave(t)
	l.answer <- rowraft.Errorf(rowraft.CodeSessionExpired, "a test")
	if err := l.c.Flush(patience(t)); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		t.Errorf("Flush after a push was refused: %v, want CodeSessionExpired", err)
	}
	if err := l.c.Flush(patience(t)); err != nil {
		t.Errorf("the next Flush: %v", err)
	}
	if err := l.push(patience(t)); err != nil {
		t.Errorf("the push after a Flush that told it: %v", err)
	}
}

func TestTheNextPushTellsOfOneThatWasRefusedAfterItsCallerLeft(t *testing.T) {
	l := pushAndLeave(t)
	l.answer <- rowraft.Errorf(rowraft.CodeSessionExpired, "a test")
	if err := l.c.sessions.shards.at(0).session.Load().idle(patience(t)); err != nil {
		t.Fatal(err)
	}
	err := l.push(patience(t))
	if rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("the next push: %v, want CodePrecondition", err)
	}
	if err := errors.Join(l.c.Flush(patience(t)), l.push(patience(t))); err != nil {
		t.Errorf("after that: %v", err)
	}
}

func TestFlushIsSilentAboutAPushThatWasAcknowledgedLate(t *testing.T) {
	l := pushAndLeave(t)
	l.answer <- nil
	if err := l.c.Flush(patience(t)); err != nil {
		t.Errorf("Flush after a late acknowledgement: %v", err)
	}
}

func TestFlushBesideClose(t *testing.T) {
	l := pushAndLeave(t)
	l.c.Close()
	if err := l.c.Flush(patience(t)); err == nil || rowraft.CodeOf(err) != rowraft.CodeUnknown {
		t.Errorf("Flush of a client that was closed before an answer came: %v, want CodeUnknown", err)
	}
}

// The scheduler also answers NoLeader when the table is in its log but a shard does not respond.
func TestAResentCreationFindsItsOwnTable(t *testing.T) {
	var s fakeServer
	tries := 0
	s.create = func(req *rowraftv1.CreateTableRequest) (*rowraftv1.CreateTableReply, error) {
		tries++
		switch {
		case tries == 1:
			return nil, rowraft.Errorf(rowraft.CodeNoLeader, "the table is created, but not yet in every shard")
		case !req.IfNotExists:
			return nil, rowraft.Errorf(rowraft.CodeTableExists, "it exists")
		}
		return &rowraftv1.CreateTableReply{Table: req.Table}, nil
	}
	s.serve(t, 1)
	c, table := s.dial(t, nil)
	if _, err := c.CreateTable(patience(t), table.Schema(), false); err != nil {
		t.Error(err)
	}
}

// A server without room for large batches refuses them by the sizes in the header.
func TestPartsSayTheirSize(t *testing.T) {
	var said atomic.Int32
	check := func(ctx context.Context, req *rowraftv1.WriteRequest) error {
		announced := rpc.BatchSizesOf(ctx)
		if large := len(req.Payload) >= wave.AnnounceMinBytes; large != (announced != nil) {
			t.Errorf("a part of %d bytes: %+v is announced", len(req.Payload), announced)
		}
		p := rpc.BatchSize{Shard: req.Shard, Bytes: len(req.Payload), Delete: req.Op == rowraftv1.WriteOp_WRITE_OP_DELETE}
		if announced != nil && !slices.Contains(announced, p) {
			t.Errorf("%+v is sent, %+v is announced", p, announced)
		}
		said.Add(1)
		return nil
	}
	s := fakeServer{push: check, remove: check}
	s.serve(t, 2)
	_, table := s.dial(t, nil)
	for _, n := range []int{10, 10_000} {
		keys := make([]rowraft.Key, n)
		for i := range keys {
			keys[i] = rowraft.Key(i)
		}
		if _, err := table.Push(patience(t), keys, make([]float32, 2*n)); err != nil {
			t.Error(err)
		}
		if _, err := table.Delete(patience(t), keys); err != nil {
			t.Error(err)
		}
	}
	if said.Load() != 8 {
		t.Errorf("%d parts, want 8", said.Load())
	}
}
