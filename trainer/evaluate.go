package trainer

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

// result returns the result after training, without scores.
func (j *Job) result() *report.Result {
	seconds := time.Since(j.started).Seconds()
	nan := report.Number(nan)
	c := j.report.Counted()
	r := &report.Result{
		Job: j.cfg.Job, Mode: j.cfg.Mode, Data: j.set.Name(), Rank: j.cfg.rank(), Trainers: j.cfg.Trainers,
		Device: j.accel.Device,
		Steps:  j.step, Examples: j.examples, Seconds: report.Number(seconds),
		ExamplesPerSecond: report.Number(float64(j.examples-j.before.examples) / seconds), ResumedAtStep: j.before.step,
		TrainingLoss: j.quality.Loss(), TrainingAUC: j.quality.AUC(),
		FirstLoss: j.quality.FirstLoss(), TrainingAccuracy: j.quality.Accuracy(),
		AUC: nan, LogLoss: nan, Accuracy: nan, RMSE: nan, BestAUC: nan, BestLogLoss: nan,
		PushesSent: c.Sent, PushesAcknowledged: c.Acknowledged, PushesUnknown: c.Unknown,
		BatchesSkipped: c.Skipped, BatchesLate: c.Late, JobSteps: c.JobStep,
		Copies:     j.copies(),
		FinishedAt: time.Now(),
	}
	if j.cfg.Audit {
		r.AuditTable = j.audit.Name
		for _, k := range j.auditKeys {
			r.AuditKeys = append(r.AuditKeys, fmt.Sprint(uint64(k)))
		}
	}
	return r
}

// Evaluate scores the held-out examples with the present weights of the tables, without training.
func (j *Job) Evaluate(ctx context.Context) (*report.Result, error) {
	if j.hybrid != nil {
		return nil, errElsewhere
	}
	j.started = time.Now()
	r := j.result()
	return r, j.score(ctx, r)
}

// score adds the scores of the held-out examples to r. One pull of the dense weights serves all of them.
func (j *Job) score(ctx context.Context, r *report.Result) error {
	src, err := j.set.Held()
	if err != nil {
		return err
	}
	defer src.Close()
	w := j.newWork()
	all := report.HeldScore{Numbers: j.shape.Numbers, Labels: j.shape.Labels}
	if err := pullDense(ctx, j, w.flat); err != nil {
		return err
	}
	for batches := int64(0); ; batches++ {
		if err := src.Next(w.data); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		if w.data.N == 0 {
			continue // the rest has only bad lines
		}
		w.prepare(j.fields)
		if err := w.pullHeld(ctx, j); err != nil {
			return err
		}
		w.pooled.Gather(j.fields, w.data, w.batch.Fields)
		if err := j.model.Predict(&w.batch, w.flat, &w.result); err != nil {
			return err
		}
		var truth []float32
		if j.shape.Truth {
			truth = w.data.Truth
		}
		all.Add(&w.batch, &w.result, truth)
		j.emit(report.EventHeld, func(e *report.Event) {
			e.Step, e.Steps, e.Examples = batches+1, 0, int64(all.Examples())
		})
	}
	all.Fill(r)
	return nil
}

// pullHeld fills w with the weights of a batch of held-out examples.
func (w *work) pullHeld(ctx context.Context, j *Job) error {
	w.Segs = j.rowSegments(w, w.pooled.Weights)
	if len(w.Segs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Patience)
	defer cancel()
	if err := j.tables.Pull(ctx, w.Segs); err != nil {
		return fmt.Errorf("held-out examples: pull %d rows: %w", tables.CountRows(w.Segs), err)
	}
	return nil
}
