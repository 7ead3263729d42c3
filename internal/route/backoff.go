package route

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff gives the delays between the tries of one call: 5 ms, then twice as long each
// time up to [Longest], each with up to half of it as jitter. A new leader is found within
// half a second, and a longer delay would miss it. The zero value is ready.
type Backoff struct{ next time.Duration }

const (
	shortest = 5 * time.Millisecond
	// Longest is the largest delay without jitter.
	Longest = 100 * time.Millisecond
)

// Delay returns the next delay, or one of atLeast if that is longer.
func (b *Backoff) Delay(atLeast time.Duration) time.Duration {
	b.next = min(max(2*b.next, shortest), Longest)
	d := max(b.next, atLeast)
	return d + time.Duration(rand.Int64N(int64(d)/2+1))
}

// Wait waits for the next [Backoff.Delay]. It returns the error of ctx if that ends first.
func (b *Backoff) Wait(ctx context.Context, atLeast time.Duration) error {
	t := time.NewTimer(b.Delay(atLeast))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
