package trainer

import (
	"context"
	"fmt"
	"time"

	"github.com/rowraft/rowraft/trainer/tables"
)

// push hands the gradients of w to the job's mode.
func (j *Job) push(ctx context.Context, w *work) error {
	defer j.metrics.batchEnded()
	if w.empty {
		w.segs = w.segs[:0]
		return j.mode.push(ctx, w)
	}
	w.segs = j.layout.segments(j.rowSegments(w, w.result.RowGrads), w.denseGrads)
	if j.cfg.Audit {
		w.segs = append(w.segs, tables.Segment{Table: j.audit.ID, Dim: j.audit.Dim, Keys: j.auditKeys, Values: j.auditGrads})
	}
	j.setRates(w.segs, w.step)
	return j.mode.push(ctx, w)
}

// pushBegan counts batches whose push begins.
func (j *Job) pushBegan(batches int64) (sent time.Time) {
	sent = time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.sent += batches
	return sent
}

// pushEnded counts the result of these batches: acknowledged, or unknown after an error, which ends the run. It
// returns the error.
func (j *Job) pushEnded(sent time.Time, batches int64, err error) error {
	// The observer gets one event at a time, so mu is held until it returns.
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

// late counts a batch that the job continued without.
func (j *Job) late(w *work, why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !w.empty {
		j.mu.late++
	}
	j.observe(j.eventLocked(EventLate, func(e *Event) { e.Message = fmt.Sprintf("batch %d is lost: %s", w.step, why) }))
}

// reached records the last closed step of the job.
func (j *Job) reached(step int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.jobStep = max(j.mu.jobStep, step)
}

// fail ends the run with err and returns err.
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

// failed returns the error of the first failed push.
func (j *Job) failed() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.failure
}
