package trainer

import (
	"strings"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models"
)

// DLRM is the default kind of model; package models has all kinds.
const DLRM = "dlrm"

// validateModel returns an error if model and data do not fit each other.
func (c *Config) validateModel() error {
	d := &c.Data
	kind, known := models.Find(c.Model.kind())
	sources := 0
	for _, given := range []bool{len(d.File) > 0, d.Follow != "", d.Images != "" || d.Labels != "", c.Generator != nil} {
		if given {
			sources++
		}
	}
	switch {
	case !known:
		return invalid("model: kind %q: want %s", c.Model.Kind, strings.Join(models.Kinds(), ", "))
	case c.Model.Dim < 1 || c.Model.rowWidth() > rowraft.MaxDim:
		return invalid("model dim %d: want 1 or more, and rows of at most %d weights", c.Model.Dim, rowraft.MaxDim)
	case sources > 1:
		return invalid("data is given more than once: give a file, a stream, images or a generator")
	case sources == 0 && c.set == nil:
		return invalid("no data: give data (file or follow, and schema, or images and labels) or generator")
	case (d.Images == "") != (d.Labels == "") || (d.HeldImages == "") != (d.HeldLabels == ""):
		return invalid("data: images and labels must be given together, and one is missing")
	case d.Images == "" && (d.HeldImages != "" || d.Limit != 0):
		return invalid("data: held_images and limit need images and labels, which are missing")
	case d.Limit < 0:
		return invalid("data: limit is %d: want 0 or more images", d.Limit)
	case c.validateParameters() != nil:
		return c.validateParameters()
	case c.Model.Cross < 0 || c.Model.Items < 0:
		return invalid("model: cross %d, items %d: want 0 or more", c.Model.Cross, c.Model.Items)
	case kind.Images && d.Images == "":
		return invalid("model: kind %s needs images: give data (images and labels)", c.Model.Kind)
	case !kind.Images && d.Images != "":
		return invalid("model: kind %s cannot learn images: want kind lenet", c.Model.kind())
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

// cross returns the number of cross layers.
func (m *ModelConfig) cross() int {
	if m.Cross == 0 {
		return 2
	}
	return m.Cross
}

// fingerprint returns m as states and settings contain it. A DLRM has an empty Kind there.
func (m ModelConfig) fingerprint() ModelConfig {
	if m.Kind == DLRM {
		m.Kind = ""
	}
	return m
}

// embedded reports whether the model has embeddings.
func (c *Config) embedded() bool { return c.Model.rowWidth() > 0 }

// rowWidth returns the number of weights in a row of the embeddings; 0: the model has none.
func (m *ModelConfig) rowWidth() int { return m.rowWidthOf(m.Dim) }

// rowWidthOf is rowWidth for embeddings of dim numbers; 0: of Dim.
func (m *ModelConfig) rowWidthOf(dim int) int {
	if dim == 0 {
		dim = m.Dim
	}
	if k, _ := models.Find(m.kind()); k.RowWidth != nil {
		return k.RowWidth(dim)
	}
	return 0
}

// newModels returns the model of the job for whole batches.
func newModels(c *Config, backend *accel.Backend, shape data.Shape) (models.Model, error) {
	return models.NewThreads(c.Threads, c.Batch, func(batch int) (models.Model, error) {
		return c.newModel(backend, shape, batch)
	})
}

// newModel returns the model of the job for batches of the given size.
func (c *Config) newModel(backend *accel.Backend, shape data.Shape, batch int) (models.Model, error) {
	if c.Model.Sleep > 0 {
		return &models.Sleep{Time: c.Model.Sleep}, nil
	}
	loss := models.BCE
	if shape.Numbers {
		loss = models.MSE
	}
	kind, _ := models.Find(c.Model.kind())
	sizes := &models.Config{
		Batch: batch, Dense: shape.Dense, Widths: widths(newFields(c, shape.Categorical)),
		Dim: c.Model.Dim, Bottom: c.Model.Bottom, Top: c.Model.Top, Cross: c.Model.cross(), Items: c.Model.Items,
		Tasks: shape.Labels, Loss: loss, Height: shape.Height, Width: shape.Width, Classes: shape.Classes,
	}
	if backend.Device == accel.CPU && !kind.Images { // layers are faster on a CPU than a graph
		return kind.New(nil, sizes)
	}
	return kind.New(backend, sizes)
}
