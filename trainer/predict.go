package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/report"
)

// Predicted are the predictions of a batch. They are valid until the function that gets them returns.
type Predicted struct {
	N      int
	Lines  *data.Lines // of the examples, with DataConfig.KeepLines; otherwise nil
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
	p := &prediction{j: j, src: src}
	err = p.run(caller, workers, func(w *work) error {
		if err := to(&Predicted{N: w.batch.N, Lines: w.data.Lines, Result: &w.result}); err != nil {
			return fmt.Errorf("write predictions: %w", err)
		}
		p.batches++
		r.HeldExamples += w.batch.N
		j.emit(report.EventHeld, func(e *report.Event) { e.Step, e.Steps, e.Examples = p.batches, 0, int64(r.HeldExamples) })
		return nil
	})
	r.FinishedAt = time.Now()
	if r.Interrupted = caller.Err() != nil && errors.Is(err, caller.Err()); r.Interrupted {
		err = nil
	}
	return r, err
}

// prediction is one call of Predict. A batch goes from free through read and pulled to its done, and back to free; all
// batches are in ordered, in the order of the data, until they are written. Each channel has room for all batches, so
// that no goroutine waits to send.
type prediction struct {
	j       *Job
	src     data.Source
	batches int64 // written

	free, read, pulled, ordered chan *predicting
}

type predicting struct {
	*work
	done chan struct{} // gets a value when the result is there
}

// run calls write with one batch after the other.
func (p *prediction) run(ctx context.Context, workers int, write func(*work) error) error {
	n := 2*workers + 2
	for _, c := range []*chan *predicting{&p.free, &p.read, &p.pulled, &p.ordered} {
		*c = make(chan *predicting, n)
	}
	flat := make([]float32, len(p.j.layout.Initial))
	if err := pullDense(ctx, p.j, flat); err != nil {
		return err
	}
	for range n {
		w := &predicting{p.j.newWork(), make(chan struct{}, 1)}
		w.flat = flat
		p.free <- w
	}
	all := []models.Model{p.j.model}
	for len(all) < workers {
		backend, _, err := accel.Open(p.j.cfg.Device)
		if err != nil {
			return err
		}
		m, err := p.j.cfg.newModels(backend, p.j.shape)
		if err != nil {
			return err
		}
		all = append(all, m)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.reading(ctx) })
	var pulling sync.WaitGroup
	for _, model := range all {
		pulling.Add(1)
		g.Go(func() error {
			defer pulling.Done()
			for w := range p.read {
				if err := w.pullHeld(ctx, p.j, false); err != nil {
					return err
				}
				p.pulled <- w
			}
			return nil
		})
		g.Go(func() error {
			for w := range p.pulled {
				w.pooled.Gather(p.j.fields, w.data, w.batch.Fields)
				if err := model.Predict(&w.batch, w.flat, &w.result); err != nil {
					return err
				}
				w.done <- struct{}{}
			}
			return nil
		})
	}
	g.Go(func() error { pulling.Wait(); close(p.pulled); return nil })
	g.Go(func() error {
		for w := range p.ordered {
			select {
			case <-w.done:
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := write(w.work); err != nil {
				return err
			}
			p.free <- w
		}
		return nil
	})
	return g.Wait()
}

// reading reads batches until the data ends.
func (p *prediction) reading(ctx context.Context) error {
	defer close(p.read)
	defer close(p.ordered)
	for {
		var w *predicting
		select {
		case w = <-p.free:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := data.ErrNoneYet // of a stream
		for errors.Is(err, data.ErrNoneYet) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			err = p.src.Next(w.data)
		}
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		w.prepare(p.j.fields)
		p.ordered <- w
		p.read <- w
	}
}
