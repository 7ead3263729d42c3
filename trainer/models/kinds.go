package models

import (
	"maps"
	"slices"

	"github.com/gomlx/compute"
)

// Config is what a model is built for: the shape of its batches and the sizes that a job configures.
type Config struct {
	Batch  int   // examples per step, padding included
	Dense  int   // dense features, or pixels of an image
	Widths []int // numbers of each feature in [Batch.Fields]: what Kind.RowWidth returns for its embeddings

	Dim         int   // of an embedding
	Bottom, Top []int // hidden layers

	Height, Width, Classes int // of an image
}

// Kind is a kind of model. A further one is one entry of kinds and the function New.
type Kind struct {
	// RowWidth returns the number of weights in a row, for an embedding of dim numbers; nil: the model has no
	// embeddings.
	RowWidth func(dim int) int
	// Images: the examples are images, not rows of a log.
	Images bool
	// New builds a model; backend is one that package accel opened. Errors: CodeInvalidArgument if c makes no model.
	New func(backend compute.Backend, c *Config) (Model, error)
}

// plain is the RowWidth of a model whose rows are embeddings and nothing else.
func plain(dim int) int { return dim }

var kinds = map[string]Kind{
	"dlrm": {RowWidth: plain, New: func(b compute.Backend, c *Config) (Model, error) {
		return NewDLRM(b, DLRMConfig{Batch: c.Batch, Dense: c.Dense, Categorical: len(c.Widths), Dim: c.Dim,
			Bottom: c.Bottom, Top: c.Top})
	}},
	"lenet": {Images: true, New: func(b compute.Backend, c *Config) (Model, error) {
		return NewLeNet(b, LeNetConfig{Batch: c.Batch, Height: c.Height, Width: c.Width, Classes: c.Classes})
	}},
}

// Kinds returns the names of all kinds, in alphabetical order.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// Find returns the kind of a name.
func Find(name string) (Kind, bool) {
	k, ok := kinds[name]
	return k, ok
}
