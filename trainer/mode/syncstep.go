package mode

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/tables"
)

// StepOptions are what mode sync needs besides Options.
type StepOptions struct {
	Stepper tables.Stepper
	Pauses  Pauses
	// SetRates sets the learning rates of the push for a step of the job.
	SetRates func(segs []tables.Segment, step int64)
	// LastStep is the step with which the job ends, counted from the job's beginning: when the trainer with the most
	// batches has none left. 0 means unknown, as with data that the scheduler hands out: then no trainer ends before
	// all data is trained, and a trainer without data takes empty steps.
	LastStep int64
	// Strict: a step needs the gradients of all trainers, so that only a change of the members closes one without
	// them.
	Strict bool
	// PushAgain: gradients that the shards did not take go into the next step, so that each example is trained.
	PushAgain bool
}

// SyncStep is mode sync: a batch is this trainer's share of a step of the job.
type SyncStep struct {
	Async
	StepOptions
	order *batchOrder

	// mu guards next. It is taken before a lock of Pauses and of Run.
	mu   sync.Mutex
	next int64 // step of the job for the next batch
}

// NewSyncStep returns mode sync.
func NewSyncStep(o Options, s StepOptions) *SyncStep {
	return &SyncStep{Async: Async{Options: o}, StepOptions: s, order: newBatchOrder(), next: 1}
}

// JoinAt sets the step of the job with which this trainer begins.
func (m *SyncStep) JoinAt(step int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next = max(m.next, step)
	m.Pauses.Advance(m.next - 1)
}

// Push implements the mode. A batch without gradients is an empty push, because the other trainers wait for it.
func (m *SyncStep) Push(ctx context.Context, b *Batch) (err error) {
	if err := m.order.await(b.Step, m.done); err != nil {
		return err
	}
	// Also after an error: the batches behind this one wait in await, and get the error there.
	defer func() { m.order.finish(b.Step, err) }()
	var sent time.Time
	if !b.Empty {
		sent = m.Run.PushBegan(1)
	}
	for again := true; again && err == nil; {
		again, err = m.pushOnce(ctx, b, sent)
	}
	return err
}

// pushOnce pushes b in the next step. It reports whether the caller must push the gradients that the shards did not
// take in the step after it.
func (m *SyncStep) pushOnce(ctx context.Context, b *Batch, sent time.Time) (again bool, err error) {
	if m.Done() { // the job ended after the batch was read
		m.Pauses.Finish(0)
		m.Run.Late(b, "the job is over")
		return false, nil
	}
	step := m.Step()
	// A trainer that was late has more batches than the others, which already pause.
	if boundary, refuse := m.Pauses.AgreedBefore(ctx, step); refuse != nil {
		if !m.Strict {
			m.Pauses.Finish(0)
			m.Run.Late(b, fmt.Sprintf("it is for step %d, and the job pauses behind step %d for a checkpoint", step,
				boundary))
			return false, m.placeDone(b.Place)
		}
		refuse(fmt.Errorf("%w: steps up to %d were closed without it", jobs.ErrNotNow, step-1))
	}
	m.SetRates(b.Segs, m.jobDone+step) // the rates of the job's step, as the other trainers have them
	r, err := m.pushStep(ctx, step, b.Idle, b.positions(), b.Segs)
	switch {
	case err != nil:
		return false, m.Run.PushEnded(sent, 1, fmt.Errorf("batch %d: push %d rows: %w", b.Step, b.Rows(), err))
	case b.Empty:
	case m.pushesAgain(r):
		b.Segs = r.Rest
		return true, nil
	case r.Late+r.Unsure > 0 && !(m.PushAgain && r.Unsure == 0):
		m.Run.Late(b, fmt.Sprintf("%d shards closed step %d without it, %d no longer know the result: "+
			"continuing with step %d",
			r.Late, step, r.Unsure, r.Next))
	default:
		_ = m.Run.PushEnded(sent, 1, nil)
	}
	return false, m.placeDone(b.Place)
}

// pushesAgain reports whether the gradients that the shards did not take go into the next step.
func (m *SyncStep) pushesAgain(r tables.StepResult) bool {
	return r.Late > 0 && tables.CountRows(r.Rest) > 0 && m.PushAgain
}

// Step returns the next step of the job.
func (m *SyncStep) Step() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.next
}

// pushStep pushes gradients, or reports that this trainer has nothing to read.
func (m *SyncStep) pushStep(ctx context.Context, step int64, idle bool, read []rowraft.Position,
	segs []tables.Segment) (r tables.StepResult, err error) {
	// The Stepper has a patience of its own: the wait for other trainers does not count, because one may be scoring.
	if idle {
		r, err = m.Stepper.PushIdle(ctx, step, read)
	} else {
		r, err = m.Stepper.PushStep(ctx, step, read, segs)
	}
	if err != nil {
		return r, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// Under one lock with the pace, so that a pause request never sees the step raised and the batch still counted, or the
	// reverse.
	if m.next = max(r.Next, step+1); m.pushesAgain(r) {
		m.Pauses.Advance(m.next - 1) // the batch still counts as begun
	} else {
		m.Pauses.Finish(m.next - 1)
	}
	m.Run.JobReached(m.jobDone + m.next - 1)
	return r, nil
}

// last returns the step with which the job ends, counted from the beginning of this run; 0: unknown.
func (m *SyncStep) last() int64 { return max(m.LastStep-m.jobDone, 0) }

// Finish implements the mode: the other trainers may have batches left, and wait for this trainer's empty pushes.
func (m *SyncStep) Finish(ctx context.Context, begin func() (bool, error)) error {
	last := m.last()
	for step := m.Step(); step <= last; step = m.Step() {
		if ok, err := begin(); !ok {
			return err
		}
		if _, err := m.pushStep(ctx, m.Step(), true, nil, nil); err != nil {
			return m.Run.Fail(fmt.Errorf("empty push of step %d: %w", step, err))
		}
	}
	return nil
}

// Done implements the mode: a trainer that was late may have batches left when the job has none.
func (m *SyncStep) Done() bool {
	last := m.last()
	return last > 0 && m.Step() > last
}

// PushesEmpty implements the mode.
func (m *SyncStep) PushesEmpty() bool { return true }
