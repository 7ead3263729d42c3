package trainer

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/tables"
	"github.com/rowraft/rowraft/trainer/tensor"
)

// denseLayout maps the dense weights, one flat slice, to rows of dense tables: a weight is initial + row. The job's
// dense table has the parameters, each as the tensor of its own number. A parameter that a server initializes has a
// table of its own. Parameters that the trainers keep are not in the layout. The rows of all tables form one slice,
// too. Immutable after the run has begun.
type denseLayout struct {
	params  []models.Param
	configs []ParameterConfig // of params
	tensors []*tensor.Tensor  // of params
	places  []int             // first weight of each of params in the flat slice
	initial []float32         // flat; zeros where the table has the whole weight; Resume replaces it
	sizes   []int             // number of weights of each tensor
	tables  []denseTable
	rows    int // of all tables
}

// denseTable is one table, which may have no rows.
type denseTable struct {
	schema rowraft.Schema
	params []int         // parameters in this table, ascending
	keys   []rowraft.Key // of all rows, strictly ascending
	from   int           // first of its rows in the rows of all tables
}

// newDenseLayout returns the layout of a model's parameters.
func newDenseLayout(c *Config, params []models.Param) (*denseLayout, error) {
	if err := c.checkParameters(params); err != nil {
		return nil, err
	}
	l := &denseLayout{params: params, initial: make([]float32, models.TotalSize(params)), tables: make([]denseTable, 1)}
	models.Initial(l.initial, params, c.Seed)
	at := 0
	for i, p := range params {
		shape := make([]int64, len(p.Shape))
		for k, d := range p.Shape {
			shape[k] = int64(d)
		}
		t, err := tensor.New(p.Name, uint32(i), denseWidth, shape...)
		if err != nil {
			return nil, err
		}
		conf := c.parameter(p.Name)
		l.configs, l.tensors = append(l.configs, conf), append(l.tensors, t)
		l.sizes, l.places = append(l.sizes, p.Size()), append(l.places, at)
		if conf.Init == InitSeed && conf.Placement == PlaceServers {
			if err := c.Dense.fitsDifferences(p.Name); err != nil {
				return nil, err
			}
		} else {
			clear(l.initial[at : at+p.Size()])
		}
		at += p.Size()
		if conf.Placement == PlaceTrainers {
			continue
		}
		table := 0
		if conf.Init == InitServer {
			table = len(l.tables)
			l.tables = append(l.tables, denseTable{schema: c.serverTable(p)})
		}
		d := &l.tables[table]
		d.params = append(d.params, i)
		d.keys = t.AppendKeys(d.keys, 0, t.Rows())
	}
	for i := range l.tables {
		l.tables[i].from = l.rows
		l.rows += len(l.tables[i].keys)
	}
	return l, nil
}

// serverTable returns the table of a parameter that the servers initialize: with the ranges of models.Initial.
func (c *Config) serverTable(p models.Param) rowraft.Schema {
	s := rowraft.Schema{
		Name: c.Job + tables.DenseSuffix + "." + p.Name, Kind: rowraft.Dense, Dim: denseWidth,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
	}
	if p.FanIn+p.FanOut > 0 {
		limit := float32(math.Sqrt(6 / float64(p.FanIn+p.FanOut)))
		s.Initializer = rowraft.Initializer{Kind: rowraft.InitUniform, Seed: c.Seed, A: -limit, B: limit}
	}
	s.Optimizer, _ = c.Dense.optimizer()
	_ = c.Dense.policies(&s)
	if c.Mode == Geo {
		s.Optimizer = rowraft.Optimizer{Kind: rowraft.Add}
	}
	return s
}

// open creates the missing tables of single parameters; dense is the table of the others.
func (l *denseLayout) open(ctx context.Context, t tables.Tables, dense rowraft.Schema, patience time.Duration) error {
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

// segments appends the segments of the dense tables; values are the rows of all of them.
func (l *denseLayout) segments(segs []tables.Segment, values []float32) []tables.Segment {
	for i := range l.tables {
		if d := &l.tables[i]; len(d.keys) > 0 {
			segs = append(segs, tables.Segment{Table: d.schema.ID, Dim: denseWidth, Keys: d.keys,
				Values: values[d.from*denseWidth : (d.from+len(d.keys))*denseWidth]})
		}
	}
	return segs
}

// has reports whether a table is one of the dense tables.
func (l *denseLayout) has(id rowraft.TableID) bool {
	for i := range l.tables {
		if l.tables[i].schema.ID == id {
			return true
		}
	}
	return false
}

// each calls f for every parameter with its offsets in the flat weights and in the rows of all tables.
func (l *denseLayout) each(f func(param, flat, rows int)) {
	for i := range l.tables {
		row := l.tables[i].from * denseWidth
		for _, p := range l.tables[i].params {
			f(p, l.places[p], row)
			row += padded(l.sizes[p])
		}
	}
}

// weights writes initial + row to flat; rows is the result of a pull.
func (l *denseLayout) weights(flat, rows []float32) {
	l.each(func(p, at, row int) {
		for i := range l.sizes[p] {
			flat[at+i] = l.initial[at+i] + rows[row+i]
		}
	})
}

// gradients writes the gradients of the flat weights to rows.
func (l *denseLayout) gradients(rows, flat []float32) {
	l.each(func(p, at, row int) {
		n := l.sizes[p]
		copy(rows[row:row+n], flat[at:at+n])
		clear(rows[row+n : row+padded(n)])
	})
}

func padded(n int) int { return (n + denseWidth - 1) / denseWidth * denseWidth }
