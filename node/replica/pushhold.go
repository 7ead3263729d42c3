package replica

import (
	"context"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
)

// maxHeldBytes is the number of bytes that may wait for the end of a hold; above it pushes are refused.
const maxHeldBytes = 64 << 20

// pushHold holds the pushes of one shard while a checkpoint makes its cut. During a hold the pushes that
// entered before get their results, and new ones wait in enter.
type pushHold struct {
	mu      sync.Mutex
	active  int           // pushes between enter and exit
	waiting int           // bytes of pushes that wait in enter
	held    *hold         // nil: no hold
	drained chan struct{} // closed when active falls to 0 while held
}

// hold is one hold of the pushes.
type hold struct {
	g     *pushHold
	since time.Time
	took  time.Duration // set once over
	ended chan struct{}
	lease *time.Timer
	over  bool
}

// enter admits a push of size bytes, and waits during a hold. Each enter without an error needs
// one exit.
func (g *pushHold) enter(ctx context.Context, size int) error {
	g.mu.Lock()
	for g.held != nil { // again after a hold has ended: the next checkpoint may already hold pushes
		if g.waiting+size > maxHeldBytes {
			g.mu.Unlock()
			return &rowraft.OverloadedError{What: "too many pushes wait for a checkpoint's cut",
				Limit: "checkpoint", RetryAfter: 20 * time.Millisecond}
		}
		g.waiting += size
		ended := g.held.ended
		g.mu.Unlock()
		var err error
		select {
		case <-ended:
		case <-ctx.Done():
			// Refused before it was proposed.
			err = rowraft.Errorf(rowraft.CodeClosing, "the caller stopped waiting while a checkpoint's cut held the push back")
		}
		g.mu.Lock()
		g.waiting -= size
		if err != nil {
			g.mu.Unlock()
			return err
		}
	}
	g.active++
	g.mu.Unlock()
	return nil
}

func (g *pushHold) exit() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.active--; g.active == 0 && g.held != nil {
		close(g.drained)
	}
}

// begin begins a hold of lease at most and returns when every push that entered has ended.
// The caller releases the hold.
//
// Errors: CodeOverloaded if a hold exists already; CodeDeadline if the pushes that
// entered do not end in time.
func (g *pushHold) begin(ctx context.Context, lease time.Duration) (*hold, error) {
	g.mu.Lock()
	if g.held != nil {
		g.mu.Unlock()
		return nil, rowraft.Errorf(rowraft.CodeOverloaded, "another checkpoint holds the shard's pushes")
	}
	h := &hold{g: g, since: time.Now(), ended: make(chan struct{})}
	h.lease = time.AfterFunc(lease, h.expire)
	g.held, g.drained = h, make(chan struct{})
	if g.active == 0 {
		close(g.drained)
	}
	drained := g.drained
	g.mu.Unlock()
	select {
	case <-drained:
		return h, nil
	case <-h.ended:
		return nil, rowraft.Errorf(rowraft.CodeDeadline, "the pushes under way were not acknowledged within %v", lease)
	case <-ctx.Done():
		h.release()
		return nil, rowraft.Errorf(rowraft.CodeDeadline, "the checkpoint ended while its cut waited for pushes under way")
	}
}

// expire ends the hold when the lease has ended.
func (h *hold) expire() {
	h.g.mu.Lock()
	defer h.g.mu.Unlock()
	h.endLocked()
}

// endLocked ends the hold unless it is over.
// REQUIRES: g.mu is held.
func (h *hold) endLocked() {
	if h.over {
		return
	}
	h.over, h.took = true, time.Since(h.since)
	h.g.held = nil
	close(h.ended)
}

// through calls do if the hold is not over, and does not end during the call; do must not wait. It reports whether it
// called do.
func (h *hold) through(do func()) bool {
	h.g.mu.Lock()
	defer h.g.mu.Unlock()
	if h.over {
		return false
	}
	do()
	return true
}

// release ends the hold and returns how long it was. It may be called again.
func (h *hold) release() time.Duration {
	h.lease.Stop()
	h.g.mu.Lock()
	defer h.g.mu.Unlock()
	h.endLocked()
	return h.took
}
