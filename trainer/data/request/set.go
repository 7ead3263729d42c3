package request

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
)

// NoExamples is a data set of which only the schema is known: its examples come from requests, or are not needed.
type NoExamples struct{ Schema *data.Schema }

// Shape implements [data.Set].
func (n NoExamples) Shape() data.Shape { return n.Schema.Shape() }

// Train implements [data.Set]: it returns CodePrecondition.
func (n NoExamples) Train(int64, int, int) (data.Source, error) { return nil, errNotThere }

// Held implements [data.Set]: it returns CodePrecondition.
func (n NoExamples) Held() (data.Source, error) { return nil, errNotThere }

// TrainSize implements [data.Set].
func (n NoExamples) TrainSize() int64 { return 0 }

// HeldSize implements [data.Set].
func (n NoExamples) HeldSize() int64 { return 0 }

// Name implements [data.Set].
func (n NoExamples) Name() string { return "no data" }

var errNotThere = rowraft.Errorf(rowraft.CodePrecondition, "the model was opened without examples")
