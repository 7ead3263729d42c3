package trainer

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/state"
)

// defaultWindow is how long a window of a followed stream is.
const defaultWindow = time.Minute

// Window is what was trained in a stretch of time of a followed stream: every example was
// predicted before it was learnt.
type Window struct {
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Steps    int64     `json:"steps"`
	Examples int64     `json:"examples"`
	Loss     Number    `json:"loss"` // mean over examples, nats
	AUC      Number    `json:"auc"`  // in 1,024 bins
}

// windows cuts the time into windows. The goroutine that computes adds; who reads closes
// one in which nothing comes any more. A nil one does nothing.
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

// close tells of the open window if its time is over, or at the end.
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
	w.tell(Window{From: w.from, To: to, Steps: w.steps, Examples: w.examples, Loss: Number(r.meanLoss()), AUC: Number(r.auc())})
	clear(w.pos[:])
	clear(w.neg[:])
	w.from, w.steps, w.examples, w.loss = time.Time{}, 0, 0, 0
}

// openWindows gives a job that follows a stream its windows.
func (j *Job) openWindows() {
	if j.cfg.Data.Follow == "" {
		return
	}
	length := j.cfg.Data.Window
	if length == 0 {
		length = defaultWindow
	}
	j.windows = &windows{length: length, now: time.Now, tell: func(w Window) {
		j.emit(EventWindow, func(e *Event) {
			e.Window = &w
			e.Message = fmt.Sprintf("%s to %s: %d examples in %d steps, loss %.4f, AUC %.4f",
				w.From.Format(time.TimeOnly), w.To.Format(time.TimeOnly), w.Examples, w.Steps, w.Loss, w.AUC)
		})
	}}
}

// noneYet turns what a stream says that has nothing new, and lets time pass for the windows.
func (j *Job) noneYet(err error) error {
	if !errors.Is(err, data.ErrNoneYet) {
		return err
	}
	j.windows.close(false)
	return errNotYet
}

// openTrain opens the training part behind at.
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

// behind notes where a batch ends.
func (r *repeated) behind(b *data.Batch) {
	r.batches++
	if r.stream != nil {
		r.at.place = r.stream.Place()
		return
	}
	r.at.offset += int64(b.N)
}

// placeOf is a place as states have it, nil where no stream was followed.
func placeOf(p data.Place) *state.Place {
	if p.Name == "" {
		return nil
	}
	return &state.Place{Name: p.Name, Bytes: p.Bytes, Lines: p.Lines, HeadBytes: p.HeadBytes, HeadSum: p.HeadSum}
}

// resumePlace is placeOf the other way.
func resumePlace(p *state.Place) data.Place {
	if p == nil {
		return data.Place{}
	}
	return data.Place{Name: p.Name, Bytes: p.Bytes, Lines: p.Lines, HeadBytes: p.HeadBytes, HeadSum: p.HeadSum}
}

// validateFollow reports what a stream cannot have.
func (c *Config) validateFollow() error {
	d := &c.Data
	switch {
	case d.Window < 0 || d.Window != 0 && d.Window < time.Millisecond:
		return invalid("data: window %v: want at least 1ms", d.Window)
	case d.Follow == "" && d.Window != 0:
		return invalid("data: window is for a stream, and none is followed")
	case d.Follow == "":
		return nil
	case d.Schema == "":
		return invalid("data: follow %s: no schema is given", d.Follow)
	case c.Epochs > 1:
		return invalid("data: follow %s: a stream has no epochs, %d are asked for", d.Follow, c.Epochs)
	case d.Follow == data.Stdin && c.Trainers > 1:
		return invalid("data: follow -: each of %d trainers has a standard input of its own: give a file or a folder", c.Trainers)
	}
	return nil
}

// followed is the name of what is followed, wherever it lies.
func (d *DataConfig) followed() string {
	if d.Follow == "" {
		return ""
	}
	return filepath.Base(d.Follow)
}
