package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
)

// What a client may send again because servers were overloaded: a fifth of what it
// sends, and beyond that retryFloor a second; retryBurst may come at once. Tries for
// other reasons, such as a leader that died, are not bounded by this: they are paced.
const (
	retryShare = 0.2
	retryFloor = 10.0 // per second
	retryBurst = 100.0
	// retryPoll is how often, with jitter, one who waits for the budget looks again.
	retryPoll = 100 * time.Millisecond
)

// budget is a token bucket of retries. A retry that was answered gives its token back,
// so what is left after an overload is sent as fast as it succeeds.
type budget struct {
	mu     sync.Mutex
	tokens float64
	since  time.Time // the floor was added; zero: full
	need   int       // calls that wait for a token
}

func (b *budget) add(n float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked(time.Now())
	b.tokens = min(retryBurst, b.tokens+n)
}

// REQUIRES: b.mu is held.
func (b *budget) refillLocked(now time.Time) {
	if b.since.IsZero() {
		b.tokens = retryBurst
	} else {
		b.tokens = min(retryBurst, b.tokens+retryFloor*now.Sub(b.since).Seconds())
	}
	b.since = now
}

// take takes a token if there is one.
func (b *budget) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked(now)
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

func (b *budget) wait(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.need += n
}

// spent reports that calls wait for tokens.
func (b *budget) spent() (waiting int, spent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.need, b.need > 0
}

// retries are those of one call.
type retries struct {
	c        *Client
	failFast bool // when the budget is spent
	some     bool // a token was asked for
}

// newRetries adds what a call's first try gives the budget.
func (c *Client) newRetries(failFast bool) retries {
	c.budget.add(retryShare)
	return retries{c: c, failFast: failFast}
}

// may takes a token for the call, which last was refused, and waits for one unless
// failFast: then, or if ctx ends, it says that the budget is spent.
func (r *retries) may(ctx context.Context, last error) error {
	r.some = true
	b := &r.c.budget
	if b.take(time.Now()) {
		return nil
	}
	if r.failFast {
		return spentError(last)
	}
	b.wait(1)
	defer b.wait(-1)
	for !b.take(time.Now()) {
		if err := r.c.pause(ctx, &backoff{}, retryPoll); err != nil {
			return spentError(last)
		}
	}
	return nil
}

// succeeded gives a token back if the call needed any.
func (r *retries) succeeded() {
	if r.some {
		r.c.budget.add(1)
	}
}

// spentError tells what the budget is spent for. Nothing of the call was applied.
func spentError(last error) error {
	return &rowraft.OverloadedError{
		What:       fmt.Sprintf("the retry budget of this client is spent: servers refuse more of its calls than a fifth, and %v a second: ask for less, or again later (the last answer: %v)", retryFloor, last),
		RetryAfter: time.Second / retryFloor,
	}
}

// mayPush refuses a new push while those before it wait for the budget, if the client
// is to fail then. Nothing of it was sent.
func (c *Client) mayPush() error {
	if waiting, spent := c.budget.spent(); spent && c.opts.FailWhenOverloaded {
		return spentError(fmt.Errorf("%d parts of earlier pushes wait to be sent again, nothing of this one was sent", waiting))
	}
	return nil
}
