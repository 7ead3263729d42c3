package trainer

import (
	"fmt"
	"math"

	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/report"
)

// defaultMaxSkipped ends a run that no longer computes finite numbers.
const defaultMaxSkipped = 100

// The bits, without sign, of the first number that a push refuses: as float32, and as bfloat16, to which the client
// rounds.
const (
	infinite32 = 0x7f800000
	infinite16 = 0x7f7f8000
)

// notFinite returns what a push would refuse in r and the gradients of rows.
func (c *Config) notFinite(r *models.Result, rowGrads []float32) (s report.Skipped, bad bool) {
	infinite := uint32(infinite32)
	if c.DType == "bfloat16" {
		infinite = infinite16
	}
	s.Loss = math.IsNaN(r.Loss) || math.IsInf(r.Loss, 0)
	s.Rows, s.Dense = countFrom(rowGrads, infinite), countFrom(r.ParamGrads, infinite)
	return s, s.Loss || s.Rows+s.Dense > 0
}

// countFrom counts the numbers whose bits, without sign, are at least infinite.
func countFrom(s []float32, infinite uint32) (n int) {
	for _, x := range s {
		if math.Float32bits(x)&^(1<<31) >= infinite {
			n++
		}
	}
	return n
}

// skip counts a batch that is not finite, and ends a run with too many of them in a row.
func (j *Job) skip(w *work, s report.Skipped) error {
	s.Epoch, s.Split, s.Offset = w.after.epoch, int64(j.cfg.rank()), w.after.offset-int64(w.data.Read)
	if r, ok := w.Place.(member.Range); ok {
		if epoch, split, offset, ok := r.Split(); ok {
			s.Epoch, s.Split, s.Offset = epoch, split, offset
		}
	}
	s.Examples, s.First = w.data.N, w.data.First
	j.report.Skipped()
	j.skippedInARow++
	message := fmt.Sprintf("step %d skipped: %s not finite; epoch %d, split %d, offset %d: %d examples, "+
		"the first is number %d of %s", w.Step,
		s.Describe(len(w.pooled.Grads), len(w.result.ParamGrads)), s.Epoch, s.Split, s.Offset, s.Examples, s.First,
		j.set.Name())
	j.emit(report.EventSkipped, func(e *report.Event) { e.Message, e.Skipped = message, &s })
	if j.skippedInARow >= j.cfg.maxSkipped() {
		return invalid("%d batches in a row were not finite, as many as max_skipped allows: check the model and the "+
			"data, or lower the learning rate; the last: %s", j.skippedInARow, message)
	}
	return nil
}

func (c *Config) maxSkipped() int {
	if c.MaxSkipped == 0 {
		return defaultMaxSkipped
	}
	return c.MaxSkipped
}
