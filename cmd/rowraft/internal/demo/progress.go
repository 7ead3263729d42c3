package demo

import (
	"time"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// progress sums the last events of the trainers.
type progress struct {
	start    time.Time
	last     map[int]localcluster.TrainerEvent // by rank
	recorded []int                             // ranks in the order of their first event
}

func newProgress() *progress {
	return &progress{start: time.Now(), last: make(map[int]localcluster.TrainerEvent)}
}

func (d *progress) add(e localcluster.TrainerEvent) {
	if _, ok := d.last[e.Rank]; !ok {
		d.recorded = append(d.recorded, e.Rank)
		if len(d.recorded) == 1 {
			d.start = time.Now()
		}
	}
	if prev := d.last[e.Rank]; e.Event != localcluster.EventStep { // other events have no loss
		e.Loss, e.AUC = prev.Loss, prev.AUC
	}
	d.last[e.Rank] = e
}

// total returns the sum over the trainers, with the mean loss and AUC.
func (d *progress) total() (t localcluster.TrainerEvent) {
	var loss, auc float64
	n := 0
	for _, rank := range d.recorded {
		e := d.last[rank]
		t.Step += e.Step
		t.Steps += e.Steps
		t.Examples += e.Examples
		t.PushesAcknowledged += e.PushesAcknowledged
		if e.Step > 0 && e.Loss.Known() && e.AUC.Known() {
			loss += float64(e.Loss)
			auc += float64(e.AUC)
			n++
		}
	}
	if n > 0 {
		t.Loss, t.AUC = localcluster.Number(loss/float64(n)), localcluster.Number(auc/float64(n))
	}
	t.ExamplesPerSecond = localcluster.Number(float64(t.Examples) / time.Since(d.start).Seconds())
	return t
}

// between returns the time between two moments in seconds, unknown if one of them is zero.
func between(from, to time.Time) localcluster.Number {
	if from.IsZero() || to.IsZero() {
		return localcluster.Unknown
	}
	return localcluster.Number(to.Sub(from).Seconds())
}
