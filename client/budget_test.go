package client

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// overloaded is a server that refuses every call while a test sets it to.
type overloaded struct {
	fakeServer
	refuse atomic.Bool
	pulls  atomic.Int64

	mu   sync.Mutex
	seqs map[uint64]int // that were applied
}

func newOverloaded(t *testing.T) *overloaded {
	s := &overloaded{seqs: make(map[uint64]int)}
	busy := &rowraft.OverloadedError{What: "busy", RetryAfter: time.Millisecond}
	s.pull = func(_ context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
		s.pulls.Add(1)
		if s.refuse.Load() {
			return nil, busy
		}
		return zeros(req)
	}
	s.push = func(_ context.Context, req *rowraftv1.WriteRequest) error {
		if s.refuse.Load() {
			return busy
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seqs[req.Seq]++
		return nil
	}
	s.serve(t, 1)
	return s
}

// TestRetriesOfAnOverloadedServerAreBounded: calls that are all refused send at most a fifth more, and the
// budget's floor.
func TestRetriesOfAnOverloadedServerAreBounded(t *testing.T) {
	s := newOverloaded(t)
	c, table := s.dial(t, func(o *Options) { o.FailWhenOverloaded = true })
	s.refuse.Store(true)
	begin := time.Now()
	c.router.budget.Set(5)
	const calls = 300
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range calls / 10 {
				err := table.Pull(patience(t), []rowraft.Key{1}, make([]float32, 2))
				if rowraft.CodeOf(err) != rowraft.CodeOverloaded || !strings.Contains(err.Error(), "retry budget") ||
					!strings.Contains(err.Error(), "busy") {
					t.Errorf("refused for good: %v, want CodeOverloaded that tells of the budget and the last answer", err)
				}
			}
		})
	}
	// One call that is left at the end must not get all tokens of the floor: it would never end. Tokens
	// that this goroutine takes count as retries.
	done, ended, taken := make(chan struct{}), make(chan struct{}), int64(0)
	go func() {
		defer close(ended)
		for tick := time.NewTicker(route.RetryPoll); ; {
			select {
			case <-tick.C:
			case <-done:
				tick.Stop()
				return
			}
			for c.router.budget.Take(time.Now()) {
				taken++
			}
		}
	}()
	wg.Wait()
	close(done)
	<-ended
	most := calls + 5 + calls*route.RetryShare + route.RetryFloor*time.Since(begin).Seconds() + 1
	if got := s.pulls.Load(); got+taken > int64(most) || got < calls {
		t.Errorf("%d calls made %d tries and left %d, at most %v", calls, got, taken, most)
	}
}

// TestNumberedPushesWaitForTheBudget: the client sends a numbered batch until it has an answer, and the
// server applies it once. New pushes fail at once with an error that says that nothing was sent.
func TestNumberedPushesWaitForTheBudget(t *testing.T) {
	s := newOverloaded(t)
	c, table := s.dial(t, func(o *Options) { o.FailWhenOverloaded = true })
	push := func() error { _, err := table.Push(patience(t), []rowraft.Key{1}, []float32{1, 1}); return err }
	if err := push(); err != nil {
		t.Fatal(err)
	}
	s.refuse.Store(true)
	c.router.budget.Set(-1e9) // so low that the floor adds no token during the test
	first := make(chan error, 1)
	go func() { first <- push() }()
	for deadline := time.Now().Add(time.Minute); ; {
		if c.router.budget.Waiting() > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a push that is refused does not wait for the budget")
		}
		time.Sleep(time.Millisecond) //tidy:allow sleep polls
	}
	for range 20 {
		if err := push(); rowraft.CodeOf(err) != rowraft.CodeOverloaded ||
			!strings.Contains(err.Error(), "nothing of this one was sent") {
			t.Errorf("a new push: %v, want CodeOverloaded", err)
		}
	}
	s.refuse.Store(false)
	c.router.budget.Set(route.RetryBurst)
	if err := <-first; err != nil {
		t.Errorf("the push that had a number: %v", err)
	}
	if err := push(); err != nil {
		t.Errorf("a new push when no other waits: %v", err)
	}
	if err := c.Flush(patience(t)); err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seqs) != 3 {
		t.Errorf("%d numbers were applied, 3 pushes had one", len(s.seqs))
	}
	for seq, n := range s.seqs {
		if n != 1 {
			t.Errorf("number %d was applied %d times", seq, n)
		}
	}
}

// Without FailWhenOverloaded, a call waits for the budget until its context ends.
func TestPatientCallsWaitForTheBudget(t *testing.T) {
	s := newOverloaded(t)
	c, table := s.dial(t, nil)
	s.refuse.Store(true)
	c.router.budget.Set(0)
	short, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := table.Pull(short, []rowraft.Key{1}, make([]float32, 2)); err == nil {
		t.Error("a pull that is refused until its context ends ends well")
	}
	done := make(chan error, 1)
	go func() { done <- table.Pull(patience(t), []rowraft.Key{1}, make([]float32, 2)) }()
	for before := s.pulls.Load(); s.pulls.Load() <= before; {
		time.Sleep(time.Millisecond) //tidy:allow sleep polls
	}
	s.refuse.Store(false)
	if err := <-done; err != nil {
		t.Errorf("once the server takes calls again: %v", err)
	}
}
