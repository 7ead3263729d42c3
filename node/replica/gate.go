package replica

import (
	"context"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
)

// maxGateBytes is the number of bytes that may wait at a closed gate; above it pushes are refused.
const maxGateBytes = 64 << 20

// gate holds back the pushes of one shard while a checkpoint makes its cut. While it is closed,
// pushes that entered before get their results, and new ones wait in enter.
type gate struct {
	mu      sync.Mutex
	active  int           // pushes between enter and leave
	waiting int           // bytes of pushes that wait in enter
	held    *hold         // nil: open
	drained chan struct{} // closed when active falls to 0 while held
}

// hold is one closing of the gate.
type hold struct {
	g      *gate
	since  time.Time
	took   time.Duration // set once open
	opened chan struct{}
	lease  *time.Timer
	open   bool
}

// enter admits a push of size bytes, and waits while the gate is closed. Each enter without an error needs
// one leave.
func (g *gate) enter(ctx context.Context, size int) error {
	g.mu.Lock()
	for g.held != nil {
		if g.waiting+size > maxGateBytes {
			g.mu.Unlock()
			return &rowraft.OverloadedError{What: "too many pushes wait for a checkpoint's cut", RetryAfter: 20 * time.Millisecond}
		}
		g.waiting += size
		opened := g.held.opened
		g.mu.Unlock()
		var err error
		select {
		case <-opened:
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

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.active--; g.active == 0 && g.held != nil {
		close(g.drained)
	}
}

// close closes the gate for lease at most and returns when every push that entered has left.
// The caller releases the hold.
//
// Errors: CodeOverloaded if the gate is closed already; CodeDeadline if the pushes that
// entered do not leave in time.
func (g *gate) close(ctx context.Context, lease time.Duration) (*hold, error) {
	g.mu.Lock()
	if g.held != nil {
		g.mu.Unlock()
		return nil, rowraft.Errorf(rowraft.CodeOverloaded, "another checkpoint holds the shard's pushes")
	}
	h := &hold{g: g, since: time.Now(), opened: make(chan struct{})}
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
	case <-h.opened:
		return nil, rowraft.Errorf(rowraft.CodeDeadline, "the pushes under way were not acknowledged within %v", lease)
	case <-ctx.Done():
		h.release()
		return nil, rowraft.Errorf(rowraft.CodeDeadline, "the checkpoint ended while its cut waited for pushes under way")
	}
}

// expire opens the gate when the lease has ended.
func (h *hold) expire() {
	h.g.mu.Lock()
	defer h.g.mu.Unlock()
	h.openLocked()
}

// openLocked opens the gate unless it is open.
// REQUIRES: g.mu is held.
func (h *hold) openLocked() {
	if h.open {
		return
	}
	h.open, h.took = true, time.Since(h.since)
	h.g.held = nil
	close(h.opened)
}

// through calls do if the gate has been closed since the hold began, and keeps it closed during
// the call; do must not wait. It reports whether it called do.
func (h *hold) through(do func()) bool {
	h.g.mu.Lock()
	defer h.g.mu.Unlock()
	if h.open {
		return false
	}
	do()
	return true
}

// release opens the gate and returns how long it was closed. It may be called again.
func (h *hold) release() time.Duration {
	h.lease.Stop()
	h.g.mu.Lock()
	defer h.g.mu.Unlock()
	h.openLocked()
	return h.took
}
