package jobs

import (
	"context"
	"testing"
)

// TestAPauseThatIsReachedWhenTheCallIsOver: the client releases a trainer that pauses after the call has
// ended. No other code would release it, and the trainer would join no later pause.
func TestAPauseThatIsReachedWhenTheCallIsOver(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	c := &streamCall{ctx: ctx, pausing: &pausing{cancel: func() {}}}
	end()
	released := 0
	c.paused(reached{of: c.pausing, at: &Paused{Release: func() { released++ }}})
	c.endPause() // as at the end of the call
	if released != 1 {
		t.Errorf("it was released %d times, want once", released)
	}
}
