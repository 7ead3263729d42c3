package trainer

import (
	"context"
	"fmt"
	"time"
)

// way is how a mode moves rows and gradients between the loop and the tables. pull and
// push are safe for concurrent use.
type way interface {
	// pull fills the values of segs with the weights that the model is to see.
	pull(ctx context.Context, segs []Segment) error
	// push takes over the gradients in w.segs, and returns when w may be used again. What
	// it sends, and what came of that, it tells with [Job.sending] and [Job.answered].
	push(ctx context.Context, w *work) error
	// settle returns when the tables have all that was pushed. No push is under way.
	settle(ctx context.Context) error
	// wait returns when nothing that the way has begun goes on.
	wait()
}

// newWay makes the way of the job's mode.
func (j *Job) newWay() (way, error) {
	if j.cfg.Mode == Geo {
		return newGeo(j)
	}
	return &direct{j}, nil
}

// direct is mode async: every batch is a push of its own.
type direct struct{ j *Job }

func (d *direct) pull(ctx context.Context, segs []Segment) error { return d.j.tables.Pull(ctx, segs) }

func (d *direct) push(ctx context.Context, w *work) error {
	ctx, cancel := context.WithTimeout(ctx, d.j.cfg.Patience)
	defer cancel()
	sent := d.j.sending(1)
	err := d.j.tables.Push(ctx, w.segs)
	if err != nil {
		err = fmt.Errorf("step %d: push %d rows: %w", w.step, rowsOf(w.segs), err)
	}
	return d.j.answered(sent, 1, err)
}

func (d *direct) settle(context.Context) error { return nil }

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
