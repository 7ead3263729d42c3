package trainer

import (
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/state"
)

// defaultWindow is the length of a window of a followed stream.
const defaultWindow = time.Minute

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

// windows divides the run into windows. The goroutine that computes adds batches; the goroutine that reads closes a
// window in which no batch comes any more. A nil *windows does nothing.
type windows struct {
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

// add counts a batch.
func (w *windows) add(predictions, labels []float32, loss float64) {
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

// close reports the open window if its time is over, or if end is set.
func (w *windows) close(end bool) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closeLocked(end)
}

// REQUIRES: w.mu is held.
func (w *windows) closeLocked(end bool) {
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

// openWindows creates the windows of a job that follows a stream.
func (j *Job) openWindows() {
	if j.cfg.Data.Follow == "" {
		return
	}
	length := j.cfg.Data.Window
	if length == 0 {
		length = defaultWindow
	}
	j.windows = &windows{length: length, now: time.Now, tell: func(w Window) {
		j.report.emit(EventWindow, nil, func(e *Event) {
			e.Window = &w
			e.Message = fmt.Sprintf("%s to %s: %d examples in %d steps, loss %.4f, AUC %.4f",
				w.From.Format(time.TimeOnly), w.To.Format(time.TimeOnly), w.Examples, w.Steps, w.Loss, w.AUC)
		})
	}}
}

// openTrain opens the training examples at r.at.
func (r *repeated) openTrain() (err error) {
	f, follows := r.set.(*data.Follow)
	if !follows {
		r.src, err = r.set.Train(r.rank, r.trainers)
		return err
	}
	r.stream, err = f.Stream(r.rank, r.trainers, r.at.place)
	r.src = r.stream
	return err
}

// behind records the position behind a batch.
func (r *repeated) behind(b *data.Batch) {
	r.batches++
	if r.stream != nil {
		r.at.place = r.stream.Place()
		return
	}
	r.at.offset += int64(b.N)
}

// placeOf returns p in the form of a state, nil without a stream.
func placeOf(p data.Place) *state.Place {
	if p.Name == "" {
		return nil
	}
	return &state.Place{Name: p.Name, Bytes: p.Bytes, Lines: p.Lines, HeadBytes: p.HeadBytes, HeadSum: p.HeadSum}
}

// resumePlace is the inverse of placeOf.
func resumePlace(p *state.Place) data.Place {
	if p == nil {
		return data.Place{}
	}
	return data.Place{Name: p.Name, Bytes: p.Bytes, Lines: p.Lines, HeadBytes: p.HeadBytes, HeadSum: p.HeadSum}
}

// validateFollow returns an error for settings that do not fit a stream.
func (c *Config) validateFollow() error {
	d := &c.Data
	switch {
	case d.Window < 0 || d.Window != 0 && d.Window < time.Millisecond:
		return invalid("data: window %v: want at least 1ms", d.Window)
	case d.Follow == "" && d.Window != 0:
		return invalid("data: window needs a stream: set follow")
	case d.Follow == "":
		return nil
	case d.Schema == "":
		return invalid("data: follow %s has no schema: set data.schema", d.Follow)
	case c.Epochs > 1:
		return invalid("data: follow %s: a stream has no epochs, but epochs is %d", d.Follow, c.Epochs)
	case d.Follow == data.Stdin && c.Trainers > 1:
		return invalid("data: follow -: %d trainers cannot share one standard input: follow a file or a folder",
			c.Trainers)
	}
	return nil
}

// followed returns the base name of the followed file or folder.
func (d *DataConfig) followed() string {
	if d.Follow == "" {
		return ""
	}
	return filepath.Base(d.Follow)
}
