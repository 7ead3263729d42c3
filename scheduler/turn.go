package scheduler

import (
	"context"
	"fmt"
)

// turn is a mutex for code that calls other servers while it holds it. A caller waits no longer than its ctx. A
// sync.Mutex would also stop virtual time in tests (testing/synctest), which advances while a goroutine waits for a
// channel but not while it waits for a mutex.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// take locks. Without an error the caller must call give.
func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for another call: %w", context.Cause(ctx))
	}
}

func (t turn) give() { <-t }
