package report

import (
	"math"
	"time"

	"github.com/rowraft/rowraft/trainer/models"
)

// HeldScore computes the score of the held-out examples. It keeps 8 bytes for each prediction.
type HeldScore struct {
	Numbers bool // labels are any numbers
	Labels  int  // per example; 0: one

	examples, truth Predictions // without classes and numbers
	n               int         // predictions
	right           int         // classes
	classes         bool
	loss            float64 // sum over the examples, nats; only with classes
	squares         float64 // sum of the squared errors
	sum, labels     float64 // sums of the predictions and of the labels
}

// Add counts a batch. truth has the probabilities that drew the labels; nil: they are unknown.
func (s *HeldScore) Add(b *models.Batch, r *models.Result, truth []float32) {
	s.n += len(r.Predictions)
	if r.Classes != nil {
		s.classes = true
		s.right += new(accuracy).add(r.Classes, b.Labels)
		s.loss += r.Loss * float64(b.N)
		return
	}
	for i, p := range r.Predictions {
		label := b.Labels[i]
		s.squares += math.Pow(float64(p-label), 2)
		s.sum += float64(p)
		s.labels += float64(label)
		if s.Numbers {
			continue
		}
		s.examples.Add(p, label > 0.5)
		if truth != nil {
			s.truth.Add(truth[i], label > 0.5)
		}
	}
}

// Examples returns the number of examples that were added.
func (s *HeldScore) Examples() int { return s.n / max(s.Labels, 1) }

// Fill sets the score in r. Without examples, or with another kind of label, a number of it is NaN.
func (s *HeldScore) Fill(r *Result) {
	nan := Number(math.NaN())
	r.HeldExamples, r.FinishedAt = s.Examples(), time.Now()
	r.AUC, r.LogLoss, r.Accuracy, r.RMSE, r.BestAUC, r.BestLogLoss, r.Calibration = nan, nan, nan, nan, nan, nan, nil
	switch {
	case s.n == 0:
	case s.classes:
		r.Accuracy, r.LogLoss = Number(float64(s.right)/float64(s.n)), Number(s.loss/float64(s.n))
	case s.Numbers:
		r.RMSE = Number(math.Sqrt(s.squares / float64(s.n)))
		r.Calibration = &Calibration{Ratio: Number(s.sum / s.labels), Error: nan}
	default:
		score := s.examples.Score()
		r.AUC, r.LogLoss, r.Calibration = Number(score.AUC), Number(score.LogLoss), score.Calibration
		if s.truth != nil {
			best := s.truth.Score()
			r.BestAUC, r.BestLogLoss = Number(best.AUC), Number(best.LogLoss)
		}
	}
}

// TakeScore copies the score of the held-out examples from another result.
func (r *Result) TakeScore(from *Result) {
	r.HeldExamples, r.FinishedAt = from.HeldExamples, from.FinishedAt
	r.AUC, r.LogLoss, r.Accuracy, r.RMSE = from.AUC, from.LogLoss, from.Accuracy, from.RMSE
	r.BestAUC, r.BestLogLoss, r.Calibration = from.BestAUC, from.BestLogLoss, from.Calibration
}
