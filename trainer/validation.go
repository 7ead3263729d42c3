package trainer

import (
	"context"
	"time"

	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/scores"
)

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

// prepareScores sets where the scores of j are kept; save and stop are those of [scores.Keeper] and [scores.Watch].
func prepareScores(j *Job, book scores.Book, save func(string) (string, error), stop func(string) error) {
	k := &scores.Keeper{Book: book, Stop: j.cfg.EarlyStop, Note: j.report.Note}
	if j.cfg.Checkpoint.KeepBest {
		k.Save = save
	}
	j.validation = scores.Watch{Keeper: k, On: scoresHeld(&j.cfg), Leads: j.ramp.Leads, Score: j.score, Emit: j.emit,
		Stop: stop, Paused: j.pausePoint.UntilRequested,
		Clock: scores.Clock{Every: j.cfg.EvaluateEvery, Held: j.set.HeldSize(), Step: j.step, Examples: j.examples,
			At: time.Now()}}
}

// setBest sets the best score of the job in r, and the command that puts its rows in place.
func setBest(ctx context.Context, j *Job, r *report.Result) {
	if !j.validation.On {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), member.LeavePatience)
	defer cancel()
	var names []string
	for _, t := range j.ownTables() {
		names = append(names, t.Name)
	}
	restore := func(path string) string { return member.RestoreCommand(path, names) }
	if err := j.validation.Keeper.Fill(ctx, r, restore); err != nil {
		j.report.Note("the best score of the job is unknown: %v", err)
	}
}
