package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/report"
)

// predictAhead is how many batches are read and pulled while the model computes one.
const predictAhead = 3

// Predict computes the predictions of all examples of the job's data with the present weights of the tables, and calls
// to with those of one batch after the other, in the order of the data: n examples, which have as many numbers each as
// the model has tasks. to must not keep its argument. Predict creates no rows, and needs no labels. It holds a few
// batches in memory, whatever the size of the data.
//
// The result has the number of examples as HeldExamples, and no scores. Interrupted is set if the context ended first.
func (j *Job) Predict(caller context.Context, to func(n int, p *models.Result) error) (*report.Result, error) {
	if j.hybrid != nil {
		return nil, errElsewhere
	}
	if d := &j.cfg.Data; d.MaxBad > 0 || d.shuffle() != "" {
		return nil, invalid("data: max_bad and shuffle: predictions would not be in the order of the examples")
	}
	j.started = time.Now()
	src, err := j.set.Train(0, 0, 1)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	r := j.result()
	free, pulled := make(chan *work, predictAhead), make(chan *work, predictAhead)
	for range predictAhead {
		free <- j.newWork()
	}
	g, ctx := errgroup.WithContext(caller)
	g.Go(func() error {
		defer close(pulled)
		var first *work // has the dense weights, which the other batches share
		for w := range free {
			if err := errors.Join(ctx.Err(), src.Next(w.data)); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			w.prepare(j.fields)
			if err := w.pullHeld(ctx, j, first == nil); err != nil {
				return err
			}
			first = cmp.Or(first, w)
			w.flat = first.flat
			pulled <- w
		}
		return nil
	})
	g.Go(func() error {
		defer close(free)
		batches := int64(0)
		for w := range pulled {
			w.pooled.Gather(j.fields, w.data, w.batch.Fields)
			if err := j.model.Predict(&w.batch, w.flat, &w.result); err != nil {
				return err
			}
			if err := to(w.batch.N, &w.result); err != nil {
				return fmt.Errorf("write predictions: %w", err)
			}
			batches++
			r.HeldExamples += w.batch.N
			j.emit(report.EventHeld, func(e *report.Event) { e.Step, e.Steps, e.Examples = batches, 0, int64(r.HeldExamples) })
			free <- w
		}
		return nil
	})
	err = g.Wait()
	r.FinishedAt = time.Now()
	if r.Interrupted = caller.Err() != nil && errors.Is(err, caller.Err()); r.Interrupted {
		err = nil
	}
	return r, err
}
