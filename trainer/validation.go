package trainer

import (
	"context"
	"fmt"
	"math"

	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/report"
)

// validateEvery is how many times as many examples as are held out a trainer trains between two scores of them. Scoring
// an example costs less than half of training it, so the scores cost less than a twentieth of a long epoch.
const validateEvery = 10

// validation scores the examples of Config.Validation during the training. Run's goroutine owns it.
type validation struct {
	score func() (*report.Result, error) // nil: there is nothing to score
	every int64                          // examples between two scores
	at    int64                          // examples at the last score
	last  *report.Held                   // nil before the first score; immutable
}

// openValidation prepares the scores of the trainer that has the lowest rank at their time: trainer 0 may have left.
func (j *Job) openValidation(ctx context.Context) {
	f, ok := j.set.(*data.Files)
	if !ok || len(j.cfg.Validation) == 0 {
		return
	}
	j.validation = validation{every: validateEvery * f.HeldSize(), at: j.examples, score: func() (*report.Result, error) {
		nan := report.Number(math.NaN())
		r := &report.Result{AUC: nan, LogLoss: nan, Accuracy: nan}
		return r, j.score(ctx, r)
	}}
}

// validate scores the held-out examples if an epoch has ended or enough examples were trained, and reports the result.
func (j *Job) validate(epochEnded bool) error {
	v := &j.validation
	if v.score == nil || !j.ramp.Leads() || j.examples == v.at || !epochEnded && j.examples-v.at < v.every {
		return nil
	}
	v.at = j.examples
	r, err := v.score()
	if err != nil {
		return err
	}
	v.last = &report.Held{Step: j.step, Examples: r.HeldExamples, AUC: r.AUC, LogLoss: r.LogLoss, Accuracy: r.Accuracy}
	j.emit(report.EventValidation, func(e *report.Event) {
		e.Message = fmt.Sprintf("validation after step %d: AUC %.4f, log loss %.4f on %d held-out examples", j.step, r.AUC,
			r.LogLoss, r.HeldExamples)
	})
	return nil
}
