package trainer

import (
	"time"

	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/models"
)

// Kinds of models.
const (
	DLRM  = "dlrm"  // arXiv:1906.00091, for click logs
	LeNet = "lenet" // for images; it has no embeddings
)

// validateModel reports a model, or data, that do not fit each other.
func (c *Config) validateModel() error {
	d := &c.Data
	sources := 0
	for _, given := range []bool{d.File != "", d.Follow != "", d.Images != "" || d.Labels != "", c.Generator != nil} {
		if given {
			sources++
		}
	}
	switch {
	case c.Model.kind() != DLRM && c.Model.Kind != LeNet:
		return invalid("model: kind %q: want %s or %s", c.Model.Kind, DLRM, LeNet)
	case sources > 1:
		return invalid("data is given twice: a file, a stream, images or a generator, want one of them")
	case sources == 0:
		return invalid("no data: give data (file or follow, and schema, or images and labels) or generator")
	case (d.Images == "") != (d.Labels == "") || (d.HeldImages == "") != (d.HeldLabels == ""):
		return invalid("data: images and labels belong together: one of them is missing")
	case d.Images == "" && (d.HeldImages != "" || d.Limit != 0):
		return invalid("data: held_images and limit are for images, and there are none")
	case d.Limit < 0:
		return invalid("data: limit %d: want ≥ 0", d.Limit)
	case c.validateParameters() != nil:
		return c.validateParameters()
	case c.Model.Kind == LeNet && d.Images == "":
		return invalid("model: kind %s wants images: give data (images and labels)", LeNet)
	case c.Model.kind() == DLRM && d.Images != "":
		return invalid("model: kind %s cannot learn images: want kind %s", DLRM, LeNet)
	}
	return nil
}

// kind is what "" means, too.
func (m *ModelConfig) kind() string {
	if m.Kind == "" {
		return DLRM
	}
	return m.Kind
}

// essence is m as states and settings have it: those of a DLRM are the same as
// before there were other kinds.
func (m ModelConfig) essence() ModelConfig {
	if m.Kind == DLRM {
		m.Kind = ""
	}
	return m
}

// embedded tells whether the model has embeddings.
func (c *Config) embedded() bool { return c.Model.Kind != LeNet }

// newModel builds the model of the job for batches of the given size.
func (j *Job) newModel(backend *accel.Backend, batch int) (models.Model, error) {
	if j.cfg.Model.Sleep > 0 {
		return &models.Sleep{Time: j.cfg.Model.Sleep}, nil
	}
	if j.cfg.Model.Kind == LeNet {
		return models.NewLeNet(backend, models.LeNetConfig{Batch: batch, Height: j.shape.Height, Width: j.shape.Width, Classes: j.shape.Classes})
	}
	return models.NewDLRM(backend, models.DLRMConfig{
		Batch: batch, Dense: j.shape.Dense, Categorical: j.shape.Categorical,
		Dim: j.cfg.Model.Dim, Bottom: j.cfg.Model.Bottom, Top: j.cfg.Model.Top,
	})
}

// rowSegments is the part of a call for the embeddings of w, and what is appended
// to it; values are those of w.keys.
func (j *Job) rowSegments(w *work, values []float32) []Segment {
	w.segs = w.segs[:0]
	if j.cfg.embedded() {
		w.segs = append(w.segs, Segment{Table: j.embeddings.ID, Dim: j.embeddings.Dim, Keys: w.keys, Values: values})
	}
	return w.segs
}

// accuracy counts right classes: each batch weighs decay times as much as the one after it.
type accuracy struct{ right, all float64 }

// add counts a batch, and returns how many of it were right.
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

// share is NaN if there are no classes.
func (a *accuracy) share() float64 { return a.right / a.all }

// learnt counts what the model said of w, for the progress.
func (j *Job) learnt(w *work) {
	if j.losses == 0 {
		j.firstLoss = w.result.Loss
	}
	j.losses++
	j.windows.add(w.result.Predictions, w.batch.Labels[:w.batch.N], w.result.Loss)
	if w.result.Classes == nil {
		j.running.add(w.result.Predictions, w.batch.Labels[:w.batch.N], w.result.Loss)
		return
	}
	j.running.add(nil, nil, w.result.Loss)
	j.accuracy.add(w.result.Classes, w.batch.Labels)
}

// classScore is the quality of a model of classes on a set of examples.
type classScore struct {
	examples, right int
	loss            float64 // sum, nats
}

func (s *classScore) add(w *work) {
	if w.result.Classes == nil {
		return
	}
	s.right += new(accuracy).add(w.result.Classes, w.batch.Labels)
	s.loss += w.result.Loss * float64(w.batch.N)
	s.examples += w.batch.N
}

func (s *classScore) tell(r *Result) {
	r.HeldExamples = s.examples
	r.Accuracy, r.LogLoss = Number(float64(s.right)/float64(s.examples)), Number(s.loss/float64(s.examples))
	r.FinishedAt = time.Now()
}
