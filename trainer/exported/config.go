package exported

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/tables"
)

// describe sets what c says about the model and its examples.
func (d *Description) describe(c *trainer.Config) {
	m := &c.Model
	d.Job = c.Job
	d.Model = ModelKind{Kind: cmp.Or(m.Kind, trainer.DLRM), Dim: m.Dim, Bottom: some(m.Bottom), Top: some(m.Top),
		Cross: m.Cross, Items: m.Items, Batch: c.Batch}
	d.Loss = models.BCE
	d.Tasks, d.Dense, d.Categorical = []Task{}, []Dense{}, []Feature{}
	s := c.Data.Described
	if s == nil {
		return
	}
	d.Input = &Input{Format: s.Format, Separator: s.Separator, Header: s.Header, Quotes: s.Quotes != nil && *s.Quotes,
		Trim: s.Trim, Missing: some(s.Missing)}
	for i := range s.Labels {
		l := &s.Labels[i]
		d.Tasks = append(d.Tasks, Task{Name: l.Name, Column: Column(l.Column), Kind: l.Kind, Positive: l.Positive,
			Negative: l.Negative})
		if l.Kind == data.KindNumber {
			d.Loss = models.MSE
		}
	}
	for i := range s.Dense {
		f := &s.Dense[i]
		one := Dense{Column: Column(f.Column), Mean: f.Mean, Std: f.Std, Missing: f.Missing}
		if f.Transform == "log1p" {
			one.Transform = f.Transform
		}
		d.Dense = append(d.Dense, one)
	}
	for i := range s.Categorical {
		f := &s.Categorical[i]
		one := Feature{Name: f.Name, Column: Column(f.Column), Dim: cmp.Or(f.Dim, m.Dim), Buckets: f.Buckets,
			Separator: f.Separator, Pooling: cmp.Or(f.Pooling, "sum"), MaxLength: f.MaxLength}
		if len(d.Tables) > 0 {
			one.Table = tableName(c.Job, f.Table)
		}
		if f.IDs != "exact" {
			name := cmp.Or(f.Table, f.Name)
			one.Hash = &name
		}
		for _, n := range f.Indices {
			one.Indices = append(one.Indices, strconv.FormatUint(n, 10))
		}
		if f.Weights != nil {
			w := Column(*f.Weights)
			one.Weights = &w
		}
		d.Categorical = append(d.Categorical, one)
	}
}

// some returns s, or an empty list in the place of nil, which JSON writes as null.
func some[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// tableName returns the name of a job's table of embeddings.
func tableName(job, table string) string {
	if table == "" {
		return job + tables.EmbeddingsSuffix
	}
	return job + tables.EmbeddingsSuffix + "." + table
}

// config returns the job of a description. The caller adds the data.
//
// Errors: CodeInvalidArgument if no file of examples has the features.
func (d *Description) config() (trainer.Config, error) {
	c := trainer.DefaultConfig()
	if d.Input == nil {
		return c, invalidf("model %s learned from generated examples or images: no file has its features", d.Job)
	}
	m := &d.Model
	c.Job, c.Batch = d.Job, m.Batch
	c.Model = trainer.ModelConfig{Kind: m.Kind, Dim: m.Dim, Bottom: m.Bottom, Top: m.Top, Cross: m.Cross, Items: m.Items}
	s := &data.Schema{Format: d.Input.Format, Separator: d.Input.Separator, Header: d.Input.Header,
		Quotes: &d.Input.Quotes, Trim: d.Input.Trim, Missing: d.Input.Missing}
	switch s.Format {
	case "parquet", "libsvm", "libfm":
		s.Quotes = nil
	}
	for i := range d.Tasks {
		t := &d.Tasks[i]
		s.Labels = append(s.Labels, data.Label{Column: data.Column(t.Column), Name: t.Name, Kind: t.Kind,
			Positive: t.Positive, Negative: t.Negative})
	}
	for i := range d.Dense {
		f := &d.Dense[i]
		one := data.Dense{Column: data.Column(f.Column), Transform: f.Transform, Mean: f.Mean, Std: f.Std,
			Missing: f.Missing}
		if f.Transform == "" && f.Std != 0 {
			one.Transform = "standardize"
		}
		s.Dense = append(s.Dense, one)
	}
	for i := range d.Categorical {
		f, err := d.feature(&d.Categorical[i])
		if err != nil {
			return c, err
		}
		s.Categorical = append(s.Categorical, f)
	}
	c.Data.Described = s
	return c, s.Recheck()
}

// feature returns f as a schema has it.
func (d *Description) feature(f *Feature) (data.Categorical, error) {
	out := data.Categorical{Column: data.Column(f.Column), Name: f.Name, Buckets: f.Buckets, Separator: f.Separator,
		Pooling: f.Pooling, MaxLength: f.MaxLength}
	prefix := tableName(d.Job, "")
	if len(f.Table) > len(prefix)+1 && f.Table[:len(prefix)+1] == prefix+"." {
		out.Table, out.Dim = f.Table[len(prefix)+1:], f.Dim
	}
	if len(d.Tables) > 0 && !slices.ContainsFunc(d.Tables, func(t Table) bool { return t.Name == f.Table }) {
		return out, corruptf("feature %s takes rows from table %q, which is not there", f.Name, f.Table)
	}
	if f.Hash == nil {
		out.IDs = "exact"
	} else if want := cmp.Or(out.Table, f.Name); *f.Hash != want {
		return out, corruptf("feature %s hashes %q with its values: want %q", f.Name, *f.Hash, want)
	}
	for _, text := range f.Indices {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return out, corruptf("feature %s: index %q: want a number from 0 to %d", f.Name, text, uint64(math.MaxUint64))
		}
		out.Indices = append(out.Indices, n)
	}
	if f.Weights != nil {
		w := data.Column(*f.Weights)
		out.Weights = &w
	}
	return out, nil
}
