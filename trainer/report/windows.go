package report

import (
	"sync"
	"time"
)

// Window summarizes the training in a period of a followed stream. The model predicts every example before it
// learns from it.
type Window struct {
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Steps    int64     `json:"steps"`
	Examples int64     `json:"examples"`
	Loss     Number    `json:"loss"` // mean over examples, nats
	AUC      Number    `json:"auc"`  // in 1,024 bins
}

// Windows divides the run into windows. The goroutine that computes adds batches; the goroutine that reads closes a
// window in which no batch comes any more. A nil *windows does nothing.
type Windows struct {
	length time.Duration
	now    func() time.Time
	tell   func(Window)

	mu       sync.Mutex
	from     time.Time // zero: no window is open
	pos, neg [aucBins]int64
	steps    int64
	examples int64
	loss     float64
}

// NewWindows returns windows of a length; it passes each to tell when its time is over.
func NewWindows(length time.Duration, tell func(Window)) *Windows {
	return &Windows{length: length, now: time.Now, tell: tell}
}

// Add counts a batch.
func (w *Windows) Add(predictions, labels []float32, loss float64) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closeLocked(false)
	if w.from.IsZero() {
		w.from = w.now()
	}
	w.steps++
	w.examples += int64(len(labels))
	w.loss += loss * float64(len(labels))
	for i, p := range predictions {
		bin := min(int(p*aucBins), aucBins-1)
		if labels[i] > 0.5 {
			w.pos[bin]++
		} else {
			w.neg[bin]++
		}
	}
}

// Close reports the open window if its time is over, or if end is set.
func (w *Windows) Close(end bool) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closeLocked(end)
}

// REQUIRES: w.mu is held.
func (w *Windows) closeLocked(end bool) {
	if w.from.IsZero() || !end && w.now().Sub(w.from) < w.length {
		return
	}
	r := running{loss: w.loss, weight: float64(w.examples)}
	for i := range w.pos {
		r.pos[i], r.neg[i] = float64(w.pos[i]), float64(w.neg[i])
	}
	to := w.from.Add(w.length)
	if now := w.now(); now.Before(to) {
		to = now
	}
	w.tell(Window{From: w.from, To: to, Steps: w.steps, Examples: w.examples, Loss: Number(r.meanLoss()),
		AUC: Number(r.auc())})
	clear(w.pos[:])
	clear(w.neg[:])
	w.from, w.steps, w.examples, w.loss = time.Time{}, 0, 0, 0
}
