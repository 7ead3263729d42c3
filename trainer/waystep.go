package trainer

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

// turn lets the pushes of batches happen one after the other, in the order of their numbers,
// as jobs want it whose workers keep step.
type turn struct {
	mu   sync.Mutex
	cond sync.Cond
	done int64 // the last batch whose turn is over
	err  error // that ended it all
}

func newTurn() *turn {
	t := &turn{}
	t.cond.L = &t.mu
	return t
}

// take waits until all batches after first and before step have had their turn.
func (t *turn) take(step, first int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.err == nil && max(t.done, first) < step-1 { // each turn ends in time
		t.cond.Wait()
	}
	return t.err
}

// give ends the turn of step; an error ends those of all that follow.
func (t *turn) give(step int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done, t.err = step, err
	t.cond.Broadcast()
}

// inStep is mode sync: a batch is this worker's share of a step of the job.
type inStep struct {
	direct
	tables Stepper
	turn   *turn

	mu   sync.Mutex
	next int64 // step of the job that the next batch is for
}

func newInStep(j *Job, tables Stepper) *inStep {
	return &inStep{direct: direct{j}, tables: tables, turn: newTurn(), next: 1}
}

// start says with which step of the job this worker begins.
func (s *inStep) start(step int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = max(s.next, step)
	s.j.gate.reach(s.next - 1)
}

// push implements way. A batch that has nothing to push is an empty part: the others
// wait for it.
func (s *inStep) push(ctx context.Context, w *work) (err error) {
	if err := s.turn.take(w.step, s.j.before.step); err != nil {
		return err
	}
	defer func() { s.turn.give(w.step, err) }()
	var sent time.Time
	if !w.empty {
		sent = s.j.sending(1)
	}
	for again := true; again && err == nil; {
		again, err = s.pushOnce(ctx, w, sent)
	}
	return err
}

// pushOnce gives w to the next step, and tells whether what the shards did not take is to be
// given to the one after it.
func (s *inStep) pushOnce(ctx context.Context, w *work, sent time.Time) (again bool, err error) {
	if s.over() { // since the batch was read
		s.j.gate.did(0)
		s.j.late(w, "the job is over")
		return false, nil
	}
	step := s.step()
	if p := s.j.gate.beyond(ctx, step); p != nil { // this worker was late, and has batches too many
		if !s.strict() {
			s.j.gate.did(0)
			s.j.late(w, fmt.Sprintf("it is for step %d, and the job stands still behind step %d for a checkpoint", step, p.limit))
			return false, s.j.covered(w.piece)
		}
		s.j.gate.refuse(p, fmt.Errorf("%w: steps up to %d were closed without it", client.ErrNotNow, step-1))
	}
	s.j.setRates(w.segs, s.j.before.jobStep+step) // those of the others
	answer, err := s.pushStep(ctx, step, w.idle, s.j.parts.positions(w.piece), w.segs)
	switch {
	case err != nil:
		return false, s.j.answered(sent, 1, fmt.Errorf("batch %d: push %d rows: %w", w.step, rowsOf(w.segs), err))
	case w.empty:
	case s.again(answer):
		w.segs = answer.Rest
		return true, nil
	case answer.Late+answer.Unsure > 0 && !(s.j.cfg.parted && s.strict() && answer.Unsure == 0):
		s.j.late(w, fmt.Sprintf("%d shards closed step %d without it, %d do not know any more: going on with step %d", answer.Late, step, answer.Unsure, answer.Next))
	default:
		_ = s.j.answered(sent, 1, nil)
	}
	return false, s.j.covered(w.piece)
}

// again says that what the shards did not take of a batch goes to the next step.
func (s *inStep) again(a StepAnswer) bool {
	return a.Late > 0 && rowsOf(a.Rest) > 0 && s.j.cfg.parted && s.strict()
}

// strict says that a step has the gradients of all workers, but for one that changes of the
// members have closed.
func (s *inStep) strict() bool { return s.j.cfg.Quorum == 1 && s.j.cfg.Deadline == 0 }

// step is the step of the job that comes next.
func (s *inStep) step() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

// pushStep pushes gradients, or that this worker has nothing to read.
func (s *inStep) pushStep(ctx context.Context, step int64, idle bool, read []rowraft.Position, segs []Segment) (answer StepAnswer, err error) {
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
	if s.next = max(answer.Next, step+1); s.again(answer) {
		s.j.gate.reach(s.next - 1) // the batch is still one of those begun
	} else {
		s.j.gate.did(s.next - 1)
	}
	s.j.reached(s.j.before.jobStep + s.next - 1)
	return answer, nil
}

// last is the step with which the job ends: when the worker who has the most batches
// has none left. 0: not known, as where the data is handed out: then nobody ends before all is
// trained, and who has none left does empty steps.
func (s *inStep) last() int64 {
	most := int64(0)
	if s.j.cfg.parted {
		return max(s.j.cfg.Steps-s.j.before.jobStep, 0)
	}
	for rank := range s.j.cfg.Trainers {
		most = max(most, s.j.cfg.stepsOf(rank, s.j.set.TrainSize()))
	}
	return max(most-s.j.before.jobStep, 0)
}

// end implements way: the others may have batches left, and wait for an empty part.
func (s *inStep) end(ctx context.Context, begin func() (bool, error)) error {
	last := s.last()
	for step := s.step(); step <= last; step = s.step() {
		if ok, err := begin(); !ok {
			return err
		}
		if _, err := s.pushStep(ctx, s.step(), true, nil, nil); err != nil {
			return s.j.fail(fmt.Errorf("empty part of step %d: %w", step, err))
		}
	}
	return nil
}

// over implements way: a worker that was late may have batches left when the job has not.
func (s *inStep) over() bool {
	last := s.last()
	return last > 0 && s.step() > last
}

func (s *inStep) empties() bool { return true }

// bounded is mode ssp: as async, but a worker whose clock is more than Staleness above
// the slowest one waits.
type bounded struct {
	direct
	tables Stepper
	turn   *turn

	mu    sync.Mutex
	known bool   // slowest and start are
	start uint64 // this worker's clock at the beginning
	slow  uint64 // the slowest clock that was seen
}

func newBounded(j *Job, tables Stepper) *bounded {
	return &bounded{direct: direct{j}, tables: tables, turn: newTurn()}
}

// clock is that of the worker when batch step is pushed.
func (b *bounded) clock(step int64) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	clock := b.start + uint64(step-b.j.before.step)
	if clock < b.start { // all the others had ended when it began
		return math.MaxUint64
	}
	return clock
}

// clockPoll is how long a worker waits for the slowest before it looks whether somebody
// wants its state.
const clockPoll = 500 * time.Millisecond

// pull implements way. It waits until nobody is too far behind; while it does, nothing of
// this batch has been used, so that a boundary may be here (errBoundary).
func (b *bounded) pull(ctx context.Context, w *work) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	clock, k := b.clock(w.step-1), uint64(b.j.cfg.Staleness)
	for want := clock - min(k, clock); b.slowest() < want; {
		if err := b.j.failed(); err != nil { // its own clock will not rise
			return err
		}
		if b.j.gate.wanted() != nil {
			return errBoundary
		}
		if err := b.await(ctx, want); err != nil {
			return err
		}
	}
	err := b.direct.pull(ctx, w)
	if slowest := b.slowest(); slowest < clock { // it may be less far behind by now
		w.stale = max(w.stale, int64(clock-slowest))
	}
	return err
}

// begin learns the worker's clock: one that joins has that of the slowest.
func (b *bounded) begin(ctx context.Context) error {
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

func (b *bounded) slowest() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.slow
}

func (b *bounded) await(ctx context.Context, want uint64) error {
	poll, cancel := b.j.gate.untilAsked(ctx, clockPoll)
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

// push implements way.
func (b *bounded) push(ctx context.Context, w *work) (err error) {
	if err := b.turn.take(w.step, b.j.before.step); err != nil {
		return err
	}
	defer func() { b.turn.give(w.step, err) }()
	ctx, cancel := context.WithTimeout(ctx, b.j.cfg.Patience)
	defer cancel()
	if w.empty {
		if err := b.fail(w, b.tables.PushClock(ctx, b.clock(w.step), b.j.parts.positions(w.piece), nil)); err != nil {
			return err
		}
		return b.j.covered(w.piece)
	}
	sent := b.j.sending(1)
	err = b.tables.PushClock(ctx, b.clock(w.step), b.j.parts.positions(w.piece), w.segs)
	if err != nil {
		err = fmt.Errorf("step %d: push %d rows: %w", w.step, rowsOf(w.segs), err)
	}
	if err := b.j.answered(sent, 1, err); err != nil {
		return err
	}
	return b.j.covered(w.piece)
}

func (b *bounded) fail(w *work, err error) error {
	if err == nil {
		return nil
	}
	return b.j.fail(fmt.Errorf("step %d: push the clock: %w", w.step, err))
}

// end implements way: nobody need wait for this worker any more.
func (b *bounded) end(ctx context.Context, _ func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, b.j.cfg.Patience)
	defer cancel()
	if err := b.tables.PushClock(ctx, math.MaxUint64, nil, nil); err != nil {
		return b.j.fail(fmt.Errorf("push the last clock: %w", err))
	}
	return nil
}

func (b *bounded) empties() bool { return true }
