package trainer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/mode"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

// push hands the gradients of w to the job's mode.
func (j *Job) push(ctx context.Context, w *work) error {
	defer j.report.BatchEnded()
	if w.Empty {
		w.Segs = w.Segs[:0]
		return j.mode.Push(ctx, &w.Batch)
	}
	w.Segs = j.layout.Segments(j.rowSegments(w, w.pooled.Grads), w.denseGrads)
	if j.cfg.Audit {
		w.Segs = append(w.Segs, tables.Segment{Table: j.audit.ID, Dim: j.audit.Dim, Keys: j.auditKeys,
			Values: j.auditGrads})
	}
	w.Segs = j.progress.with(w.Segs, onePush)
	j.setRates(w.Segs, w.Step)
	if err := j.mode.Push(ctx, &w.Batch); err != nil {
		return err
	}
	j.progress.measure(ctx, w)
	return nil
}

// batchDone records that a batch without a push is over.
func (j *Job) batchDone(p mode.Place) error {
	if p == nil {
		return nil
	}
	if err := p.Done(); err != nil {
		return j.report.Fail(err)
	}
	return nil
}

// idleStep takes part in a step without a batch.
func (j *Job) idleStep(w *work) (push bool, err error) {
	w.Empty = true
	if err := j.hybrid.learn(w); err != nil {
		return false, fmt.Errorf("step %d: %w", w.Step, err)
	}
	j.step++
	if push = j.mode.PushesEmpty(); !push {
		j.report.BatchEnded()
	}
	return push, nil
}

// emit sends an event of the goroutine of Run, which owns the progress.
func (j *Job) emit(kind string, change func(*report.Event)) {
	seconds := time.Since(j.started).Seconds()
	planned := j.steps
	if planned == 0 && j.ramp.Alone() {
		planned = j.whole
	}
	j.report.Emit(kind, &report.Event{
		Step: j.step, Steps: planned, Epoch: j.at.epoch, Examples: j.examples,
		Loss: j.quality.Loss(), AUC: j.quality.AUC(),
		Accuracy:          j.quality.Accuracy(),
		ExamplesPerSecond: report.Number(float64(j.examples-j.before.examples) / seconds),
		StepsPerSecond:    report.Number(float64(j.step-j.before.step) / seconds),
		Held:              j.validation.Last,
		Copies:            j.copies(),
	}, change)
}

// Now returns the present counters, in an event without a kind. Rates and qualities are those of the last step.
// Safe for concurrent use.
func (j *Job) Now() report.Event { return j.report.Now() }

// setRates sets the learning rates of the tables in the segments of a push.
func (j *Job) setRates(segs []tables.Segment, step int64) {
	for i := range segs {
		switch id := segs[i].Table; {
		case slices.ContainsFunc(j.fields.Tables, func(s rowraft.Schema) bool { return s.ID == id }):
			segs[i].LR = j.cfg.Embeddings.Schedule.Rate(j.cfg.Embeddings.LR, step)
		case j.layout.Has(id):
			segs[i].LR = j.cfg.Dense.Schedule.Rate(j.cfg.Dense.LR, step)
		}
	}
}
