package route

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
)

// A caller may send again what overloaded servers refused: [RetryShare] of the calls that
// it makes, and [RetryFloor] per second beyond that; at most [RetryBurst] at once. Retries
// for other reasons, such as a leader that died, need no token: the back-off paces them.
const (
	RetryShare = 0.2
	RetryFloor = 10.0 // per second
	RetryBurst = 100.0
	// RetryPoll is the interval at which a call that waits for a token looks for one.
	RetryPoll = 100 * time.Millisecond
)

// Budget is a token bucket of retries. A call that succeeds after a retry gives one token
// back: after an overload, the rest is sent as fast as it succeeds. The zero value is full.
// Safe for concurrent use.
type Budget struct {
	mu      sync.Mutex
	tokens  float64
	since   time.Time // the time of the last refill; zero: the bucket is full
	waiting int       // calls that wait for a token
}

func (b *Budget) add(n float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked(time.Now())
	b.tokens = min(RetryBurst, b.tokens+n)
}

// REQUIRES: b.mu is held.
func (b *Budget) refillLocked(now time.Time) {
	if b.since.IsZero() {
		b.tokens = RetryBurst
	} else {
		b.tokens = min(RetryBurst, b.tokens+RetryFloor*now.Sub(b.since).Seconds())
	}
	b.since = now
}

// Take takes a token if there is one.
func (b *Budget) Take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked(now)
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// Set makes n the number of tokens now. Tests use it.
func (b *Budget) Set(n float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens, b.since = n, time.Now()
}

// Waiting returns the number of calls that wait for a token.
func (b *Budget) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting
}

func (b *Budget) wait(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting += n
}

// Retries are the retries of one call.
type Retries struct {
	b        *Budget
	failFast bool
	taken    bool // the call asked for a token
}

// NewCall adds the share of a call's first try to the budget. A call that fails fast does
// not wait for a token.
func (b *Budget) NewCall(failFast bool) Retries {
	b.add(RetryShare)
	return Retries{b: b, failFast: failFast}
}

// Take takes a token for the call, which last refused. It waits for one unless the call
// fails fast.
//
// Errors: [SpentError] if there is no token and the call fails fast, or if pause, which
// waits for at least the given time, returns an error.
func (r *Retries) Take(ctx context.Context, last error,
	pause func(context.Context, *Backoff, time.Duration) error) error {
	r.taken = true
	if r.b.Take(time.Now()) {
		return nil
	}
	if r.failFast {
		return SpentError(last)
	}
	r.b.wait(1)
	defer r.b.wait(-1)
	for !r.b.Take(time.Now()) {
		if err := pause(ctx, new(Backoff), RetryPoll); err != nil {
			return SpentError(last)
		}
	}
	return nil
}

// Succeeded gives a token back if the call needed one.
func (r *Retries) Succeeded() {
	if r.taken {
		r.b.add(1)
	}
}

// SpentError reports that the budget is spent. Nothing of the call was applied.
func SpentError(last error) error {
	return &rowraft.OverloadedError{
		What: fmt.Sprintf("the retry budget of this client is spent: servers refuse more of its calls than a fifth, "+
			"and %v a second: ask for less, or again later (the last answer: %v)", RetryFloor, last),
		RetryAfter: time.Second / RetryFloor,
	}
}
