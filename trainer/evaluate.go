package trainer

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"
)

// Result is the result of a run. Its JSON form is a contract: later versions may add fields, but rename none.
type Result struct {
	Job         string `json:"job"`
	Mode        string `json:"mode"`
	Data        string `json:"data"`
	Rank        int    `json:"rank"`
	Trainers    int    `json:"trainers"`
	Accelerator string `json:"accelerator"`

	Steps             int64  `json:"steps"`           // of all processes, those before a resume included
	ResumedAtStep     int64  `json:"resumed_at_step"` // 0: the run began at step 1
	Examples          int64  `json:"examples"`
	Seconds           Number `json:"seconds"`
	ExamplesPerSecond Number `json:"examples_per_second"`
	TrainingLoss      Number `json:"training_loss"` // mean of the last batches, nats
	TrainingAUC       Number `json:"training_auc"`  // of the last batches, predicted before the update

	FirstLoss        Number `json:"first_loss"`        // the loss of the first batch of this process
	TrainingAccuracy Number `json:"training_accuracy"` // also of the last batches; null without classes

	// The held-out examples; null if they were not scored.
	HeldExamples int    `json:"held_examples"`
	AUC          Number `json:"auc"`
	LogLoss      Number `json:"log_loss"`
	Accuracy     Number `json:"accuracy"` // null without classes
	// The score of the true probabilities; null if they are unknown.
	BestAUC     Number `json:"best_auc"`
	BestLogLoss Number `json:"best_log_loss"`

	PushesSent         int64 `json:"pushes_sent"`
	PushesAcknowledged int64 `json:"pushes_acknowledged"`
	PushesUnknown      int64 `json:"pushes_unknown"` // sent, with unknown outcome
	BatchesSkipped     int64 `json:"batches_skipped"`
	BatchesLate        int64 `json:"batches_late"` // mode sync: the job continued without them
	JobSteps           int64 `json:"job_steps"`    // mode sync: closed steps

	// Examples of the job's data that a trainer read again after another trainer; null if the scheduler did not
	// divide the data, or the run did not end.
	ReadAgainAtLeast *int64 `json:"read_again_at_least"`
	ReadAgainAtMost  *int64 `json:"read_again_at_most"`

	// AuditTable has the number of this trainer's applied pushes in dimension Rank of each of AuditKeys; "" without
	// audit.
	AuditTable string   `json:"audit_table,omitempty"`
	AuditKeys  []string `json:"audit_keys,omitempty"` // decimal: JSON numbers end at 2^53

	ResumedFrom string `json:"resumed_from,omitempty"` // checkpoint, DESTINATION/NAME
	Checkpoint  string `json:"checkpoint,omitempty"`   // checkpoint made at the end or on stop

	Interrupted bool      `json:"interrupted"`
	Stopped     bool      `json:"stopped,omitempty"` // by rowraft job stop
	FinishedAt  time.Time `json:"finished_at"`
}

// result returns the result after training, without scores.
func (j *Job) result() *Result {
	seconds := time.Since(j.started).Seconds()
	nan := Number(math.NaN())
	c := j.report.counted()
	r := &Result{
		Job: j.cfg.Job, Mode: j.cfg.Mode, Data: j.set.Name(), Rank: j.cfg.rank(), Trainers: j.cfg.Trainers,
		Accelerator: j.accel.Backend,
		Steps:       j.step, Examples: j.examples, Seconds: Number(seconds),
		ExamplesPerSecond: Number(float64(j.examples-j.before.examples) / seconds), ResumedAtStep: j.before.step,
		TrainingLoss: Number(j.quality.running.meanLoss()), TrainingAUC: Number(j.quality.running.auc()),
		FirstLoss: nan, TrainingAccuracy: Number(j.quality.accuracy.share()),
		AUC: nan, LogLoss: nan, Accuracy: nan, BestAUC: nan, BestLogLoss: nan,
		PushesSent: c.sent, PushesAcknowledged: c.acknowledged, PushesUnknown: c.unknown,
		BatchesSkipped: c.skipped, BatchesLate: c.late, JobSteps: c.jobStep,
		FinishedAt: time.Now(),
	}
	if j.quality.losses > 0 {
		r.FirstLoss = Number(j.quality.firstLoss)
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
func (j *Job) Evaluate(ctx context.Context) (*Result, error) {
	if j.hybrid != nil {
		return nil, errElsewhere
	}
	j.started = time.Now()
	r := j.result()
	return r, j.score(ctx, r)
}

// score adds the scores of the held-out examples to r. One pull of the dense weights serves all of them.
func (j *Job) score(ctx context.Context, r *Result) error {
	src, err := j.set.Held()
	if err != nil {
		return err
	}
	defer src.Close()
	w := j.newWork()
	var examples, truth []scored
	var classes classScore
	for batches := int64(0); ; batches++ {
		if err := src.Next(w.data); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		w.prepare(j.shape.Categorical, j.cfg.Model.Dim)
		if err := j.pullForScore(ctx, w, batches == 0); err != nil {
			return err
		}
		if err := j.model.Predict(&w.batch, w.rows, w.flat, &w.result); err != nil {
			return err
		}
		classes.add(w)
		for i, p := range w.result.Predictions {
			positive := w.batch.Labels[i] > 0.5
			examples = append(examples, scored{p, positive})
			if j.shape.Truth {
				truth = append(truth, scored{w.data.Truth[i], positive})
			}
		}
		j.emit(EventHeld, func(e *Event) { e.Step, e.Steps, e.Examples = batches+1, 0, int64(len(examples)) })
	}
	if classes.examples > 0 {
		classes.report(r)
		return nil
	}
	s := score(examples)
	r.HeldExamples, r.AUC, r.LogLoss = s.Examples, Number(s.AUC), Number(s.LogLoss)
	if j.shape.Truth {
		s := score(truth)
		r.BestAUC, r.BestLogLoss = Number(s.AUC), Number(s.LogLoss)
	}
	r.FinishedAt = time.Now()
	return nil
}

func (j *Job) pullForScore(ctx context.Context, w *work, dense bool) error {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Patience)
	defer cancel()
	w.Segs = j.rowSegments(w, w.rows)
	if dense {
		w.Segs = j.layout.segments(w.Segs, w.delta)
	}
	if len(w.Segs) == 0 {
		return nil
	}
	if err := j.tables.Pull(ctx, w.Segs); err != nil {
		return fmt.Errorf("held-out examples: pull %d rows: %w", len(w.keys), err)
	}
	if dense {
		j.layout.weights(w.flat, w.delta)
		j.hybrid.fill(w.flat)
	}
	return nil
}
