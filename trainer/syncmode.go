package trainer

import (
	"context"
	"errors"
	"fmt"

	"github.com/rowraft/rowraft/trainer/tables"
)

// syncMode moves rows and gradients between the loop and the tables, as a mode of training wants it. pull and push
// are safe for concurrent use.
type syncMode interface {
	// pull fills the values of w.segs with the weights for the model, and sets w.stale. It may return errBoundary:
	// the loop may take its state now, and then calls pull again.
	pull(ctx context.Context, w *work) error
	// push takes over the gradients in w.segs, and returns when the loop may reuse w. It reports what it sends, and
	// the result, with [Job.pushBegan] and [Job.pushEnded]. It calls [Job.batchDone] when the tables have the
	// batch, or never will.
	push(ctx context.Context, w *work) error
	// The loop calls idle from time to time while this worker has nothing to read. Pushes may be under way.
	idle(ctx context.Context) error
	// drain returns when the tables have all pushed gradients. No push is under way.
	drain(ctx context.Context) error
	// The loop calls finish after drain, when this worker has no batches left. finish calls begin before each step
	// that it takes without a batch, and returns if begin returns false.
	finish(ctx context.Context, begin func() (bool, error)) error
	// done reports that the job needs no more batches of this worker, even if it has some.
	done() bool
	// pushesEmpty reports whether the loop must also push a batch without gradients, because other workers count
	// it.
	pushesEmpty() bool
	// wait returns when all goroutines of the mode have ended.
	wait()
}

// newSyncMode returns the syncMode of the job's mode.
func (j *Job) newSyncMode() (syncMode, error) {
	switch j.cfg.Mode {
	case Geo:
		return newGeoMode(j)
	case Sync, SSP:
		stepper, ok := j.tables.(tables.Stepper)
		if !ok && j.cfg.Trainers > 1 {
			return nil, invalid("mode %s: tables in this process serve one worker, and the job has %d; use a cluster or trainers: 1", j.cfg.Mode, j.cfg.Trainers)
		}
		if !ok {
			stepper = tables.ForOneWorker(j.tables)
		}
		if j.cfg.Mode == Sync {
			if j.cfg.Trainers > 1 {
				j.pausePoint.pace.per = 1
			}
			return newSyncStepMode(j, stepper), nil
		}
		return newSSPMode(j, stepper), nil
	}
	return &asyncMode{j}, nil
}

// errBoundary means that a pull waits for other workers, and a checkpoint wants the state.
var errBoundary = errors.New("the loop may stop here")

// asyncMode is mode async: every batch is a push of its own, and no worker waits for another.
type asyncMode struct{ j *Job }

func (d *asyncMode) pull(ctx context.Context, w *work) error {
	w.stale = d.j.metrics.unfinished(w.step - 1 - d.j.before.step)
	if w.idle {
		return nil
	}
	return d.j.tables.Pull(ctx, w.segs)
}

func (d *asyncMode) push(ctx context.Context, w *work) error {
	ctx, cancel := context.WithTimeout(ctx, d.j.cfg.Patience)
	defer cancel()
	sent := d.j.pushBegan(1)
	err := d.j.tables.Push(ctx, w.segs)
	if err != nil {
		err = fmt.Errorf("step %d: push %d rows: %w", w.step, rowsOf(w.segs), err)
	}
	if err := d.j.pushEnded(sent, 1, err); err != nil {
		return err
	}
	return d.j.batchDone(w.at)
}

func (d *asyncMode) idle(context.Context) error { return nil }

func (d *asyncMode) drain(context.Context) error { return nil }

func (d *asyncMode) finish(context.Context, func() (bool, error)) error { return nil }

func (d *asyncMode) done() bool { return false }

func (d *asyncMode) pushesEmpty() bool { return false }

func (d *asyncMode) wait() {}

func rowsOf(segs []tables.Segment) (n int) {
	for i := range segs {
		n += len(segs[i].Keys)
	}
	return n
}
