package report

import (
	"math"

	"github.com/rowraft/rowraft/trainer/models"
)

// accuracy counts correctly predicted classes: each batch weighs decay times as much as the next one.
type accuracy struct{ right, all float64 }

// add counts a batch, and returns the number of correct predictions in it.
func (a *accuracy) add(classes []int32, labels []float32) (right int) {
	for i, class := range classes {
		if float32(class) == labels[i] {
			right++
		}
	}
	a.right = a.right*decay + float64(right)
	a.all = a.all*decay + float64(len(classes))
	return right
}

// share returns NaN if there are no classes.
func (a *accuracy) share() float64 { return a.right / a.all }

// Quality is how well the model predicts recent batches, before it learns from them.
type Quality struct {
	Numbers bool // labels are any numbers: no AUC

	running   running
	accuracy  accuracy
	firstLoss float64
	losses    int64   // batches with a loss
	startLoss float64 // sum over the first startBatches
	rose      bool
}

const (
	startBatches = 10  // the loss at the start is the mean of these batches
	riseBatches  = 100 // recent batches no longer hold the start then
	riseFactor   = 1.1 // noise of a small batch stays below it
)

// LossRose reports, once, that the mean loss of recent batches is more than a tenth above the loss of the start.
func (q *Quality) LossRose() (start, recent float64, rose bool) {
	start, recent = q.startLoss/startBatches, q.running.meanLoss()
	if q.rose || q.losses < riseBatches || recent <= riseFactor*start {
		return 0, 0, false
	}
	q.rose = true
	return start, recent, true
}

// Add counts the model's loss and predictions for a batch.
func (q *Quality) Add(b *models.Batch, r *models.Result) {
	if q.losses == 0 {
		q.firstLoss = r.Loss
	}
	if q.losses++; q.losses <= startBatches {
		q.startLoss += r.Loss
	}
	if r.Classes == nil && q.Numbers {
		q.running.add(nil, nil, r.Loss) // a number has no AUC
		return
	}
	if r.Classes == nil {
		q.running.add(r.Predictions, b.Labels[:len(r.Predictions)], r.Loss)
		return
	}
	q.running.add(nil, nil, r.Loss)
	q.accuracy.add(r.Classes, b.Labels)
}

// Loss returns the mean loss of recent batches.
func (q *Quality) Loss() Number { return Number(q.running.meanLoss()) }

// AUC returns the AUC of recent batches.
func (q *Quality) AUC() Number { return Number(q.running.auc()) }

// Accuracy returns the share of correct classes in recent batches.
func (q *Quality) Accuracy() Number { return Number(q.accuracy.share()) }

// FirstLoss returns the loss of the first batch, NaN before it.
func (q *Quality) FirstLoss() Number {
	if q.losses == 0 {
		return Number(math.NaN())
	}
	return Number(q.firstLoss)
}
