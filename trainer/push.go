package trainer

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models"
)

// push hands the gradients of w to the job's way.
func (j *Job) push(ctx context.Context, w *work) error {
	if w.empty {
		w.segs = w.segs[:0]
		return j.way.push(ctx, w)
	}
	w.segs = j.layout.segments(j.rowSegments(w, w.result.RowGrads), w.denseGrads)
	if j.cfg.Audit {
		w.segs = append(w.segs, Segment{Table: j.audit.ID, Dim: j.audit.Dim, Keys: j.auditKeys, Values: j.auditGrads})
	}
	j.setRates(w.segs, w.step)
	if err := j.way.push(ctx, w); err != nil {
		return err
	}
	return j.covered(ctx, w)
}

// failed returns the error of the first push that failed.
func (j *Job) failed() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.failure
}

// skip counts a batch that is not finite.
func (j *Job) skip(w *work, reason string) error {
	j.mu.Lock()
	j.mu.skipped++
	j.mu.Unlock()
	j.skippedInARow++
	message := fmt.Sprintf("step %d skipped: %s is not finite; its first example is number %d of %s", w.step, reason, w.data.First, j.set.Name())
	j.emit(EventSkipped, func(e *Event) { e.Message = message })
	if j.skippedInARow >= maxSkippedInARow {
		return invalid("%d batches in a row were not finite, the last: %s", j.skippedInARow, message)
	}
	return nil
}

// notFinite names the first part of r that is not finite, or returns "".
func notFinite(r *models.Result) string {
	if math.IsNaN(r.Loss) || math.IsInf(r.Loss, 0) {
		return "the loss"
	}
	if !allFinite(r.RowGrads) {
		return "a gradient of the embeddings"
	}
	if !allFinite(r.ParamGrads) {
		return "a gradient of the dense weights"
	}
	return ""
}

// allFinite: x−x is 0 for finite x only, and a sum with a NaN stays one.
func allFinite(s []float32) bool {
	var sum float32
	for _, x := range s {
		sum += x - x
	}
	return sum == 0
}

// emit tells the observer, with the present counters.
func (j *Job) emit(kind string, change func(*Event)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.observe(j.eventLocked(kind, change))
}

// eventLocked makes an event. Progress is brought up to date by the events of
// Run's goroutine, which owns it; an acknowledgement, which comes from another
// one, repeats what the last of them said.
// REQUIRES: j.mu is held.
func (j *Job) eventLocked(kind string, change func(*Event)) Event {
	if kind != EventAck {
		j.mu.progress = Event{
			Step: j.step, Steps: j.steps, Epoch: j.at.epoch, Examples: j.examples,
			Loss: Number(j.running.meanLoss()), AUC: Number(j.running.auc()), Accuracy: Number(j.accuracy.share()),
			ExamplesPerSecond: Number(float64(j.examples-j.before.examples) / time.Since(j.started).Seconds()),
		}
	}
	e := j.mu.progress
	e.Event, e.Time, e.Rank = kind, time.Now(), j.cfg.rank()
	e.PushesSent, e.PushesAcknowledged, e.BatchesSkipped = j.mu.sent, j.mu.acknowledged, j.mu.skipped
	e.BatchesLate, e.JobStep = j.mu.late, j.mu.jobStep
	if change != nil {
		change(&e)
	}
	return e
}

// repeated reads the training part of a set over and over, from at on.
type repeated struct {
	set            data.Set
	rank, trainers int
	epochs         int // 0: no bound
	batches        int64
	at             position // of the next batch

	src data.Source // nil between epochs
}

func (r *repeated) count() int64 { return r.batches }

func (r *repeated) next(w *work) error {
	if err := r.read(w.data); err != nil {
		return err
	}
	w.step, w.after = r.batches, r.at
	return nil
}

func (r *repeated) read(b *data.Batch) error {
	empty := false // the epoch gave no batch
	for {
		if r.src == nil {
			if r.epochs > 0 && r.at.epoch >= int64(r.epochs) {
				return io.EOF
			}
			if empty {
				return invalid("%s: no training examples for rank %d of %d", r.set.Name(), r.rank, r.trainers)
			}
			var err error
			if r.src, err = r.set.Train(r.rank, r.trainers); err != nil {
				return err
			}
			if err := r.src.Skip(r.at.offset); err == io.EOF {
				return invalid("%s has fewer than the %d examples that trainer %d of %d has read before", r.set.Name(), r.at.offset, r.rank, r.trainers)
			} else if err != nil {
				return err
			}
			empty = r.at.offset == 0
		}
		err := r.src.Next(b)
		if err == nil {
			r.batches++
			r.at.offset += int64(b.N)
			return nil
		}
		if err != io.EOF {
			return err
		}
		r.close()
		r.at = position{epoch: r.at.epoch + 1}
	}
}

func (r *repeated) close() {
	if r.src != nil {
		r.src.Close()
		r.src = nil
	}
}
