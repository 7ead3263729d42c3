package data

import (
	"bytes"
	"fmt"
	"os"
	"regexp"

	"go.yaml.in/yaml/v3"

	"github.com/rowraft/rowraft"
)

// Schema describes the examples of files. examples/README.md documents its YAML form.
type Schema struct {
	Format    string `yaml:"format"`    // csv (default), tsv, criteo, inter, parquet, libsvm or libfm
	Separator string `yaml:"separator"` // one byte; default "," for csv, tab for tsv, inter and criteo
	Header    *bool  `yaml:"header"`    // first line names the columns; default true for csv and tsv; criteo detects it
	Trim      bool   `yaml:"trim"`      // remove spaces around values
	Quotes    *bool  `yaml:"quotes"`    // values may be "quoted"; default true for csv
	// Missing lists the values that mean missing, in addition to the empty value.
	Missing []string `yaml:"missing"`
	// Label is the column to predict, Labels several of them; the model learns each as a task.
	Label       Label         `yaml:"label"`
	Labels      []Label       `yaml:"labels,omitempty"`
	Dense       []Dense       `yaml:"dense"`
	Categorical []Categorical `yaml:"categorical"`

	// Unlabelled: the labels are not read, and need not be there. They count as 0.
	Unlabelled bool `yaml:"-"`
	// KeepLines: batches keep the lines of their examples. Files whose examples are not shuffled only.
	KeepLines bool `yaml:"-"`
}

// Formats of files.
const (
	formatCSV     = "csv"
	formatTSV     = "tsv"
	formatCriteo  = "criteo"
	formatInter   = "inter" // of RecBole: tabs, and a header of NAME:TYPE
	FormatParquet = "parquet"
	formatLibSVM  = "libsvm" // label index:value index:value …
	formatLibFM   = "libfm"  // the same layout
)

// Column names a column by its header or, from 1, by its position.
type Column struct {
	Column   string `yaml:"column"`
	Position int    `yaml:"position"`
}

// Label is a column to predict.
type Label struct {
	Column   `yaml:",inline"`
	Name     string   `yaml:"name,omitempty"` // of the task; default the column's name
	Kind     string   `yaml:"kind,omitempty"` // binary (default), or number
	Positive []string `yaml:"positive"`       // binary: values that mean 1; default "1"
	Negative []string `yaml:"negative"`       // binary: values that mean 0; default any other
}

// Kinds of labels.
const (
	KindBinary = "binary"
	KindNumber = "number"
)

// Dense is a numeric feature: transform, then missing values.
type Dense struct {
	Column `yaml:",inline"`
	// Transform: "" (as it is), log1p: sign(x)·ln(1+|x|), or standardize: (x−Mean)/Std.
	// With log1p, Mean and Std apply to the logarithm if Std is set.
	Transform string `yaml:"transform"`
	// Standardize with log1p is standardize after the logarithm. Without Std, Mean and Std are those of the training
	// examples.
	Standardize bool    `yaml:"standardize,omitempty"`
	Mean        float64 `yaml:"mean"`
	Std         float64 `yaml:"std"`
	Missing     float64 `yaml:"missing"` // value of a missing number, after the transform

	measured bool // Mean and Std are those of the training examples
}

// Categorical is a feature whose values become keys.
type Categorical struct {
	Column `yaml:",inline"`
	Name   string `yaml:"name"` // hashed with the value unless Table is set; default the column's name
	// Buckets, ascending, turn a number into a category: value "b<i>" where i is the number of bounds ≤ the number.
	Buckets []float64 `yaml:"buckets"`
	// Indices, [first, last], are the indices of a libsvm or libfm file that are values of this feature.
	Indices []uint64 `yaml:"indices,omitempty"`

	// Table is the table of the feature's rows. Features of one Table share its rows: equal values have one key. "":
	// the job's table, where equal values of two features have two keys.
	Table string `yaml:"table,omitempty"`
	Dim   int    `yaml:"dim,omitempty"` // weights per row of Table; 0: as in the model
	IDs   string `yaml:"ids,omitempty"` // hash (default), or exact: values are the keys, decimal integers

	// Separator, one byte, separates the values of a feature with many of them. Parquet needs none for a list.
	Separator string `yaml:"separator,omitempty"`
	// Weights is the column with as many numbers, separated alike, by which the rows are multiplied.
	Weights   *Column `yaml:"weights,omitempty"`
	Pooling   string  `yaml:"pooling,omitempty"`    // of many values: sum (default) or mean
	MaxLength int     `yaml:"max_length,omitempty"` // only the last so many values count; 0: all
}

// LoadSchema reads a schema from a YAML file. Unknown keys are errors.
func LoadSchema(path string) (*Schema, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "schema: %w", err)
	}
	var s Schema
	if err := DecodeYAML(path, text, &s); err != nil {
		return nil, err
	}
	if err := s.complete(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &s, nil
}

var unknownField = regexp.MustCompile(`line (\d+): field (\S+) not found in type \S+`)

// notDuration is the decoder's error for a duration without a unit.
var notDuration = regexp.MustCompile("line (\\d+): cannot unmarshal !!\\w+ `(.*)` into time.Duration")

// notList is the decoder's error for a single value in place of a list.
var notList = regexp.MustCompile("line (\\d+): cannot unmarshal !!\\w+ `(.*)` into \\[\\](\\w+)")

// DecodeYAML decodes text into v and refuses keys that v lacks; the error names file, line and key.
func DecodeYAML(file string, text []byte, v any) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	err := d.Decode(v)
	if err == nil {
		return nil
	}
	if m := unknownField.FindStringSubmatch(err.Error()); m != nil {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s:%s: unknown key %q", file, m[1], m[2])
	}
	if m := notDuration.FindStringSubmatch(err.Error()); m != nil {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"%s:%s: %q is not a duration: want a number with its unit, for example 500ms, 10s or 2h", file, m[1], m[2])
	}
	if m := notList.FindStringSubmatch(err.Error()); m != nil {
		list := "[" + m[2] + "]"
		if m[3] == "string" {
			list = fmt.Sprintf("[%q]", m[2])
		}
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s:%s: %q is not a list: want %s, also for one value", file, m[1],
			m[2], list)
	}
	return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s: %w", file, err)
}

func invalid(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
}
