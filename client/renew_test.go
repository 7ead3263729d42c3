package client

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// endingServer is a shard that ends sessions when the test asks for it.
type endingServer struct {
	fakeServer
	mu      sync.Mutex
	ended   uint64 // incarnations up to this one are over
	applied map[[2]uint64]int
	fail    func(req *rowraftv1.WriteRequest) error // called after the write is applied; may be nil
}

func newEndingServer(t *testing.T) *endingServer {
	s := &endingServer{applied: map[[2]uint64]int{}}
	s.push = func(_ context.Context, req *rowraftv1.WriteRequest) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.fail != nil {
			if err := s.fail(req); err != nil {
				return err
			}
		}
		if req.Incarnation <= s.ended {
			return &rowraft.SessionEndedError{What: "the session made room"}
		}
		s.applied[[2]uint64{req.Incarnation, req.Seq}]++
		return nil
	}
	s.serve(t, 1)
	return s
}

func (s *endingServer) end(inc uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = inc
}

// TestASessionThatIsOverIsRenewed: concurrent pushes continue under one new incarnation. Each is applied
// once, with numbers from 1.
func TestASessionThatIsOverIsRenewed(t *testing.T) {
	s := newEndingServer(t)
	c, table := s.dial(t, nil)
	push := func() error {
		_, err := c.Push(patience(t), Segment{Table: table, Keys: []rowraft.Key{1}, Values: []float32{1, 1}})
		return err
	}
	if err := push(); err != nil {
		t.Fatal(err)
	}
	for round := range uint64(3) {
		s.end(1 + round)
		errs := make(chan error)
		for range 8 {
			go func() { errs <- push() }()
		}
		for range 8 {
			if err := <-errs; err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
	}
	if err := c.Flush(patience(t)); err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for inc := uint64(2); inc <= 4; inc++ {
		for seq := uint64(1); seq <= 8; seq++ {
			if n := s.applied[[2]uint64{inc, seq}]; n != 1 {
				t.Errorf("incarnation %d, number %d was applied %d times", inc, seq, n)
			}
		}
	}
	if len(s.applied) != 1+3*8 {
		t.Errorf("%d pushes applied", len(s.applied))
	}
}

// TestARenewalWaitsForAnswers: while the answer to a batch is outstanding, the session keeps its
// incarnation and its numbers. So the client cannot take that answer for the answer to another batch.
func TestARenewalWaitsForAnswers(t *testing.T) {
	s := &fakeServer{}
	arrived, answer, renewed := make(chan struct{}), make(chan struct{}), make(chan struct{}, 9)
	s.open = func(_ context.Context, req *rowraftv1.OpenSessionRequest) error {
		if req.Incarnation > 1 {
			renewed <- struct{}{}
		}
		return nil
	}
	var mu sync.Mutex
	applied := map[[2]uint64]int{}
	s.push = func(_ context.Context, req *rowraftv1.WriteRequest) error {
		switch {
		case req.Incarnation == 1 && req.Seq == 1:
			close(arrived)
			<-answer
		case req.Incarnation == 1:
			return &rowraft.SessionEndedError{What: "the session made room"}
		}
		mu.Lock()
		defer mu.Unlock()
		applied[[2]uint64{req.Incarnation, req.Seq}]++
		return nil
	}
	s.serve(t, 1)
	c, table := s.dial(t, func(o *Options) { o.AttemptTimeout = time.Hour })
	errs := make(chan error)
	push := func() {
		_, err := c.Push(patience(t), Segment{Table: table, Keys: []rowraft.Key{1}, Values: []float32{1, 1}})
		errs <- err
	}
	go push()
	<-arrived
	go push()
	ss := c.sessions.shards.at(0).session.Load()
	if err := ss.waitUntil(patience(t), func() bool { return ss.renewal.stalled == 1 }); err != nil {
		t.Fatal(err)
	}
	select {
	case <-renewed:
		t.Error("another session was opened while a batch was unanswered")
	case <-time.After(100 * time.Millisecond): // no answer comes
	}
	close(answer)
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if applied[[2]uint64{1, 1}] != 1 || applied[[2]uint64{2, 1}] != 1 || len(applied) != 2 || s.issued.Load() != 2 {
		t.Errorf("applied %v after %d incarnations", applied, s.issued.Load())
	}
}

// TestAnUnansweredBatchIsReported: the client does not send a batch under another incarnation if an earlier
// try may have been applied. It sends the next batch.
func TestAnUnansweredBatchIsReported(t *testing.T) {
	s := newEndingServer(t)
	c, table := s.dial(t, nil)
	push := func() error {
		_, err := c.Push(patience(t), Segment{Table: table, Keys: []rowraft.Key{1}, Values: []float32{1, 1}})
		return err
	}
	tries := 0
	s.fail = func(req *rowraftv1.WriteRequest) error {
		if req.Incarnation > 1 {
			return nil
		}
		if tries++; tries == 1 { // applied, but the answer is lost; then the session ends
			s.applied[[2]uint64{req.Incarnation, req.Seq}]++
			return rowraft.Errorf(rowraft.CodeLeadershipLost, "no leader any more")
		}
		s.ended = 1
		return nil
	}
	if err := push(); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		t.Errorf("a batch that may have been applied: %v, want CodeSessionExpired", err)
	}
	if len(s.applied) != 1 {
		t.Errorf("applied: %v", s.applied)
	}
	if err := push(); err != nil || s.applied[[2]uint64{2, 1}] != 1 {
		t.Errorf("the next push: %v; applied: %v", err, s.applied)
	}
}

// TestAFencedSessionIsReported: another client uses the same client id now.
func TestAFencedSessionIsReported(t *testing.T) {
	s := newEndingServer(t)
	s.fail = func(*rowraftv1.WriteRequest) error {
		return rowraft.Errorf(rowraft.CodeSessionExpired, "incarnation 1 was fenced by incarnation 9")
	}
	c, table := s.dial(t, nil)
	_, err := c.Push(patience(t), Segment{Table: table, Keys: []rowraft.Key{1}, Values: []float32{1, 1}})
	if rowraft.CodeOf(err) != rowraft.CodeSessionExpired || s.issued.Load() != 1 {
		t.Errorf("%v after %d incarnations", err, s.issued.Load())
	}
}

// TestCloseClosesSessions: Close closes the session in every shard, and a server that does not answer
// delays it for a bounded time only.
func TestCloseClosesSessions(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		s := &fakeServer{}
		var mu sync.Mutex
		closed := map[uint32]uint64{}
		s.close = func(ctx context.Context, req *rowraftv1.CloseSessionRequest) error {
			if hangs {
				<-ctx.Done()
				return ctx.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			closed[req.Shard] = req.Incarnation
			return nil
		}
		s.serve(t, 2)
		c, table := s.dial(t, nil)
		var keys []rowraft.Key
		for k := range rowraft.Key(64) {
			keys = append(keys, k)
		}
		if _, err := c.Push(patience(t), Segment{Table: table, Keys: keys, Values: make([]float32, 128)}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("Close took %v", took)
		}
		if !hangs && (closed[0] != 1 || closed[1] != 1) {
			t.Errorf("closed: %v", closed)
		}
	}
}
