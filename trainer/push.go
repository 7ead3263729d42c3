package trainer

import (
	"context"
	"io"
	"time"

	"github.com/rowraft/rowraft/trainer/data"
)

// push hands the gradients of w to the job's way.
func (j *Job) push(ctx context.Context, w *work) error {
	defer j.meter.end()
	if w.empty {
		w.segs = w.segs[:0]
		return j.way.push(ctx, w)
	}
	w.segs = j.layout.segments(j.rowSegments(w, w.result.RowGrads), w.denseGrads)
	if j.cfg.Audit {
		w.segs = append(w.segs, Segment{Table: j.audit.ID, Dim: j.audit.Dim, Keys: j.auditKeys, Values: j.auditGrads})
	}
	j.setRates(w.segs, w.step)
	return j.way.push(ctx, w)
}

// failed returns the error of the first push that failed.
func (j *Job) failed() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.failure
}

// emit tells the observer, with the present counters.
func (j *Job) emit(kind string, change func(*Event)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.observe(j.eventLocked(kind, change))
}

// eventLocked makes an event. Progress is brought up to date by the events of Run's
// goroutine, which owns it; others repeat what the last of them said.
// REQUIRES: j.mu is held.
func (j *Job) eventLocked(kind string, change func(*Event)) Event {
	switch kind {
	case EventStart, EventStep, EventSkipped, EventHeld, EventDone:
		seconds := time.Since(j.started).Seconds()
		j.mu.progress = Event{
			Step: j.step, Steps: j.steps, Epoch: j.at.epoch, Examples: j.examples,
			Loss: Number(j.running.meanLoss()), AUC: Number(j.running.auc()), Accuracy: Number(j.accuracy.share()),
			ExamplesPerSecond: Number(float64(j.examples-j.before.examples) / seconds), StepsPerSecond: Number(float64(j.step-j.before.step) / seconds),
		}
	}
	e := j.nowLocked()
	e.Event = kind
	if change != nil {
		change(&e)
	}
	return e
}

// Now returns all counters as they are, in an event of no kind. Rates and qualities are those of
// the last step. Safe for concurrent use.
func (j *Job) Now() Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.nowLocked()
}

// REQUIRES: j.mu is held.
func (j *Job) nowLocked() Event {
	e := j.mu.progress
	e.Time, e.Rank = time.Now(), j.cfg.rank()
	e.PushesSent, e.PushesAcknowledged, e.BatchesSkipped = j.mu.sent, j.mu.acknowledged, j.mu.skipped
	e.BatchesLate, e.JobStep = j.mu.late, j.mu.jobStep
	e.InFlight = j.mu.sent - j.mu.acknowledged - j.mu.unknown - j.mu.late
	e.StalenessSteps, e.WaitingSeconds = Number(j.meter.staleness()), Number(j.meter.waiting(e.Time).Seconds())
	return e
}

// repeated reads the training part of a set over and over, from at on.
type repeated struct {
	set            data.Set
	rank, trainers int
	epochs         int // 0: no bound
	batches        int64
	at             position // of the next batch

	src    data.Source  // nil between epochs
	stream *data.Stream // src, if it is one
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
			if err := r.openTrain(); err != nil {
				return err
			}
			if err := r.src.Skip(r.at.offset); err == io.EOF {
				return invalid("%s has fewer than the %d examples that trainer %d of %d has read before", r.set.Name(), r.at.offset, r.rank, r.trainers)
			} else if err != nil {
				return err
			}
			empty = r.at.offset == 0 && r.stream == nil
		}
		err := r.src.Next(b)
		if err == nil {
			r.behind(b)
			return nil
		}
		if err != io.EOF {
			return err
		}
		r.close()
		r.at = position{epoch: r.at.epoch + 1, place: r.at.place}
	}
}

func (r *repeated) close() {
	if r.src != nil {
		r.src.Close()
		r.src = nil
	}
}
