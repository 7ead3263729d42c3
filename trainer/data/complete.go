package data

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data/number"
)

// complete sets defaults and checks the schema as far as possible without a file.
func (s *Schema) complete() error {
	if err := s.completeFormat(); err != nil {
		return err
	}
	return s.completeFeatures()
}

// Recheck checks a schema that says that it is complete, as [Files.Schema] returns it: one from a file of a model.
//
// Errors: CodeInvalidArgument.
func (s *Schema) Recheck() error {
	if s.Format != formatCriteo {
		return s.complete()
	}
	no := false // the features of this format are fixed, and here
	s.Quotes, s.Header, s.Separator = &no, nil, ""
	return s.completeFeatures()
}

// completeFeatures is complete without the format.
func (s *Schema) completeFeatures() error {
	if s.Separator != "" && !oneByte(s.Separator) {
		return invalid("separator %q: want one byte, not a newline or quote", s.Separator)
	}
	if err := s.completeLabels(); err != nil {
		return err
	}
	if len(s.Categorical) == 0 && !s.derived() {
		return invalid("no categorical features: want at least one")
	}
	for i := range s.Dense {
		if err := s.Dense[i].complete(); err != nil {
			return err
		}
	}
	names := map[string]bool{}
	dims := map[string]int{}
	for i := range s.Categorical {
		c := &s.Categorical[i]
		if err := c.complete(i, s.Indexed()); err != nil {
			return err
		}
		if names[c.Name] {
			return invalid("two categorical features are called %q: give one another name", c.Name)
		}
		names[c.Name] = true
		if c.Table == "" {
			continue
		}
		if dim, ok := dims[c.Table]; ok && dim != c.Dim {
			return invalid("feature %s: dim %d, another feature of table %s has dim %d: want one dim per table", c.Name,
				c.Dim, c.Table, dim)
		}
		dims[c.Table] = c.Dim
	}
	return nil
}

// oneByte reports whether s can separate values.
func oneByte(s string) bool { return len(s) == 1 && s != "\n" && s != "\"" }

// Indexed reports whether features are named by numbers in each line.
func (s *Schema) Indexed() bool { return s.Format == formatLibSVM || s.Format == formatLibFM }

// derived reports whether the header of the first file names the features.
func (s *Schema) derived() bool {
	return s.Format == formatInter && len(s.Dense)+len(s.Categorical) == 0
}

func (s *Schema) completeFormat() error {
	yes, no := true, false
	switch s.Format {
	case "", formatCSV:
		s.Format = formatCSV
		s.setDefaults(",", &yes, &yes)
	case formatTSV, formatInter:
		s.setDefaults("\t", &yes, &no)
		if s.Format == formatInter && !*s.Header {
			return invalid("format inter: header is false: the first line names columns and types")
		}
	case formatCriteo:
		return s.completeCriteo()
	case FormatParquet:
		if s.Separator != "" || s.Header != nil || s.Quotes != nil || s.Trim {
			return invalid("format parquet has typed columns: remove separator, header, quotes and trim")
		}
	case formatLibSVM, formatLibFM:
		if s.Separator != "" || s.Header != nil || s.Quotes != nil || s.Trim || len(s.Missing) > 0 {
			return invalid("format %s has a fixed layout: remove separator, header, quotes, trim and missing", s.Format)
		}
		s.completeIndexed()
	default:
		return invalid("format %q: want csv, tsv, criteo, inter, parquet, libsvm or libfm", s.Format)
	}
	return nil
}

// completeIndexed describes a libsvm file: its label comes first, and all indices are values of one feature, unless the
// schema names features.
func (s *Schema) completeIndexed() {
	if s.Label.Column == (Column{}) && len(s.Labels) == 0 {
		s.Label.Column = Column{Position: 1}
		s.Label.Name = "label"
		if len(s.Label.Positive) == 0 && s.Label.Kind == "" {
			s.Label.Positive, s.Label.Negative = []string{"1", "+1"}, []string{"0", "-1"}
		}
	}
	if len(s.Dense)+len(s.Categorical) == 0 {
		s.Categorical = []Categorical{{Name: "features", Indices: []uint64{0, math.MaxUint64}}}
	}
}

// completeLabels makes Labels the list of all labels.
func (s *Schema) completeLabels() error {
	if len(s.Labels) == 0 {
		s.Labels = []Label{s.Label}
	} else if !s.Label.empty() {
		return invalid("label and labels: want one of them")
	}
	s.Label = Label{}
	names := map[string]bool{}
	for i := range s.Labels {
		l := &s.Labels[i]
		what := "label"
		if len(s.Labels) > 1 {
			what = fmt.Sprintf("label %d", i+1)
		}
		if err := l.check(what); err != nil {
			return err
		}
		if l.Name == "" {
			l.Name = l.Column.String()
		}
		if names[l.Name] {
			return invalid("two labels are called %q: give one another name", l.Name)
		}
		names[l.Name] = true
		switch l.Kind {
		case "", KindBinary:
			l.Kind = KindBinary
			if len(l.Positive) == 0 {
				l.Positive = []string{"1"}
			}
		case KindNumber:
			if len(l.Positive)+len(l.Negative) > 0 {
				return invalid("label %s: kind number has no positive or negative values", l.Name)
			}
		default:
			return invalid("label %s: kind %q: want binary or number", l.Name, l.Kind)
		}
	}
	for i := range s.Labels {
		if l := &s.Labels[i]; l.Kind != s.Labels[0].Kind {
			return invalid("labels %s and %s: kinds %s and %s: want one kind for all, because a model has one loss",
				s.Labels[0].Name, l.Name, s.Labels[0].Kind, l.Kind)
		}
	}
	if s.Indexed() && (len(s.Labels) > 1 || s.Labels[0].Column != (Column{Position: 1})) {
		return invalid("format %s has one label, at position 1", s.Format)
	}
	return nil
}

func (l *Label) empty() bool {
	return l.Column == (Column{}) && l.Name == "" && l.Kind == "" && len(l.Positive)+len(l.Negative) == 0
}

// complete checks categorical feature i, of a libsvm or libfm file if indexed.
func (c *Categorical) complete(i int, indexed bool) error {
	what := fmt.Sprintf("categorical feature %d", i+1)
	if indexed {
		switch {
		case c.Column != (Column{}) || c.Weights != nil || c.Separator != "" || len(c.Buckets) > 0:
			return invalid("%s: libsvm and libfm files have no columns: give name and indices: [first, last]", what)
		case c.Name == "" || len(c.Indices) != 2 || c.Indices[0] > c.Indices[1]:
			return invalid("%s: want a name and indices: [first, last] in a libsvm or libfm file", what)
		}
	} else if err := c.check(what); err != nil {
		return err
	}
	if c.Name == "" {
		c.Name = c.Column.Column
	}
	if c.Name == "" {
		c.Name = "column" + strconv.Itoa(c.Position)
	}
	switch {
	case !indexed && len(c.Indices) > 0:
		return invalid("feature %s: indices are for libsvm and libfm files: want column or position", c.Name)
	case !slices.IsSorted(c.Buckets):
		return invalid("feature %s: buckets %v are not ascending", c.Name, c.Buckets)
	case c.Dim < 0 || c.Dim > rowraft.MaxDim:
		return invalid("feature %s: dim %d: want 1 to %d", c.Name, c.Dim, rowraft.MaxDim)
	case c.Dim > 0 && c.Table == "":
		return invalid("feature %s: dim %d needs a table of its own: set table", c.Name, c.Dim)
	case c.IDs != "" && c.IDs != "hash" && c.IDs != "exact":
		return invalid("feature %s: ids %q: want hash or exact", c.Name, c.IDs)
	case c.IDs == "exact" && len(c.Buckets) > 0:
		return invalid("feature %s: exact ids have no buckets", c.Name)
	case c.IDs == "exact" && c.Table == "":
		return invalid("feature %s: exact ids need a table of their own, because other features of the job's table have "+
			"hashed keys: set table", c.Name)
	case c.Separator != "" && !oneByte(c.Separator):
		return invalid("feature %s: separator %q: want one byte, not a newline or quote", c.Name, c.Separator)
	case c.Pooling != "" && c.Pooling != "sum" && c.Pooling != "mean":
		return invalid("feature %s: pooling %q: want sum or mean", c.Name, c.Pooling)
	case c.MaxLength < 0:
		return invalid("feature %s: max_length %d: want ≥ 0", c.Name, c.MaxLength)
	}
	if c.Weights != nil {
		return c.Weights.check("feature " + c.Name + ": weights")
	}
	return nil
}

// exact reports whether values are keys.
func (c *Categorical) exact() bool { return c.IDs == "exact" }

// hashName is what is hashed with a value.
func (c *Categorical) hashName() string {
	if c.Table != "" {
		return c.Table
	}
	return c.Name
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
	if len(s.Dense)+len(s.Categorical)+len(s.Labels) > 0 || s.Label.Column != (Column{}) {
		return invalid("format criteo fixes the columns: remove label, labels, dense and categorical")
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
	if d.Transform != "" && d.Transform != "log1p" && d.Transform != "standardize" {
		return invalid("dense feature %s: transform %q: want log1p or standardize", d.Column, d.Transform)
	}
	d.Standardize = d.Standardize || d.Transform == "standardize"
	if d.Std < 0 || d.Std == 0 && d.Mean != 0 || d.Transform == "" && !d.Standardize && d.Std != 0 {
		return invalid("dense feature %s: mean and std need transform: standardize, or log1p with std > 0", d.Column)
	}
	return nil
}

// fitted reports whether the training examples decide the mean and the standard deviation.
func (d *Dense) fitted() bool { return d.Standardize && d.Std == 0 }

// value applies the transform.
func (d *Dense) value(x float64) float32 {
	if d.Transform == "log1p" {
		x = number.SignedLog(x)
	}
	if d.Std > 0 {
		x = (x - d.Mean) / d.Std
	}
	return float32(x)
}

// Shape returns the features of an example.
func (s *Schema) Shape() Shape {
	shape := Shape{Dense: len(s.Dense), Categorical: len(s.Categorical), Labels: len(s.Labels), Weighted: s.Indexed(),
		Lines: s.KeepLines}
	for i := range s.Categorical {
		shape.Weighted = shape.Weighted || s.Categorical[i].Weights != nil
	}
	shape.Numbers = len(s.Labels) > 0 && s.Labels[0].Kind == KindNumber
	return shape
}
