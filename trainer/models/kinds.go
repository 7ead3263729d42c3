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

	Tasks       int    // labels of an example; 0: one
	Loss        string // BCE or MSE; "": BCE
	Dim         int    // of an embedding
	Bottom, Top []int  // hidden layers
	Cross       int    // cross layers
	Items       int    // how many features, the last ones, describe the item of a two-tower model

	Height, Width, Classes int // of an image
}

// Kind is a kind of model. A further one is one entry of kinds and the function New.
type Kind struct {
	// RowWidth returns the number of weights in a row, for an embedding of dim numbers; nil: the model has no
	// embeddings.
	RowWidth func(dim int) int
	// Images: the examples are images, not rows of a log.
	Images bool
	// New builds a model; backend is one that package accel opened, or nil for a model of the CPU. Errors:
	// CodeInvalidArgument if c makes no model.
	New func(backend compute.Backend, c *Config) (Model, error)
}

// Losses of a label.
const (
	BCE = "bce" // binary cross entropy: labels are 0 or 1, predictions are probabilities
	MSE = "mse" // mean square error: labels and predictions are numbers
)

func (c *Config) tasks() int { return max(c.Tasks, 1) }

// check returns an error for sizes that make no model.
func (c *Config) check() error {
	for _, n := range slices.Concat([]int{c.Batch, c.Dim, len(c.Widths)}, c.Widths, c.Bottom, c.Top) {
		if n < 1 {
			return invalid("batch %d, dim %d, features of widths %v, layers %v and %v: want 1 or more of each", c.Batch,
				c.Dim, c.Widths, c.Bottom, c.Top)
		}
	}
	if c.Dense < 0 || c.Tasks < 0 || c.Cross < 0 || c.Loss != "" && c.Loss != BCE && c.Loss != MSE {
		return invalid("%d dense features, %d tasks, %d cross layers, loss %q: want 0 or more, and %s or %s", c.Dense,
			c.Tasks, c.Cross, c.Loss, BCE, MSE)
	}
	return nil
}

// The RowWidth of models.
func embedding(dim int) int   { return dim }     // rows are embeddings
func linearFirst(dim int) int { return 1 + dim } // a linear weight, then the embedding
func linearOnly(int) int      { return 1 }       // a linear weight

// onCPU is a Kind of a net.
func onCPU(rowWidth func(int) int, wire func(*net) (head, error)) Kind {
	return Kind{RowWidth: rowWidth, New: func(_ compute.Backend, c *Config) (Model, error) { return newNet(c, wire) }}
}

// equalWidths makes k refuse features whose rows have another width than those of Config.Dim.
func equalWidths(k Kind) Kind {
	build := k.New
	k.New = func(backend compute.Backend, c *Config) (Model, error) {
		for _, w := range c.Widths {
			if want := k.RowWidth(c.Dim); w != want {
				return nil, invalid("a feature has rows of %d weights, and this kind of model wants %d for all: remove dim from "+
					"the features of the schema, or use kind dcn or two-tower", w, want)
			}
		}
		return build(backend, c)
	}
	return k
}

var kinds = map[string]Kind{
	"lr":        onCPU(linearOnly, lr),
	"fm":        equalWidths(onCPU(linearFirst, fmModel)),
	"wide-deep": equalWidths(onCPU(linearFirst, wideDeep)),
	"deepfm":    equalWidths(onCPU(linearFirst, deepFM)),
	"dcn":       onCPU(embedding, dcn),
	"two-tower": onCPU(embedding, twoTower),
	"dlrm": equalWidths(Kind{RowWidth: embedding, New: func(b compute.Backend, c *Config) (Model, error) {
		if b == nil || c.tasks() > 1 || c.Loss == MSE {
			return newNet(c, dlrm)
		}
		return NewDLRMGraph(b, DLRMGraphConfig{Batch: c.Batch, Dense: c.Dense, Categorical: len(c.Widths), Dim: c.Dim,
			Bottom: c.Bottom, Top: c.Top})
	}}),
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
