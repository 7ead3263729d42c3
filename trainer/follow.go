package trainer

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/state"
)

// defaultWindow is the length of a window of a followed stream.
const defaultWindow = time.Minute

// openWindows creates the windows of a job that follows a stream.
func (j *Job) openWindows() {
	if j.cfg.Data.Follow == "" {
		return
	}
	length := j.cfg.Data.Window
	if length == 0 {
		length = defaultWindow
	}
	j.windows = report.NewWindows(length, func(w report.Window) {
		j.report.Emit(report.EventWindow, nil, func(e *report.Event) {
			e.Window = &w
			e.Message = fmt.Sprintf("%s to %s: %d examples in %d steps, loss %.4f, AUC %.4f",
				w.From.Format(time.TimeOnly), w.To.Format(time.TimeOnly), w.Examples, w.Steps, w.Loss, w.AUC)
		})
	})
}

// openTrain opens the training examples at r.at.
func (r *repeated) openTrain() (err error) {
	f, follows := r.set.(*data.Follow)
	if !follows {
		r.src, err = r.set.Train(r.at.epoch, r.rank, r.trainers)
		return err
	}
	r.stream, err = f.Stream(r.rank, r.trainers, r.at.place)
	r.src = r.stream
	return err
}

// behind records the position behind a batch.
func (r *repeated) behind(b *data.Batch) {
	if b.N > 0 {
		r.batches++
	}
	if r.stream != nil {
		r.at.place = r.stream.Place()
		return
	}
	r.at.offset += int64(b.Read)
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
	case d.Schema == "" && d.Described == nil:
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
