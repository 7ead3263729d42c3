package scheduler

import (
	"context"
	"fmt"
)

// turn is a lock whose holder may wait for other servers: who wants it waits no longer than its ctx,
// and in virtual time the clock goes on meanwhile, which a mutex stops.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// take waits for the turn. Without an error give must follow.
func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for another call: %w", context.Cause(ctx))
	}
}

func (t turn) give() { <-t }
