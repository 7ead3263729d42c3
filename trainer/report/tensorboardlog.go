package report

import (
	"path/filepath"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/tensorboard"
)

// TensorBoardConfig configures the event files for TensorBoard.
type TensorBoardConfig struct {
	// Dir is the folder of this run, "" for none. With several trainers each has a subfolder.
	Dir   string `yaml:"dir"`
	Every int64  `yaml:"every"` // steps between two points; 0: 10
}

const defaultBoardEvery = 10

// Validate returns the first problem of c, with CodeInvalidArgument.
func (c *TensorBoardConfig) Validate() error {
	if c.Every < 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "tensorboard: every is %d: want 0 or more steps", c.Every)
	}
	if c.Dir == "" && c.Every != 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"tensorboard: every is %d without a dir: set dir, or remove every", c.Every)
	}
	return nil
}

// EventFile writes an event file during a run. REQUIRES, for all methods: report.mu is held.
type EventFile struct {
	w     *tensorboard.Writer
	every int64
	last  Event // the last event with a point in the file
}

// Open opens the event file of a run that begins with a step, in a folder within that of the job; nil if the job writes
// none.
func (c *TensorBoardConfig) Open(folder string, step int64) (*EventFile, error) {
	if c.Dir == "" {
		return nil, nil
	}
	w, err := tensorboard.Create(filepath.Join(c.Dir, folder), step, time.Now())
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "tensorboard: %w", err)
	}
	b := &EventFile{w: w, every: c.Every}
	if b.every == 0 {
		b.every = defaultBoardEvery
	}
	return b, nil
}

// observe writes a point if one is due, with rates since the previous point. The run reports the first error as a
// note, and training continues.
func (b *EventFile) observe(e Event) error {
	if b == nil || b.w == nil {
		return nil
	}
	switch e.Event {
	case EventStart:
		b.last = e
		return nil
	case EventStep:
		if e.Step%b.every != 0 {
			return nil
		}
	case EventValidation:
		return b.write(e.Time, e.Held.Step,
			tensorboard.Scalar{Tag: "held/auc", Value: float64(e.Held.AUC)},
			tensorboard.Scalar{Tag: "held/log_loss", Value: float64(e.Held.LogLoss)},
			tensorboard.Scalar{Tag: "held/accuracy", Value: float64(e.Held.Accuracy)},
			tensorboard.Scalar{Tag: "held/rmse", Value: float64(e.Held.RMSE)},
			tensorboard.Scalar{Tag: "held/calibration", Value: float64(e.Held.Calibration)},
			tensorboard.Scalar{Tag: "held/calibration_error", Value: float64(e.Held.CalibrationError)})
	case EventDone:
		if e.Step == b.last.Step {
			return nil
		}
	default:
		return nil
	}
	seconds := e.Time.Sub(b.last.Time).Seconds()
	err := b.write(e.Time, e.Step,
		tensorboard.Scalar{Tag: "loss", Value: float64(e.Loss)},
		tensorboard.Scalar{Tag: "auc", Value: float64(e.AUC)},
		tensorboard.Scalar{Tag: "accuracy", Value: float64(e.Accuracy)},
		tensorboard.Scalar{Tag: "examples_per_second", Value: float64(e.Examples-b.last.Examples) / seconds},
		tensorboard.Scalar{Tag: "steps_per_second", Value: float64(e.Step-b.last.Step) / seconds},
		tensorboard.Scalar{Tag: "staleness_steps", Value: float64(e.StalenessSteps)},
		tensorboard.Scalar{Tag: "waiting", Value: float64(e.WaitingSeconds-b.last.WaitingSeconds) / seconds},
		tensorboard.Scalar{Tag: "batches_skipped", Value: float64(e.BatchesSkipped)},
		tensorboard.Scalar{Tag: "batches_late", Value: float64(e.BatchesLate)})
	b.last = e
	return err
}

func (b *EventFile) write(now time.Time, step int64, scalars ...tensorboard.Scalar) error {
	err := b.w.Write(now, step, scalars...)
	if err != nil {
		b.w.Close()
		b.w = nil
	}
	return err
}

// End writes the score of the held-out examples, if there is one, and closes the file.
func (b *EventFile) End(r *Result) error {
	if b == nil || b.w == nil {
		return nil
	}
	if r.HeldExamples > 0 {
		err := b.write(r.FinishedAt, r.Steps,
			tensorboard.Scalar{Tag: "held/auc", Value: float64(r.AUC)},
			tensorboard.Scalar{Tag: "held/log_loss", Value: float64(r.LogLoss)},
			tensorboard.Scalar{Tag: "held/accuracy", Value: float64(r.Accuracy)})
		if err != nil {
			return err
		}
	}
	return b.w.Close()
}
