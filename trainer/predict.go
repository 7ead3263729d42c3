package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/ordered"
	"github.com/rowraft/rowraft/trainer/report"
)

// Predicted are the predictions of a batch. They are valid until the function that gets them returns.
type Predicted struct {
	N      int
	Lines  *data.Lines // where the examples stand in their file; nil unless DataConfig.KeepLines is set
	Result *models.Result
}

// maxPredictWorkers bounds the memory of Predict.
const maxPredictWorkers = 256

// Predict computes the predictions of all examples of the job's data with the present weights of the tables, and calls
// to with those of one batch after the other, in the order of the data: each example has as many numbers as the model
// has tasks. Predict creates no rows, and needs no labels.
//
// One goroutine reads, workers goroutines pull rows, and as many compute, each with a model of its own. 2·workers + 2
// batches are in memory, whatever the size of the data. The predictions are the same for any number of workers.
//
// The result has the number of examples as HeldExamples, and no scores. Interrupted is set if the context ended first.
func (j *Job) Predict(caller context.Context, workers int, to func(*Predicted) error) (*report.Result, error) {
	switch d := &j.cfg.Data; {
	case j.hybrid != nil:
		return nil, errElsewhere
	case d.MaxBad > 0 || d.shuffle() != "":
		return nil, invalid("data: max_bad and shuffle: predictions would not be in the order of the examples")
	case workers < 1 || workers > maxPredictWorkers:
		return nil, invalid("%d workers: want 1 to %d", workers, maxPredictWorkers)
	}
	j.started = time.Now()
	src, err := j.set.Train(0, 0, 1)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	r := j.result()
	each := []models.Model{j.model}
	for len(each) < workers {
		backend, _, err := accel.Open(j.cfg.Device)
		if err != nil {
			return r, err
		}
		m, err := newModels(&j.cfg, backend, j.shape)
		if err != nil {
			return r, err
		}
		each = append(each, m)
	}
	flat := make([]float32, len(j.layout.Initial))
	if err := pullDense(caller, j, flat); err != nil {
		return r, err
	}
	batches := int64(0)
	p := &ordered.Stages[*work]{
		Read: func(ctx context.Context, w *work) error {
			err := data.ErrNoneYet // a stream returns it until it has examples
			for errors.Is(err, data.ErrNoneYet) && ctx.Err() == nil {
				err = src.Next(w.data)
			}
			if err == nil {
				w.prepare(j.fields)
			}
			return err
		},
		Pull: func(ctx context.Context, w *work) error { return w.pullHeld(ctx, j) },
		Write: func(w *work) error {
			if err := to(&Predicted{N: w.batch.N, Lines: w.data.Lines, Result: &w.result}); err != nil {
				return fmt.Errorf("write predictions: %w", err)
			}
			batches++
			r.HeldExamples += w.batch.N
			j.emit(report.EventHeld, func(e *report.Event) { e.Step, e.Steps, e.Examples = batches, 0, int64(r.HeldExamples) })
			return nil
		},
	}
	for _, m := range each {
		p.Compute = append(p.Compute, func(w *work) error {
			w.pooled.Gather(j.fields, w.data, w.batch.Fields)
			return m.Predict(&w.batch, w.flat, &w.result)
		})
	}
	items := make([]*work, 2*workers+2)
	for i := range items {
		items[i] = j.newWork()
		items[i].flat = flat
	}
	err = p.Run(caller, items)
	r.FinishedAt = time.Now()
	if r.Interrupted = caller.Err() != nil && errors.Is(err, caller.Err()); r.Interrupted {
		err = nil
	}
	return r, err
}
