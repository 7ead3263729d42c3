package dense

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/state"
	"github.com/rowraft/rowraft/trainer/tables"
	"github.com/rowraft/rowraft/trainer/tensor"
)

// Width is the number of weights in a row of a dense table.
const Width = 64

// Place is how a parameter is stored and which process computes its initial values.
type Place int

// The places of a parameter.
const (
	Seeded  Place = iota // in the job's table, as the difference to values that each trainer computes from the seed
	Written              // in the job's table; one trainer writes the initial values
	Served               // in a table of its own, whose initializer gives the initial values
	Kept                 // with the trainers, in no table
)

// Layout maps the dense weights, one flat slice, to rows of dense tables: a weight is Initial + row. The job's dense
// table has the parameters, each as the tensor of its own number. A Served parameter has a table of its own. Kept
// parameters have no rows. The rows of all tables form one slice, too. Users must not change the fields, except
// Initial before the run begins; after that a Layout is immutable.
type Layout struct {
	Params  []models.Param
	Places  []Place   // of Params
	Offsets []int     // first weight of each of Params in the flat slice
	Initial []float32 // flat; zeros where the table has the whole weight; after Fix the weights
	Rows    int       // sum over all tables

	tensors []*tensor.Tensor // of Params
	tables  []table
	fixed   bool
}

// table is one table, which may have no rows.
type table struct {
	schema rowraft.Schema
	params []int         // parameters in this table, ascending
	keys   []rowraft.Key // the keys of all rows, strictly ascending
	from   int           // first of its rows in the rows of all tables
}

// New returns the layout of a model's parameters. places has one element for each of params. like is the schema of the
// tables of Served parameters, without the initializer; the name of the parameter is appended to its name.
func New(params []models.Param, places []Place, seed uint64, like rowraft.Schema) (*Layout, error) {
	l := &Layout{Params: params, Places: places, Initial: make([]float32, models.TotalSize(params)),
		tables: make([]table, 1)}
	models.Initial(l.Initial, params, seed)
	at := 0
	for i, p := range params {
		shape := make([]int64, len(p.Shape))
		for k, d := range p.Shape {
			shape[k] = int64(d)
		}
		t, err := tensor.New(p.Name, uint32(i), Width, shape...)
		if err != nil {
			return nil, err
		}
		l.tensors, l.Offsets = append(l.tensors, t), append(l.Offsets, at)
		if places[i] != Seeded {
			clear(l.Initial[at : at+p.Size()])
		}
		at += p.Size()
		if places[i] == Kept {
			continue
		}
		to := 0
		if places[i] == Served {
			to = len(l.tables)
			l.tables = append(l.tables, table{schema: served(like, p, seed)})
		}
		d := &l.tables[to]
		d.params = append(d.params, i)
		d.keys = t.AppendKeys(d.keys, 0, t.Rows())
	}
	for i := range l.tables {
		l.tables[i].from = l.Rows
		l.Rows += len(l.tables[i].keys)
	}
	return l, nil
}

// served returns the table of a parameter that the servers initialize: with the ranges of models.Initial.
func served(s rowraft.Schema, p models.Param, seed uint64) rowraft.Schema {
	s.Name += "." + p.Name
	s.Initializer = rowraft.Initializer{Kind: rowraft.InitZeros}
	if p.FanIn+p.FanOut > 0 {
		limit := float32(math.Sqrt(6 / float64(p.FanIn+p.FanOut)))
		s.Initializer = rowraft.Initializer{Kind: rowraft.InitUniform, Seed: seed, A: -limit, B: limit}
	}
	return s
}

// Open creates the missing tables of single parameters; dense is the table of the others.
func (l *Layout) Open(ctx context.Context, t tables.Tables, dense rowraft.Schema, patience time.Duration) error {
	l.tables[0].schema = dense
	for i := range l.tables[1:] {
		d := &l.tables[1+i]
		ctx, cancel := context.WithTimeout(ctx, patience)
		have, err := t.EnsureTable(ctx, d.schema)
		cancel()
		if err != nil {
			return fmt.Errorf("table %s: %w", d.schema.Name, err)
		}
		d.schema = have
	}
	return nil
}

// Fix takes the weights from tables that have them as they are, instead of Open. The layout has no rows then.
func (l *Layout) Fix(from tables.Weights) error {
	for i, p := range l.Params {
		values, err := from.Weights(p.Name, p.Shape)
		if err != nil {
			return err
		}
		copy(l.Initial[l.Offsets[i]:], values)
	}
	l.fixed, l.tables, l.Rows = true, make([]table, 1), 0
	return nil
}

// SetInitial takes Initial from the state of a trainer, in which another binary may have computed other values.
//
// Errors: CodeInvalidArgument if the state is that of another model.
func (l *Layout) SetInitial(s *state.State) error {
	for at, p := range l.Params {
		i := slices.IndexFunc(s.Tensors,
			func(t state.Tensor) bool { return t.Kind == state.InitialWeights && t.Name == p.Name })
		if i < 0 || !slices.Equal(s.Tensors[i].Shape, p.Shape) {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "the state has no tensor %s of the shape %v", p.Name, p.Shape)
		}
		copy(l.Initial[l.Offsets[at]:], s.Tensors[i].Values)
	}
	return nil
}

// Segments appends the segments of the dense tables; values are the rows of all of them.
func (l *Layout) Segments(segs []tables.Segment, values []float32) []tables.Segment {
	for i := range l.tables {
		if d := &l.tables[i]; len(d.keys) > 0 {
			segs = append(segs, tables.Segment{Table: d.schema.ID, Dim: Width, Keys: d.keys,
				Values: values[d.from*Width : (d.from+len(d.keys))*Width]})
		}
	}
	return segs
}

// Schemas returns the schemas of the tables; the first is the job's dense table. They have ids after Open.
func (l *Layout) Schemas() []*rowraft.Schema {
	all := make([]*rowraft.Schema, len(l.tables))
	for i := range l.tables {
		all[i] = &l.tables[i].schema
	}
	return all
}

// Has reports whether a table is one of the dense tables.
func (l *Layout) Has(id rowraft.TableID) bool {
	for i := range l.tables {
		if l.tables[i].schema.ID == id {
			return true
		}
	}
	return false
}

// each calls f for every parameter with its offsets in the flat weights and in the rows of all tables.
func (l *Layout) each(f func(param, flat, rows int)) {
	for i := range l.tables {
		row := l.tables[i].from * Width
		for _, p := range l.tables[i].params {
			f(p, l.Offsets[p], row)
			row += Padded(l.Params[p].Size())
		}
	}
}

// Weights writes Initial + row to flat; rows is the result of a pull.
func (l *Layout) Weights(flat, rows []float32) {
	if l.fixed {
		copy(flat, l.Initial)
		return
	}
	l.each(func(p, at, row int) {
		for i := range l.Params[p].Size() {
			flat[at+i] = l.Initial[at+i] + rows[row+i]
		}
	})
}

// Gradients writes the gradients of the flat weights to rows.
func (l *Layout) Gradients(rows, flat []float32) {
	l.each(func(p, at, row int) {
		n := l.Params[p].Size()
		copy(rows[row:row+n], flat[at:at+n])
		clear(rows[row+n : row+Padded(n)])
	})
}

// Padded returns the number of weights in the rows of a parameter of n weights.
func Padded(n int) int { return (n + Width - 1) / Width * Width }
