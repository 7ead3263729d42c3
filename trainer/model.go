package trainer

import (
	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/tables"
)

// Kinds of models.
const (
	DLRM  = "dlrm"  // arXiv:1906.00091, for click logs
	LeNet = "lenet" // for images; it has no embeddings
)

// validateModel returns an error if model and data do not fit each other.
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
		return invalid("data is given more than once: give a file, a stream, images or a generator")
	case sources == 0:
		return invalid("no data: give data (file or follow, and schema, or images and labels) or generator")
	case (d.Images == "") != (d.Labels == "") || (d.HeldImages == "") != (d.HeldLabels == ""):
		return invalid("data: images and labels must be given together, and one is missing")
	case d.Images == "" && (d.HeldImages != "" || d.Limit != 0):
		return invalid("data: held_images and limit need images and labels, which are missing")
	case d.Limit < 0:
		return invalid("data: limit is %d: want 0 or more images", d.Limit)
	case c.validateParameters() != nil:
		return c.validateParameters()
	case c.Model.Kind == LeNet && d.Images == "":
		return invalid("model: kind %s needs images: give data (images and labels)", LeNet)
	case c.Model.kind() == DLRM && d.Images != "":
		return invalid("model: kind %s cannot learn images: want kind %s", DLRM, LeNet)
	}
	return nil
}

// kind returns the kind of the model; an empty Kind is a DLRM.
func (m *ModelConfig) kind() string {
	if m.Kind == "" {
		return DLRM
	}
	return m.Kind
}

// fingerprint returns m as states and settings contain it. A DLRM has an empty Kind there.
func (m ModelConfig) fingerprint() ModelConfig {
	if m.Kind == DLRM {
		m.Kind = ""
	}
	return m
}

// embedded reports whether the model has embeddings.
func (c *Config) embedded() bool { return c.Model.Kind != LeNet }

// newModel returns the model of the job for batches of the given size.
func (c *Config) newModel(backend *accel.Backend, shape data.Shape, batch int) (models.Model, error) {
	if c.Model.Sleep > 0 {
		return &models.Sleep{Time: c.Model.Sleep}, nil
	}
	if c.Model.Kind == LeNet {
		return models.NewLeNet(backend, models.LeNetConfig{Batch: batch, Height: shape.Height, Width: shape.Width,
			Classes: shape.Classes})
	}
	return models.NewDLRM(backend, models.DLRMConfig{
		Batch: batch, Dense: shape.Dense, Categorical: shape.Categorical,
		Dim: c.Model.Dim, Bottom: c.Model.Bottom, Top: c.Model.Top,
	})
}

// rowSegments returns w.Segs with the segment of the embeddings only; values belong to w.keys.
func (j *Job) rowSegments(w *work, values []float32) []tables.Segment {
	w.Segs = w.Segs[:0]
	if j.cfg.embedded() {
		w.Segs = append(w.Segs, tables.Segment{Table: j.embeddings.ID, Dim: j.embeddings.Dim, Keys: w.keys,
			Values: values})
	}
	return w.Segs
}
