package trainer

import (
	"context"
	"fmt"
	"time"

	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/scores"
)

// validation scores the held-out examples of a job during the training. Run's goroutine owns it, but for keeper.
type validation struct {
	j      *Job
	on     bool // there is something to score
	keeper *scores.Keeper
	stop   func(reason string) error // stops all trainers of the job
	clock  scores.Clock
	last   *report.Held   // nil before the first score; immutable
	final  *report.Result // the score after the last batch; nil: none
	// held is the checkpoint for which the goroutine that reads, which owns the field, has waited.
	held <-chan struct{}
}

// scoresHeld reports whether the held-out examples are scored during the training.
func scoresHeld(c *Config) bool {
	return len(c.Validation) > 0 || !c.EvaluateEvery.IsZero() || c.EarlyStop.Patience > 0 || c.Checkpoint.KeepBest
}

// validateScores returns an error if the job has no examples to score during the training.
func validateScores(c *Config) error {
	if err := c.EarlyStop.Validate(); err != nil {
		return err
	}
	if d := &c.Data; scoresHeld(c) && !d.Unlabelled && len(c.Validation) == 0 && (d.Follow != "" ||
		c.Generator != nil && c.Generator.Held == 0 || c.Generator == nil && d.Held != nil && *d.Held == 0) {
		return invalid("evaluate_every, early_stop and checkpoint.keep_best need held-out examples, and there are none: " +
			"set validation, or the share that is held out (data.held, generator.held)")
	}
	return nil
}

// prepare sets where the scores of j are kept; save and stop are those of [scores.Keeper] and validation.
func (v *validation) prepare(j *Job, book scores.Book, save func(string) (string, error), stop func(string) error) {
	v.j, v.on, v.stop = j, scoresHeld(&j.cfg), stop
	v.keeper = &scores.Keeper{Book: book, Stop: j.cfg.EarlyStop, Note: j.report.Note}
	if j.cfg.Checkpoint.KeepBest {
		v.keeper.Save = save
	}
}

// open begins the time until the first score.
func (v *validation) open() {
	j := v.j
	v.clock = scores.Clock{Every: j.cfg.EvaluateEvery, Held: j.set.HeldSize(), Step: j.step, Examples: j.examples,
		At: time.Now()}
}

// run scores the held-out examples if that is due, or if force is set, and reports the result. The trainer of the
// lowest rank scores: trainer 0 may have left.
func (v *validation) run(ctx context.Context, epochEnded, force bool) error {
	j, begun := v.j, time.Now()
	if !v.on || !j.ramp.Leads() || !force && !v.clock.Due(j.step, j.examples, epochEnded, begun) {
		return nil
	}
	r := &report.Result{}
	if err := j.score(ctx, r); err != nil {
		return stopped(ctx, err)
	}
	held := report.NewHeld(j.step, r)
	held.Seconds = report.Number(time.Since(begun).Seconds())
	v.clock.Scored(j.step, j.examples, time.Now())
	verdict := v.keeper.Report(ctx, held)
	held.Best = verdict.Best
	if v.last, v.final = held, nil; force {
		v.final = r
	}
	j.emit(report.EventValidation, func(e *report.Event) {
		e.Message = fmt.Sprintf("validation after step %d: %v on %d held-out examples", j.step, held, r.HeldExamples)
		if held.Best {
			e.Message += ", the best so far"
		}
	})
	if verdict.Stop == "" || force {
		return nil
	}
	j.report.Note("%s", verdict.Stop)
	if err := v.stop(verdict.Stop); err != nil {
		j.report.Note("the job is not stopped, and the next score tries again: %v", err)
	}
	return nil
}

// holdPatience bounds how long a trainer begins no batch while a checkpoint of its best score is begun.
const holdPatience = 10 * time.Second

// hold waits until the checkpoint of the best score asks for the trainer's state: the checkpoint then has the weights
// that were scored, and those batches that were read before.
func (v *validation) hold(ctx context.Context) {
	saving := v.keeper.Saving()
	if saving == nil || saving == v.held {
		return
	}
	v.held = saving
	wait, cancel := v.j.pausePoint.UntilRequested(ctx, holdPatience)
	defer cancel()
	select {
	case <-saving:
	case <-wait.Done():
	}
}

// end scores the weights after the last batch, unless the training was stopped, and waits for the checkpoint of the
// best score.
func (v *validation) end(ctx context.Context, stopped bool) error {
	defer v.keeper.Wait()
	if stopped {
		return nil
	}
	return v.run(ctx, true, true)
}

// fill sets the best score of the job in r, and the command that puts its rows in place.
func (v *validation) fill(ctx context.Context, r *report.Result) {
	if !v.on {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), member.LeavePatience)
	defer cancel()
	var names []string
	for _, t := range v.j.ownTables() {
		names = append(names, t.Name)
	}
	restore := func(path string) string { return member.RestoreCommand(path, names) }
	if err := v.keeper.Fill(ctx, r, restore); err != nil {
		v.j.report.Note("the best score of the job is unknown: %v", err)
	}
}
