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

// request is a call's first try.
func (b *budget) request() { b.add(retryShare) }

// succeeded is that of a call which was sent again.
func (b *budget) succeeded() { b.add(1) }

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

// mayRetry takes a token for a call that last was refused, and waits for one unless
// failFast: then, or if ctx ends, it says that the budget is spent.
func (c *Client) mayRetry(ctx context.Context, failFast bool, last error) error {
	if c.budget.take(time.Now()) {
		return nil
	}
	if failFast {
		return spentError(last)
	}
	c.budget.wait(1)
	defer c.budget.wait(-1)
	for !c.budget.take(time.Now()) {
		if err := c.pause(ctx, &backoff{}, retryPoll); err != nil {
			return spentError(last)
		}
	}
	return nil
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
