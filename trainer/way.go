package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// way is how a mode moves rows and gradients between the loop and the tables. pull and
// push are safe for concurrent use.
type way interface {
	// pull fills the values of w.segs with the weights that the model is to see, and sets
	// w.stale. It may return errBoundary: a boundary may be here, and then it is to be called again.
	pull(ctx context.Context, w *work) error
	// push takes over the gradients in w.segs, and returns when w may be used again. What
	// it sends, and what came of that, it tells with [Job.sending] and [Job.answered], and with
	// [Job.covered] when the tables have it, or never will.
	push(ctx context.Context, w *work) error
	// rest is called now and then while this worker has nothing to read. Pushes may be under way.
	rest(ctx context.Context) error
	// settle returns when the tables have all that was pushed. No push is under way.
	settle(ctx context.Context) error
	// end is called after that when this worker has no batches left. It calls begin before
	// each step that it takes without one, and ends if that says no.
	end(ctx context.Context, begin func() (bool, error)) error
	// over reports that the job wants no more batches of this worker, if it has any.
	over() bool
	// empties reports that a batch without gradients must be pushed all the same, since
	// others count it.
	empties() bool
	// wait returns when nothing that the way has begun goes on.
	wait()
}

// newWay makes the way of the job's mode.
func (j *Job) newWay() (way, error) {
	switch j.cfg.Mode {
	case Geo:
		return newGeo(j)
	case Sync, SSP:
		tables, ok := j.tables.(Stepper)
		if !ok && j.cfg.Trainers > 1 {
			return nil, invalid("mode %s: tables in this process have one worker", j.cfg.Mode)
		}
		if !ok {
			tables = alone{j.tables}
		}
		if j.cfg.Mode == Sync {
			if j.cfg.Trainers > 1 {
				j.gate.pace.per = 1
			}
			return newInStep(j, tables), nil
		}
		return newBounded(j, tables), nil
	}
	return &direct{j}, nil
}

// errBoundary says that a pull waits for other workers, and somebody wants the state.
var errBoundary = errors.New("a boundary may be here")

// direct is mode async: every batch is a push of its own.
type direct struct{ j *Job }

func (d *direct) pull(ctx context.Context, w *work) error {
	w.stale = d.j.meter.behind(w.step - 1 - d.j.before.step)
	if w.idle {
		return nil
	}
	return d.j.tables.Pull(ctx, w.segs)
}

func (d *direct) push(ctx context.Context, w *work) error {
	ctx, cancel := context.WithTimeout(ctx, d.j.cfg.Patience)
	defer cancel()
	sent := d.j.sending(1)
	err := d.j.tables.Push(ctx, w.segs)
	if err != nil {
		err = fmt.Errorf("step %d: push %d rows: %w", w.step, rowsOf(w.segs), err)
	}
	if err := d.j.answered(sent, 1, err); err != nil {
		return err
	}
	return d.j.covered(w.piece)
}

func (d *direct) rest(context.Context) error { return nil }

func (d *direct) settle(context.Context) error { return nil }

func (d *direct) end(context.Context, func() (bool, error)) error { return nil }

func (d *direct) over() bool { return false }

func (d *direct) empties() bool { return false }

func (d *direct) wait() {}

func rowsOf(segs []Segment) (n int) {
	for i := range segs {
		n += len(segs[i].Keys)
	}
	return n
}

// sending counts batches that are about to be pushed.
func (j *Job) sending(batches int64) (sent time.Time) {
	sent = time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.sent += batches
	return sent
}

// answered counts what came of them: acknowledged, or with an error unknown, which ends
// the run. It returns the error.
func (j *Job) answered(sent time.Time, batches int64, err error) error {
	// Events leave one at a time, so mu is held until the observer returns.
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.mu.unknown += batches
		j.failLocked(err)
		return err
	}
	j.mu.acknowledged += batches
	j.observe(j.eventLocked(EventAck, func(e *Event) { e.Sent = &sent }))
	return nil
}

// late counts a batch that others went on without.
func (j *Job) late(w *work, why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !w.empty {
		j.mu.late++
	}
	j.observe(j.eventLocked(EventLate, func(e *Event) { e.Message = fmt.Sprintf("batch %d is lost: %s", w.step, why) }))
}

// reached counts the steps of the job.
func (j *Job) reached(step int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.jobStep = max(j.mu.jobStep, step)
}

// fail ends the run with err, which is returned.
func (j *Job) fail(err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failLocked(err)
	return err
}

// REQUIRES: j.mu is held.
func (j *Job) failLocked(err error) {
	if j.mu.failure == nil {
		j.mu.failure = err
	}
}
