// Package pool makes the fields of a model from rows: it finds the rows that the values of a batch name, pools those of
// each feature, and sums the gradients of the fields for each row.
package pool

import (
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models/kernel"
	"github.com/rowraft/rowraft/trainer/tables"
)

// Fields is how the values of an example become the fields of a model: from which table each feature takes rows, and
// how wide they are. Immutable, but for the schemas of the tables, which openTables sets.
type Fields struct {
	Features []Field
	Width    int // of all fields of an example
	Tables   []rowraft.Schema
}

// Field is the field of one feature.
type Field struct {
	Table, At, Width int  // At: its first number in an example
	Mean             bool // of the rows of its values; otherwise the sum
}

// tableRows are the rows of one table in a batch.
type tableRows struct {
	keys  []rowraft.Key // unique, ascending
	first int           // of the table's numbers in Rows.Weights
	all   []rowraft.Key // of each value in the batch
	index []int32       // of each value: which of keys
	next  int           // position in index, for Gather and Scatter
	dedup dedup
}

// Rows are the rows of all tables in one batch. Its memory is reused from batch to batch; one goroutine owns it.
type Rows struct {
	Weights []float32 // of the keys of all tables, one table after the other
	Grads   []float32 // of Weights; Scatter sets them

	tables []tableRows
}

// Prepare finds the unique keys of b in each table and makes room for their weights.
func (w *Rows) Prepare(f *Fields, b *data.Batch) {
	if len(w.tables) != len(f.Tables) {
		w.tables = make([]tableRows, len(f.Tables))
	}
	for i := range w.tables {
		w.tables[i].all = w.tables[i].all[:0]
	}
	if len(w.tables) == 1 {
		w.tables[0].all = append(w.tables[0].all, b.Keys...)
	} else if len(w.tables) > 1 {
		for i := range b.N * len(f.Features) {
			t := &w.tables[f.Features[i%len(f.Features)].Table]
			t.all = append(t.all, b.Keys[b.Offsets[i]:b.Offsets[i+1]]...)
		}
	}
	n := 0
	for i := range w.tables {
		t := &w.tables[i]
		t.index = Grow(t.index, len(t.all))
		t.keys = t.dedup.unique(t.all, t.index)
		t.first = n
		n += len(t.keys) * f.Tables[i].Dim
	}
	w.Weights = Grow(w.Weights, n)
}

// values calls do with each field of the batch that has values: its table, the rows of its values in the table, their
// weights (nil: all are 1) and what all are multiplied by.
func (w *Rows) values(f *Fields, b *data.Batch,
	do func(at int, p *Field, index []int32, weights []float32, scale float32)) {
	for i := range w.tables {
		w.tables[i].next = 0
	}
	features := len(f.Features)
	for example := range b.N {
		offsets := b.Offsets[example*features : (example+1)*features+1]
		for i := range f.Features {
			p := &f.Features[i]
			from, to := offsets[i], offsets[i+1]
			n := int(to - from)
			if n == 0 {
				continue
			}
			t := &w.tables[p.Table]
			index := t.index[t.next : t.next+n]
			t.next += n
			var weights []float32
			if b.Weights != nil {
				weights = b.Weights[from:to]
			}
			scale := float32(1)
			if p.Mean {
				scale = 1 / float32(n)
			}
			do(example*f.Width+p.At, p, index, weights, scale)
		}
	}
}

// Gather pools the pulled rows of each feature into fields, [batch × Width]. A feature without values, and the
// fields of padding examples, are zeros.
func (w *Rows) Gather(f *Fields, b *data.Batch, fields []float32) {
	clear(fields)
	w.values(f, b, func(at int, p *Field, index []int32, weights []float32, scale float32) {
		dst, rows := fields[at:at+p.Width], w.Weights[w.tables[p.Table].first:]
		for i, r := range index {
			row := rows[int(r)*p.Width : (int(r)+1)*p.Width]
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

// GrowGrads makes room in w.Grads, and returns it.
func (w *Rows) GrowGrads() []float32 {
	w.Grads = Grow(w.Grads, len(w.Weights))
	return w.Grads
}

// Scatter sums the gradients of the fields for each row.
func (w *Rows) Scatter(f *Fields, b *data.Batch, fieldGrads []float32) {
	clear(w.GrowGrads())
	w.values(f, b, func(at int, p *Field, index []int32, weights []float32, scale float32) {
		grad, rows := fieldGrads[at:at+p.Width], w.Grads[w.tables[p.Table].first:]
		for i, r := range index {
			row := rows[int(r)*p.Width : (int(r)+1)*p.Width]
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

// Keys returns the keys of the first table: those of all rows, if there is one table.
func (w *Rows) Keys() []rowraft.Key { return w.tables[0].keys }

// Index sets index, a number for each example and feature of b's capacity, to which of Keys the value is, and to
// len(Keys) where there is none. It returns false if a feature has several values. REQUIRES: there is one table.
func (w *Rows) Index(f *Fields, b *data.Batch, index []int32) bool {
	t, features := &w.tables[0], len(f.Features)
	for i := range index {
		index[i] = int32(len(t.keys))
	}
	for i := range b.N * features {
		switch from := b.Offsets[i]; b.Offsets[i+1] - from {
		case 0:
		case 1:
			index[i] = t.index[from]
		default:
			return false
		}
	}
	return true
}

// Segments appends the segments of the tables to segs; values belongs to the keys of all tables.
func (w *Rows) Segments(f *Fields, segs []tables.Segment, values []float32) []tables.Segment {
	for i := range w.tables {
		t, s := &w.tables[i], &f.Tables[i]
		if n := len(t.keys); n > 0 {
			segs = append(segs, tables.Segment{Table: s.ID, Dim: s.Dim, Keys: t.keys,
				Values: values[t.first : t.first+n*s.Dim]})
		}
	}
	return segs
}

// Grow returns s with the length n. If its memory is too small, it gets new memory with some to spare.
func Grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}

// dedup finds the unique keys of a list. The zero value is ready; its memory is
// reused from call to call.
type dedup struct {
	cells []int32 // open addressing: 1 + index into found; 0 is empty
	found []keyAt
	rank  []int32
	keys  []rowraft.Key
}

type keyAt struct {
	key rowraft.Key
	at  int32 // position in keys
}

// unique returns the distinct keys of keys, ascending, and sets index[i] to the position of keys[i] among them. The
// result is valid until the next call.
func (d *dedup) unique(keys []rowraft.Key, index []int32) []rowraft.Key {
	size := 64
	for size < 2*len(keys) {
		size *= 2
	}
	if len(d.cells) < size {
		d.cells = make([]int32, size)
	} else {
		clear(d.cells)
	}
	mask := uint64(len(d.cells) - 1)
	d.found = d.found[:0]
	for i, k := range keys {
		h := (uint64(k) * 0x9e3779b97f4a7c15) >> 20 & mask
		for {
			c := d.cells[h]
			if c == 0 {
				d.found = append(d.found, keyAt{k, int32(len(d.found))})
				d.cells[h] = int32(len(d.found))
				index[i] = int32(len(d.found)) - 1
				break
			}
			if d.found[c-1].key == k {
				index[i] = c - 1
				break
			}
			h = (h + 1) & mask
		}
	}
	slices.SortFunc(d.found, func(a, b keyAt) int {
		if a.key < b.key {
			return -1
		}
		return 1 // keys are distinct
	})
	d.keys = d.keys[:0]
	if cap(d.rank) < len(d.found) {
		d.rank = make([]int32, len(d.found), 2*len(d.found))
	}
	d.rank = d.rank[:len(d.found)]
	for place, f := range d.found {
		d.keys = append(d.keys, f.key)
		d.rank[f.at] = int32(place)
	}
	for i := range index {
		index[i] = d.rank[index[i]]
	}
	return d.keys
}
