package trainer

import (
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models/kernel"
	"github.com/rowraft/rowraft/trainer/tables"
)

// fieldSet says how the values of an example become the fields of a model: from which table each feature takes rows, and
// how wide they are. Immutable, but for the schemas of the tables, which openTables sets.
type fieldSet struct {
	features []field
	width    int // of all fields of an example
	tables   []rowraft.Schema
}

// field is the field of one feature.
type field struct {
	table, at, width int  // at: its first number in an example
	mean             bool // of the rows of its values; otherwise the sum
}

// embeddingTables returns the tables that features take rows from, in order, and the number of weights in a row of each.
// Features without a table share that of the job.
func (c *Config) embeddingTables() (names []string, widths []int) {
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
func newFields(c *Config, n int) *fieldSet {
	names, widths := c.embeddingTables()
	f := &fieldSet{tables: make([]rowraft.Schema, len(names))}
	if names == nil { // the model has no embeddings
		return f
	}
	for i := range n {
		var described data.Categorical
		if s := c.Data.Described; s != nil && i < len(s.Categorical) {
			described = s.Categorical[i]
		}
		t := slices.Index(names, tableName(described.Table))
		f.features = append(f.features, field{table: t, at: f.width, width: widths[t], mean: described.Pooling == "mean"})
		f.width += widths[t]
	}
	return f
}

// widths returns the width of each field.
func (f *fieldSet) widths() (out []int) {
	for i := range f.features {
		out = append(out, f.features[i].width)
	}
	return out
}

// tableRows are the rows of one table in a batch.
type tableRows struct {
	keys  []rowraft.Key // unique, ascending
	first int           // of the table's numbers in work.rows
	all   []rowraft.Key // of each value in the batch
	index []int32       // of each value: which of keys
	next  int           // position in index, for gather and scatter
	dedup dedup
}

// prepare finds the unique keys of w.data.
func (w *work) prepare(f *fieldSet) {
	w.batch.N, w.batch.Labels, w.batch.Dense = w.data.N, w.data.Labels, w.data.Dense
	if len(w.tables) != len(f.tables) {
		w.tables = make([]tableRows, len(f.tables))
	}
	for i := range w.tables {
		w.tables[i].all = w.tables[i].all[:0]
	}
	if len(w.tables) == 1 {
		w.tables[0].all = append(w.tables[0].all, w.data.Keys...)
	} else if len(w.tables) > 1 {
		for i := range w.data.N * len(f.features) {
			t := &w.tables[f.features[i%len(f.features)].table]
			t.all = append(t.all, w.data.Keys[w.data.Offsets[i]:w.data.Offsets[i+1]]...)
		}
	}
	n := 0
	for i := range w.tables {
		t := &w.tables[i]
		t.index = growTo(t.index, len(t.all))
		t.keys = t.dedup.unique(t.all, t.index)
		t.first = n
		n += len(t.keys) * f.tables[i].Dim
	}
	w.rows = growTo(w.rows, n)
}

// values calls do with each field of the batch that has values: its table, the rows of its values in the table, their
// weights (nil: all are 1) and what all are multiplied by.
func (w *work) values(f *fieldSet, do func(at int, p *field, index []int32, weights []float32, scale float32)) {
	for i := range w.tables {
		w.tables[i].next = 0
	}
	features := len(f.features)
	for example := range w.data.N {
		offsets := w.data.Offsets[example*features : (example+1)*features+1]
		for i := range f.features {
			p := &f.features[i]
			from, to := offsets[i], offsets[i+1]
			n := int(to - from)
			if n == 0 {
				continue
			}
			t := &w.tables[p.table]
			index := t.index[t.next : t.next+n]
			t.next += n
			var weights []float32
			if w.data.Weights != nil {
				weights = w.data.Weights[from:to]
			}
			scale := float32(1)
			if p.mean {
				scale = 1 / float32(n)
			}
			do(example*f.width+p.at, p, index, weights, scale)
		}
	}
}

// gather pools the pulled rows of each feature into the fields of the batch. A feature without values, and the fields of
// padding examples, are zeros.
func (w *work) gather(f *fieldSet) {
	clear(w.batch.Fields)
	w.values(f, func(at int, p *field, index []int32, weights []float32, scale float32) {
		dst, rows := w.batch.Fields[at:at+p.width], w.rows[w.tables[p.table].first:]
		for i, r := range index {
			row := rows[int(r)*p.width : (int(r)+1)*p.width]
			factor := scale
			if weights != nil {
				factor = float32(weights[i] * scale)
			}
			if factor == 1 {
				kernel.Add(dst, row)
				continue
			}
			for k, x := range row {
				dst[k] += float32(x * factor) // never fused
			}
		}
	})
}

// scatter sums the gradients of the fields for each row.
func (w *work) scatter(f *fieldSet) {
	w.rowGrads = growTo(w.rowGrads, len(w.rows))
	clear(w.rowGrads)
	w.values(f, func(at int, p *field, index []int32, weights []float32, scale float32) {
		grad, rows := w.result.FieldGrads[at:at+p.width], w.rowGrads[w.tables[p.table].first:]
		for i, r := range index {
			row := rows[int(r)*p.width : (int(r)+1)*p.width]
			factor := scale
			if weights != nil {
				factor = float32(weights[i] * scale)
			}
			if factor == 1 {
				kernel.Add(row, grad)
				continue
			}
			for k, x := range grad {
				row[k] += float32(x * factor) // never fused
			}
		}
	})
}

// rowSegments returns w.Segs with the segments of the embeddings only; values belongs to the keys of all tables.
func (j *Job) rowSegments(w *work, values []float32) []tables.Segment {
	w.Segs = w.Segs[:0]
	for i := range w.tables {
		t, s := &w.tables[i], &j.fields.tables[i]
		if n := len(t.keys); n > 0 {
			w.Segs = append(w.Segs, tables.Segment{Table: s.ID, Dim: s.Dim, Keys: t.keys,
				Values: values[t.first : t.first+n*s.Dim]})
		}
	}
	return w.Segs
}
