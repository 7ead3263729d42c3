package scores

import (
	"context"
	"fmt"
	"time"

	"github.com/rowraft/rowraft/trainer/report"
)

// Watch scores the held-out examples of a job during its training. The goroutine that trains owns it, apart from Hold.
type Watch struct {
	Keeper *Keeper
	Clock  Clock
	On     bool // there is something to score

	Leads func() bool                                       // the trainer has the lowest rank of those that train
	Score func(ctx context.Context, r *report.Result) error // with the present weights
	Emit  func(kind string, change func(e *report.Event))
	Stop  func(reason string) error // stops all trainers of the job
	// Paused returns a context that ends when a checkpoint asks for the trainer's state, or after a time.
	Paused func(ctx context.Context, atMost time.Duration) (context.Context, context.CancelFunc)

	Last  *report.Held   // nil before the first score; immutable
	Final *report.Result // the score after the last batch; nil: none

	held <-chan struct{} // owned by the goroutine of Hold: the checkpoint for which it has waited
}

// Run scores the held-out examples if that is due after a step, or if force is set, and reports the result. The trainer
// of the lowest rank scores: trainer 0 may have left.
func (w *Watch) Run(ctx context.Context, step, examples int64, epochEnded, force bool) error {
	begun := time.Now()
	if !w.On || !w.Leads() || !force && !w.Clock.Due(step, examples, epochEnded, begun) {
		return nil
	}
	r := &report.Result{}
	if err := w.Score(ctx, r); ctx.Err() != nil {
		return nil // the training is being stopped
	} else if err != nil {
		return err
	}
	held := report.NewHeld(step, r)
	held.Seconds = report.Number(time.Since(begun).Seconds())
	w.Clock.Scored(step, examples, time.Now())
	verdict := w.Keeper.Report(ctx, held)
	held.Best = verdict.Best
	if w.Last, w.Final = held, nil; force {
		w.Final = r
	}
	w.Emit(report.EventValidation, func(e *report.Event) {
		e.Message = fmt.Sprintf("validation after step %d: %v on %d held-out examples", step, held, r.HeldExamples)
		if held.Best {
			e.Message += ", the best so far"
		}
	})
	if verdict.Stop == "" || force {
		return nil
	}
	w.Keeper.Note("%s", verdict.Stop)
	if err := w.Stop(verdict.Stop); err != nil {
		w.Keeper.Note("the job is not stopped, and the next score tries again: %v", err)
	}
	return nil
}

// holdPatience bounds how long a trainer begins no batch while a checkpoint of its best score is begun.
const holdPatience = 10 * time.Second

// Hold waits until the checkpoint of the best score asks for the trainer's state: the checkpoint then has the weights
// that were scored, and those batches that were read before. The goroutine that begins batches calls it.
func (w *Watch) Hold(ctx context.Context) {
	saving := w.Keeper.Saving()
	if saving == nil || saving == w.held {
		return
	}
	w.held = saving
	wait, cancel := w.Paused(ctx, holdPatience)
	defer cancel()
	select {
	case <-saving:
	case <-wait.Done():
	}
}

// End scores the weights after the last step, unless the training was stopped, and waits for the checkpoint of the best
// score.
func (w *Watch) End(ctx context.Context, step, examples int64, stopped bool) error {
	defer w.Keeper.Wait()
	if stopped {
		return nil
	}
	return w.Run(ctx, step, examples, true, true)
}
