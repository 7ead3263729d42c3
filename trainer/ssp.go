package trainer

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rowraft/rowraft/trainer/tables"
)

// sspMode is mode ssp: as async, but a worker whose clock is more than Staleness above the slowest clock waits.
type sspMode struct {
	asyncMode
	tables tables.Stepper
	order  *batchOrder

	mu    sync.Mutex
	known bool   // slow and start are set
	start uint64 // this worker's clock when it began
	slow  uint64 // the newest known clock of the slowest worker
}

func newSSPMode(j *Job, tables tables.Stepper) *sspMode {
	return &sspMode{asyncMode: asyncMode{j}, tables: tables, order: newBatchOrder()}
}

// clock returns this worker's clock for the push of batch step.
func (b *sspMode) clock(step int64) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	clock := b.start + uint64(step-b.j.before.step)
	if clock < b.start { // overflow: all other workers had ended when this one began
		return math.MaxUint64
	}
	return clock
}

// clockPoll is how long a worker waits for the slowest one before it checks whether a checkpoint wants its state.
const clockPoll = 500 * time.Millisecond

// pull implements syncMode. It waits until no worker is too far behind. While it waits it has used nothing of this
// batch, so the loop may take its state there (errBoundary).
func (b *sspMode) pull(ctx context.Context, w *work) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	clock, k := b.clock(w.step-1), uint64(b.j.cfg.Staleness)
	for want := clock - min(k, clock); b.slowest() < want; {
		if err := b.j.failed(); err != nil { // after a failed push this worker's own clock does not rise
			return err
		}
		if b.j.pausePoint.current() != nil {
			return errBoundary
		}
		if err := b.await(ctx, want); err != nil {
			return err
		}
	}
	err := b.asyncMode.pull(ctx, w)
	if slowest := b.slowest(); slowest < clock { // the slowest may have caught up since
		w.stale = max(w.stale, int64(clock-slowest))
	}
	return err
}

// begin reads the clock with which this worker starts: a worker that joins takes the slowest clock.
func (b *sspMode) begin(ctx context.Context) error {
	b.mu.Lock()
	known := b.known
	b.mu.Unlock()
	if known {
		return nil
	}
	slowest, err := b.tables.WaitClock(ctx, 0)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known, b.start, b.slow = true, slowest, slowest
	return nil
}

func (b *sspMode) slowest() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.slow
}

func (b *sspMode) await(ctx context.Context, want uint64) error {
	poll, cancel := b.j.pausePoint.untilRequested(ctx, clockPoll)
	defer cancel()
	slowest, err := b.tables.WaitClock(poll, want)
	if err != nil && (ctx.Err() != nil || poll.Err() == nil) {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slow = max(b.slow, slowest)
	return nil
}

// push implements syncMode.
func (b *sspMode) push(ctx context.Context, w *work) (err error) {
	if err := b.order.await(w.step, b.j.before.step); err != nil {
		return err
	}
	defer func() { b.order.finish(w.step, err) }()
	ctx, cancel := context.WithTimeout(ctx, b.j.cfg.Patience)
	defer cancel()
	if w.empty {
		if err := b.fail(w, b.tables.PushClock(ctx, b.clock(w.step), b.j.parts.positions(w.at), nil)); err != nil {
			return err
		}
		return b.j.batchDone(w.at)
	}
	sent := b.j.pushBegan(1)
	err = b.tables.PushClock(ctx, b.clock(w.step), b.j.parts.positions(w.at), w.segs)
	if err != nil {
		err = fmt.Errorf("step %d: push %d rows: %w", w.step, rowsOf(w.segs), err)
	}
	if err := b.j.pushEnded(sent, 1, err); err != nil {
		return err
	}
	return b.j.batchDone(w.at)
}

func (b *sspMode) fail(w *work, err error) error {
	if err == nil {
		return nil
	}
	return b.j.fail(fmt.Errorf("step %d: push the clock: %w", w.step, err))
}

// finish implements syncMode: the largest clock releases every worker that waits for this one.
func (b *sspMode) finish(ctx context.Context, _ func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, b.j.cfg.Patience)
	defer cancel()
	if err := b.tables.PushClock(ctx, math.MaxUint64, nil, nil); err != nil {
		return b.j.fail(fmt.Errorf("push the last clock: %w", err))
	}
	return nil
}

func (b *sspMode) pushesEmpty() bool { return true }
