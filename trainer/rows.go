package trainer

import (
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/ondevice"
	"github.com/rowraft/rowraft/trainer/pool"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

// embeddingTables returns the tables that features take rows from, in order, and the weights in a row of each. Features
// without a table share that of the job.
func embeddingTables(c *Config) (names []string, widths []int) {
	if !c.embedded() {
		return nil, nil
	}
	add := func(table string, dim int) {
		if name := tableName(table); !slices.Contains(names, name) {
			names, widths = append(names, name), append(widths, c.Model.rowWidthOf(dim))
		}
	}
	if c.Data.Described == nil || len(c.Data.Described.Categorical) == 0 {
		add("", 0)
		return names, widths
	}
	for _, f := range c.Data.Described.Categorical {
		add(f.Table, f.Dim)
	}
	return names, widths
}

// tableName returns the name of a table behind that of the job.
func tableName(table string) string {
	if table == "" {
		return tables.EmbeddingsSuffix
	}
	return tables.EmbeddingsSuffix + "." + table
}

// newFields returns the fields of n features.
func newFields(c *Config, n int) *pool.Fields {
	names, widths := embeddingTables(c)
	f := &pool.Fields{Tables: make([]rowraft.Schema, len(names))}
	if names == nil { // the model has no embeddings
		return f
	}
	for i := range n {
		var described data.Categorical
		if s := c.Data.Described; s != nil && i < len(s.Categorical) {
			described = s.Categorical[i]
		}
		t := slices.Index(names, tableName(described.Table))
		f.Features = append(f.Features, pool.Field{Table: t, At: f.Width, Width: widths[t],
			Mean: described.Pooling == "mean"})
		f.Width += widths[t]
	}
	return f
}

// widths returns the width of each field.
func widths(f *pool.Fields) (out []int) {
	for i := range f.Features {
		out = append(out, f.Features[i].Width)
	}
	return out
}

// rowSegments returns w.Segs with the segments of the embeddings only; values belongs to the keys of all tables.
func (j *Job) rowSegments(w *work, values []float32) []tables.Segment {
	return w.pooled.Segments(j.fields, w.Segs[:0], values)
}

// newDeviceRows returns the copies of rows on the device of backend.
func newDeviceRows(backend *accel.Backend, c *Config, s data.Shape, f *pool.Fields) (*ondevice.Rows, error) {
	m := &c.Model
	return ondevice.New(backend, ondevice.Job{
		Kind: m.kind(), Threads: c.Threads, Bytes: c.Cache.Size(), Shape: s, Tables: len(f.Tables),
		Model: models.DLRMGraphConfig{Batch: c.Batch, Dense: s.Dense, Categorical: s.Categorical, Dim: m.Dim,
			Bottom: m.Bottom, Top: m.Top},
	})
}

// copies returns what the trainer's copies of rows have done.
func (j *Job) copies() report.Copies {
	n := j.tables.Copies()
	if j.deviceRows != nil {
		n = j.deviceRows.Copies()
	}
	dtype, _ := rowraft.ParseDType(j.cfg.DType) // Validate has checked it
	return j.cfg.Cache.Counts(n, j.cfg.Model.rowWidth()*dtype.Size())
}
