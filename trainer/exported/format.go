package exported

import (
	"strconv"

	"github.com/rowraft/rowraft"
)

// Version is the format that this package writes, and the newest that it reads.
const Version = 1

// Names of files in the directory.
const (
	descriptionFile = "model.json"
	tensorsFile     = "model.safetensors"
)

// Description is the content of model.json.
type Description struct {
	Version int       `json:"rowraft_model"`
	Job     string    `json:"job"`
	Source  Source    `json:"source"`
	Model   ModelKind `json:"model"`
	Loss    string    `json:"loss"` // bce: scores are probabilities; mse: numbers
	Tasks   []Task    `json:"tasks"`
	// Input is how examples are written; nil: the model learned from generated examples or images.
	Input       *Input    `json:"input,omitempty"`
	Dense       []Dense   `json:"dense"`
	Categorical []Feature `json:"categorical"`
	Tables      []Table   `json:"tables"`
	Tensors     Tensors   `json:"tensors"`
}

// Source is where the weights come from.
type Source struct {
	From      string `json:"from"`       // such as "cluster ID" or "checkpoint DESTINATION/NAME"
	ID        string `json:"id"`         // the checkpoint's or the cluster's; "" otherwise
	OneMoment bool   `json:"one_moment"` // all weights are those of one moment; otherwise each row is whole
	Time      string `json:"time"`       // RFC 3339: when the export began
}

// ModelKind is the kind of the model and its sizes, as in a job.
type ModelKind struct {
	Kind   string `json:"kind"`
	Dim    int    `json:"dim"` // length of an embedding, unless the feature has another
	Bottom []int  `json:"bottom"`
	Top    []int  `json:"top"`
	Cross  int    `json:"cross"`
	Items  int    `json:"items"`
	Batch  int    `json:"batch"` // examples that are computed at a time
}

// Column names a column by its header or by its position, from 1.
type Column struct {
	Column   string `json:"column,omitempty"`
	Position int    `json:"position,omitempty"`
}

// Task is a label that the model predicts.
type Task struct {
	Name string `json:"name"`
	Column
	Kind     string   `json:"kind"` // binary or number
	Positive []string `json:"positive,omitempty"`
	Negative []string `json:"negative,omitempty"`
}

// Input is how a file of examples is written.
type Input struct {
	Format    string   `json:"format"`
	Separator string   `json:"separator,omitempty"`
	Header    *bool    `json:"header,omitempty"` // absent: criteo, whose first line tells
	Quotes    bool     `json:"quotes"`
	Trim      bool     `json:"trim"`
	Missing   []string `json:"missing"` // values that mean missing, besides the empty one
}

// Dense is a numeric feature: a missing value is Missing. Another one is x, or sign(x)·ln(1+|x|) with Transform log1p,
// then (x − Mean) / Std unless Std is 0, in float64, rounded to float32.
type Dense struct {
	Column
	Transform string  `json:"transform"` // "" or log1p
	Mean      float64 `json:"mean"`
	Std       float64 `json:"std"`
	Missing   float64 `json:"missing"`
}

// Feature is a categorical feature.
type Feature struct {
	Name string `json:"name"`
	Column
	Indices []string `json:"indices,omitempty"` // libsvm and libfm: the first and the last index, decimal
	Table   string   `json:"table"`             // name in Tables; "": the model has no embeddings
	Dim     int      `json:"dim"`
	// Hash is what is hashed with a value: the id is xxh3-64 of Hash, a zero byte and the value. nil: the value is the
	// id, decimal.
	Hash      *string   `json:"hash"`
	Buckets   []float64 `json:"buckets,omitempty"`   // the value becomes "b" and the number of bounds ≤ the number
	Separator string    `json:"separator,omitempty"` // between the values of the feature; "": it has one
	Weights   *Column   `json:"weights,omitempty"`   // numbers by which the rows are multiplied
	Pooling   string    `json:"pooling"`             // how rows of several values become one: sum or mean
	MaxLength int       `json:"max_length"`          // only the last so many values count; 0: all
}

// Table is a table of embeddings.
type Table struct {
	Name        string      `json:"name"`
	Dim         int         `json:"dim"` // numbers in a row
	Rows        uint64      `json:"rows"`
	Initializer Initializer `json:"initializer"` // the weights of an id without a row
	Rounded     string      `json:"rounded"`     // float32 or bfloat16: to which these weights are rounded
	Files       []File      `json:"files"`       // with tensors ids and vectors; an id is in one of them
}

// Initializer is docs/formats/rules.md#initializers. Numbers of 64 bits are decimal strings, because not every JSON
// reader has them.
type Initializer struct {
	Kind     string  `json:"kind"` // zeros, uniform or normal
	A        float32 `json:"a"`
	B        float32 `json:"b"`
	Seed     string  `json:"seed"`
	NameHash string  `json:"name_hash"`
}

// File is a file of the directory.
type File struct {
	File   string `json:"file"`
	Rows   uint64 `json:"rows,omitempty"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Tensors are the dense weights of the model, in the order of its layers.
type Tensors struct {
	File
	Names []string `json:"names"`
}

func initializerOf(i rowraft.Initializer) Initializer {
	return Initializer{Kind: i.Kind.String(), A: i.A, B: i.B, Seed: strconv.FormatUint(i.Seed, 10),
		NameHash: strconv.FormatUint(i.NameHash, 10)}
}

// initializer returns i as tables have it.
func (i *Initializer) initializer() (out rowraft.Initializer, err error) {
	out.A, out.B = i.A, i.B
	for _, k := range []rowraft.InitializerKind{rowraft.InitZeros, rowraft.InitUniform, rowraft.InitNormal} {
		if k.String() == i.Kind {
			out.Kind = k
		}
	}
	if out.Kind == 0 {
		return out, corruptf("initializer %q: want zeros, uniform or normal", i.Kind)
	}
	if out.Seed, err = strconv.ParseUint(i.Seed, 10, 64); err != nil {
		return out, corruptf("seed %q of an initializer: want a decimal number", i.Seed)
	}
	if out.NameHash, err = strconv.ParseUint(i.NameHash, 10, 64); err != nil {
		return out, corruptf("name_hash %q of an initializer: want a decimal number", i.NameHash)
	}
	return out, nil
}

func corruptf(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeCorrupt, format, args...)
}

func invalidf(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
}
