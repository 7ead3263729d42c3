package trainer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/tables"
)

// batchOrder makes the pushes of batches happen one after the other, in the order of their numbers. Modes sync and
// ssp need it: a step or a clock must not overtake an earlier one of the same worker.
type batchOrder struct {
	mu   sync.Mutex
	cond sync.Cond
	done int64 // the last batch that is finished
	err  error // the error that ended the order; nil while there is none
}

func newBatchOrder() *batchOrder {
	t := &batchOrder{}
	t.cond.L = &t.mu
	return t
}

// await waits until all batches after first and before step are finished.
func (t *batchOrder) await(step, first int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.err == nil && max(t.done, first) < step-1 { // each batch ends in time
		t.cond.Wait()
	}
	return t.err
}

// finish marks batch step as finished. An error fails all batches that follow.
func (t *batchOrder) finish(step int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done, t.err = step, err
	t.cond.Broadcast()
}

// syncStepMode is mode sync: a batch is this worker's share of a step of the job.
type syncStepMode struct {
	asyncMode
	tables tables.Stepper
	order  *batchOrder

	mu   sync.Mutex
	next int64 // step of the job for the next batch
}

func newSyncStepMode(j *Job, tables tables.Stepper) *syncStepMode {
	return &syncStepMode{asyncMode: asyncMode{j}, tables: tables, order: newBatchOrder(), next: 1}
}

// start sets the step of the job with which this worker begins.
func (s *syncStepMode) start(step int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = max(s.next, step)
	s.j.pausePoint.advance(s.next - 1)
}

// push implements syncMode. A batch without gradients is an empty push, because the other workers wait for it.
func (s *syncStepMode) push(ctx context.Context, w *work) (err error) {
	if err := s.order.await(w.step, s.j.before.step); err != nil {
		return err
	}
	defer func() { s.order.finish(w.step, err) }()
	var sent time.Time
	if !w.empty {
		sent = s.j.pushBegan(1)
	}
	for again := true; again && err == nil; {
		again, err = s.pushOnce(ctx, w, sent)
	}
	return err
}

// pushOnce pushes w in the next step. It reports whether the caller must push the gradients that the shards did not
// take in the step after it.
func (s *syncStepMode) pushOnce(ctx context.Context, w *work, sent time.Time) (again bool, err error) {
	if s.done() { // the job ended after the batch was read
		s.j.pausePoint.finish(0)
		s.j.late(w, "the job is over")
		return false, nil
	}
	step := s.step()
	if p := s.j.pausePoint.awaitAgreed(ctx, step); p != nil { // this worker was late, and has more batches than the others
		if !s.strict() {
			s.j.pausePoint.finish(0)
			s.j.late(w, fmt.Sprintf("it is for step %d, and the job pauses behind step %d for a checkpoint", step, p.boundary))
			return false, s.j.batchDone(w.at)
		}
		s.j.pausePoint.refuse(p, fmt.Errorf("%w: steps up to %d were closed without it", client.ErrNotNow, step-1))
	}
	s.j.setRates(w.segs, s.j.before.jobStep+step) // the rates of the job's step, as the other workers have them
	answer, err := s.pushStep(ctx, step, w.idle, s.j.parts.positions(w.at), w.segs)
	switch {
	case err != nil:
		return false, s.j.pushEnded(sent, 1, fmt.Errorf("batch %d: push %d rows: %w", w.step, rowsOf(w.segs), err))
	case w.empty:
	case s.pushesAgain(answer):
		w.segs = answer.Rest
		return true, nil
	case answer.Late+answer.Unsure > 0 && !(s.j.cfg.splitData && s.strict() && answer.Unsure == 0):
		s.j.late(w, fmt.Sprintf("%d shards closed step %d without it, %d no longer know the result: continuing with step %d", answer.Late, step, answer.Unsure, answer.Next))
	default:
		_ = s.j.pushEnded(sent, 1, nil)
	}
	return false, s.j.batchDone(w.at)
}

// pushesAgain reports whether the gradients that the shards did not take go into the next step.
func (s *syncStepMode) pushesAgain(a tables.StepResult) bool {
	return a.Late > 0 && rowsOf(a.Rest) > 0 && s.j.cfg.splitData && s.strict()
}

// strict reports whether a step needs the gradients of all workers. Then only a change of the members closes a step
// without one.
func (s *syncStepMode) strict() bool { return s.j.cfg.Quorum == 1 && s.j.cfg.Deadline == 0 }

// step returns the next step of the job.
func (s *syncStepMode) step() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

// pushStep pushes gradients, or reports that this worker has nothing to read.
func (s *syncStepMode) pushStep(ctx context.Context, step int64, idle bool, read []rowraft.Position, segs []tables.Segment) (answer tables.StepResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.j.cfg.Patience)
	defer cancel()
	if idle {
		answer, err = s.tables.PushIdle(ctx, step, read)
	} else {
		answer, err = s.tables.PushStep(ctx, step, read, segs)
	}
	if err != nil {
		return answer, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next = max(answer.Next, step+1); s.pushesAgain(answer) {
		s.j.pausePoint.advance(s.next - 1) // the batch still counts as begun
	} else {
		s.j.pausePoint.finish(s.next - 1)
	}
	s.j.reached(s.j.before.jobStep + s.next - 1)
	return answer, nil
}

// last returns the step with which the job ends: when the worker with the most batches has none left. 0 means
// unknown, as with data that the scheduler hands out: then no worker ends before all data is trained, and a worker
// without data takes empty steps.
func (s *syncStepMode) last() int64 {
	most := int64(0)
	if s.j.cfg.splitData {
		return max(s.j.cfg.Steps-s.j.before.jobStep, 0)
	}
	for rank := range s.j.cfg.Trainers {
		most = max(most, s.j.cfg.stepsOf(rank, s.j.set.TrainSize()))
	}
	return max(most-s.j.before.jobStep, 0)
}

// finish implements syncMode: the other workers may have batches left, and wait for this worker's empty pushes.
func (s *syncStepMode) finish(ctx context.Context, begin func() (bool, error)) error {
	last := s.last()
	for step := s.step(); step <= last; step = s.step() {
		if ok, err := begin(); !ok {
			return err
		}
		if _, err := s.pushStep(ctx, s.step(), true, nil, nil); err != nil {
			return s.j.fail(fmt.Errorf("empty push of step %d: %w", step, err))
		}
	}
	return nil
}

// done implements syncMode: a worker that was late may have batches left when the job has none.
func (s *syncStepMode) done() bool {
	last := s.last()
	return last > 0 && s.step() > last
}

func (s *syncStepMode) pushesEmpty() bool { return true }
