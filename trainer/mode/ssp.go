package mode

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rowraft/rowraft/trainer/tables"
)

// SSPOptions are what mode ssp needs besides Options.
type SSPOptions struct {
	Stepper   tables.Stepper
	Pauses    Pauses
	Staleness int // how many steps a trainer may be ahead of the slowest
}

// SSP is mode ssp: as async, but a trainer whose clock is more than Staleness above the slowest clock waits.
type SSP struct {
	Async
	SSPOptions
	order *batchOrder

	mu    sync.Mutex
	known bool   // slow and start are set
	start uint64 // this trainer's clock when it began
	slow  uint64 // the newest known clock of the slowest trainer
}

// NewSSP returns mode ssp.
func NewSSP(o Options, s SSPOptions) *SSP {
	return &SSP{Async: Async{Options: o}, SSPOptions: s, order: newBatchOrder()}
}

// clock returns this trainer's clock for the push of batch step.
func (m *SSP) clock(step int64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	clock := m.start + uint64(step-m.done)
	if clock < m.start { // overflow: all other trainers had ended when this one began
		return math.MaxUint64
	}
	return clock
}

// clockPoll is how long a trainer waits for the slowest one before it checks whether a checkpoint wants its state.
const clockPoll = 500 * time.Millisecond

// Pull implements the mode. It waits until no trainer is too far behind. While it waits it has used nothing of this
// batch, so the loop may take its state there (ErrBoundary).
func (m *SSP) Pull(ctx context.Context, b *Batch) error {
	if err := m.readStart(ctx); err != nil {
		return err
	}
	clock, k := m.clock(b.Step-1), uint64(m.Staleness)
	for want := clock - min(k, clock); m.slowest() < want; {
		if err := m.Run.Failed(); err != nil { // after a failed push this trainer's own clock does not rise
			return err
		}
		if m.Pauses.Requested() {
			return ErrBoundary
		}
		if err := m.await(ctx, want); err != nil {
			return err
		}
	}
	err := m.Async.Pull(ctx, b)
	if slowest := m.slowest(); slowest < clock { // the slowest may have caught up since
		b.Stale = max(b.Stale, int64(clock-slowest))
	}
	return err
}

// readStart reads the clock with which this trainer starts: a trainer that joins takes the slowest clock.
func (m *SSP) readStart(ctx context.Context) error {
	m.mu.Lock()
	known := m.known
	m.mu.Unlock()
	if known {
		return nil
	}
	slowest, err := m.Stepper.WaitClock(ctx, 0)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known, m.start, m.slow = true, slowest, slowest
	return nil
}

func (m *SSP) slowest() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.slow
}

func (m *SSP) await(ctx context.Context, want uint64) error {
	poll, cancel := m.Pauses.UntilRequested(ctx, clockPoll)
	defer cancel()
	slowest, err := m.Stepper.WaitClock(poll, want)
	// The end of poll alone is no error: the loop looks for a pause request and asks again.
	if err != nil && (ctx.Err() != nil || poll.Err() == nil) {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slow = max(m.slow, slowest)
	return nil
}

// Push implements the mode.
func (m *SSP) Push(ctx context.Context, b *Batch) (err error) {
	if err := m.order.await(b.Step, m.done); err != nil {
		return err
	}
	defer func() { m.order.finish(b.Step, err) }()
	ctx, cancel := context.WithTimeout(ctx, m.Patience)
	defer cancel()
	if b.Empty {
		if err := m.Stepper.PushClock(ctx, m.clock(b.Step), b.positions(), nil); err != nil {
			return m.Run.Fail(fmt.Errorf("step %d: push the clock: %w", b.Step, err))
		}
		return m.placeDone(b.Place)
	}
	sent := m.Run.PushBegan(1)
	return m.pushed(b, sent, m.Stepper.PushClock(ctx, m.clock(b.Step), b.positions(), b.Segs))
}

// Finish implements the mode: the largest clock releases every trainer that waits for this one.
func (m *SSP) Finish(ctx context.Context, _ func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, m.Patience)
	defer cancel()
	if err := m.Stepper.PushClock(ctx, math.MaxUint64, nil, nil); err != nil {
		return m.Run.Fail(fmt.Errorf("push the last clock: %w", err))
	}
	return nil
}

// PushesEmpty implements the mode.
func (m *SSP) PushesEmpty() bool { return true }
