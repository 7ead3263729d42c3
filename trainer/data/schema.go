package data

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/rowraft/rowraft"
)

// Schema describes a delimited text file. examples/README.md documents its YAML form.
type Schema struct {
	Format    string `yaml:"format"`    // csv (default), tsv or criteo
	Separator string `yaml:"separator"` // one byte; default "," for csv, tab for tsv and criteo
	Header    *bool  `yaml:"header"`    // first line names the columns; default true for csv and tsv; criteo detects it
	Trim      bool   `yaml:"trim"`      // remove spaces around values
	Quotes    *bool  `yaml:"quotes"`    // values may be "quoted"; default true for csv
	// Missing lists the values that mean missing, in addition to the empty value.
	Missing     []string      `yaml:"missing"`
	Label       Label         `yaml:"label"`
	Dense       []Dense       `yaml:"dense"`
	Categorical []Categorical `yaml:"categorical"`

	// Unlabelled: the labels are not read, and need not be there. They count as 0.
	Unlabelled bool `yaml:"-"`
}

// Column names a column by its header or, from 1, by its position.
type Column struct {
	Column   string `yaml:"column"`
	Position int    `yaml:"position"`
}

// Label is the column to predict.
type Label struct {
	Column   `yaml:",inline"`
	Positive []string `yaml:"positive"` // values that mean 1; default "1"
	Negative []string `yaml:"negative"` // values that mean 0; default any other
}

// Dense is a numeric feature: transform, then missing values.
type Dense struct {
	Column `yaml:",inline"`
	// Transform: "" (as it is), log1p: sign(x)·ln(1+|x|), or standardize: (x−Mean)/Std.
	// With log1p, Mean and Std apply to the logarithm if Std is set.
	Transform string  `yaml:"transform"`
	Mean      float64 `yaml:"mean"`
	Std       float64 `yaml:"std"`
	Missing   float64 `yaml:"missing"` // value of a missing number, after the transform
}

// Categorical is a feature whose values become keys.
type Categorical struct {
	Column `yaml:",inline"`
	Name   string `yaml:"name"` // hashed with the value; default the column's name
	// Buckets, ascending, turn a number into a category: value "b<i>" where i is the number of bounds ≤ the number.
	Buckets []float64 `yaml:"buckets"`
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

// complete sets defaults and checks the schema as far as possible without the file.
func (s *Schema) complete() error {
	yes, no := true, false
	switch s.Format {
	case "", "csv":
		s.Format = "csv"
		s.setDefaults(",", &yes, &yes)
	case "tsv":
		s.setDefaults("\t", &yes, &no)
	case "criteo":
		if err := s.completeCriteo(); err != nil {
			return err
		}
	default:
		return invalid("format %q: want csv, tsv or criteo", s.Format)
	}
	if s.Separator != "" && (len(s.Separator) != 1 || s.Separator == "\n" || s.Separator == `"`) {
		return invalid("separator %q: want one byte, not a newline or quote", s.Separator)
	}
	if len(s.Label.Positive) == 0 {
		s.Label.Positive = []string{"1"}
	}
	if err := s.Label.check("label"); err != nil {
		return err
	}
	if len(s.Categorical) == 0 {
		return invalid("no categorical features: want at least one")
	}
	for i := range s.Dense {
		if err := s.Dense[i].complete(); err != nil {
			return err
		}
	}
	names := map[string]bool{}
	for i := range s.Categorical {
		c := &s.Categorical[i]
		if err := c.check(fmt.Sprintf("categorical feature %d", i+1)); err != nil {
			return err
		}
		if c.Name == "" {
			c.Name = c.Column.Column
		}
		if c.Name == "" {
			c.Name = "column" + strconv.Itoa(c.Position)
		}
		if names[c.Name] {
			return invalid("two categorical features are called %q: give one another name", c.Name)
		}
		names[c.Name] = true
		if !slices.IsSorted(c.Buckets) {
			return invalid("feature %s: buckets %v are not ascending", c.Name, c.Buckets)
		}
	}
	return nil
}

func (s *Schema) setDefaults(separator string, header, quotes *bool) {
	if s.Separator == "" {
		s.Separator = separator
	}
	if s.Header == nil {
		s.Header = header
	}
	if s.Quotes == nil {
		s.Quotes = quotes
	}
}

// completeCriteo describes the layout of the Criteo data sets: label, I1–I13, C1–C26. The first line decides
// separator and header: the original has tabs and no header, copies of it have commas and a header.
func (s *Schema) completeCriteo() error {
	if len(s.Dense)+len(s.Categorical) > 0 || s.Label.Column != (Column{}) {
		return invalid("format criteo fixes the columns: remove label, dense and categorical")
	}
	no := false
	s.Quotes = &no
	s.Label.Column = Column{Position: 1}
	s.Label.Positive, s.Label.Negative = []string{"1"}, []string{"0"}
	for i := 1; i <= 13; i++ {
		s.Dense = append(s.Dense, Dense{Column: Column{Position: 1 + i}, Transform: "log1p"})
	}
	for i := 1; i <= 26; i++ {
		s.Categorical = append(s.Categorical, Categorical{Column: Column{Position: 14 + i},
			Name: "C" + strconv.Itoa(i)})
	}
	return nil
}

func (c Column) check(what string) error {
	if (c.Column == "") == (c.Position == 0) || c.Position < 0 {
		return invalid("%s: want either column: NAME or position: NUMBER (from 1)", what)
	}
	return nil
}

func (c Column) String() string {
	if c.Column != "" {
		return c.Column
	}
	return "column " + strconv.Itoa(c.Position)
}

func (d *Dense) complete() error {
	if err := d.check("dense feature"); err != nil {
		return err
	}
	for _, v := range []float64{d.Mean, d.Std, d.Missing} {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return invalid("dense feature %s: mean, std and missing must be finite", d.Column)
		}
	}
	switch d.Transform {
	case "", "log1p":
		if d.Std < 0 || d.Std == 0 && d.Mean != 0 || d.Transform == "" && d.Std != 0 {
			return invalid("dense feature %s: mean and std need transform: standardize, or log1p with std > 0",
				d.Column)
		}
	case "standardize":
		if d.Std <= 0 {
			return invalid("dense feature %s: standardize wants std > 0, got %v", d.Column, d.Std)
		}
	default:
		return invalid("dense feature %s: transform %q: want log1p or standardize", d.Column, d.Transform)
	}
	return nil
}

// value applies the transform.
func (d *Dense) value(x float64) float32 {
	if d.Transform == "log1p" {
		x = math.Copysign(math.Log1p(math.Abs(x)), x)
	}
	if d.Std > 0 {
		x = (x - d.Mean) / d.Std
	}
	return float32(x)
}

// Shape returns the features of an example.
func (s *Schema) Shape() Shape {
	return Shape{Dense: len(s.Dense), Categorical: len(s.Categorical)}
}
