package models

import (
	"fmt"

	"github.com/gomlx/compute"
	. "github.com/gomlx/gomlx/core/graph" //nolint:staticcheck // graph code reads as formulas
	"github.com/gomlx/gomlx/core/tensors"
)

// DLRMRows is a [DLRMGraph] that keeps rows of its embeddings in the memory of the device. The caller decides which
// row is at which place. A batch uploads the rows that are not there, and downloads one gradient for each of its rows.
//
// One goroutine calls Step. Send may run concurrently with Step, on another batch.
type DLRMRows struct {
	graph   *DLRMGraph
	backend compute.Backend
	rows    *tensors.Tensor // [rows, dim]; row 0 is zeros
	update  *Exec
	step    *Exec
}

// RowBatch is the embeddings of a batch. Its memory is reused from batch to batch.
type RowBatch struct {
	Places []int32   // where the batch's rows are on the device; all different
	Index  []int32   // [batch, features]: which of Places; len(Places) where there is no value, and for padding
	New    []int32   // places that are overwritten before the step, all different
	Rows   []float32 // [len(New), dim]: what they are overwritten with; finite

	sent []*tensors.Tensor // places, index, new, rows
}

// shapesAtOnce is how many shapes of batches have a compiled graph: 4 for each doubling of the number of rows.
const shapesAtOnce = 64

// NewDLRMRows returns a model with memory for so many rows. backend is the library's own, accel.Backend.Backend: the
// tensors that it returns belong to no other.
//
// Errors: CodeInvalidArgument if cfg makes no model.
func NewDLRMRows(backend compute.Backend, cfg DLRMGraphConfig, rows int) (*DLRMRows, error) {
	g, err := NewDLRMGraph(backend, cfg)
	if err != nil {
		return nil, err
	}
	m := &DLRMRows{graph: g, backend: backend}
	m.rows = tensors.FromFlatDataAndDimensions(make([]float32, rows*cfg.Dim), rows, cfg.Dim)
	if m.update, err = NewExec(backend, updateRows); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if m.step, err = NewExec(backend, m.stepGraph); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	m.update.SetMaxCache(shapesAtOnce)
	m.step.SetMaxCache(shapesAtOnce)
	return m, nil
}

// updateRows overwrites the rows at places: old − old = 0, 0 + new = new. It is exact for finite numbers, and in place
// where the backend can, unlike a selection between two whole memories.
func updateRows(rows, places, values *Node) *Node {
	at := InsertAxes(places, -1)
	rows = ScatterSum(rows, at, Neg(Gather(rows, at)), false, false)
	return ScatterSum(rows, at, values, false, false)
}

// stepGraph is that of the graph, between the rows and their gradients.
func (m *DLRMRows) stepGraph(in []*Node) []*Node {
	c := &m.graph.cfg
	rows, index := Gather(in[0], InsertAxes(in[1], -1)), InsertAxes(in[2], -1)
	fields := Reshape(Gather(rows, index), c.Batch, c.Categorical*c.Dim)
	out := m.graph.stepGraph(append([]*Node{fields}, in[3:]...))
	out[1] = ScatterSum(ZerosLike(rows), index, Reshape(out[1], c.Batch, c.Categorical, c.Dim), false, false)
	return out
}

// Send copies b to the device.
func (m *DLRMRows) Send(b *RowBatch) error {
	c := &m.graph.cfg
	if len(b.Index) != c.Batch*c.Categorical || len(b.Rows) != len(b.New)*c.Dim {
		return invalid("%d indices, %d numbers of %d new rows: want %d, %d", len(b.Index), len(b.Rows), len(b.New),
			c.Batch*c.Categorical, len(b.New)*c.Dim)
	}
	// At least one place more, which is 0: that of no value.
	b.Places = padded(b.Places, 1+len(b.Places))
	b.New = padded(b.New, len(b.New))
	b.Rows = zeroPadded(b.Rows, len(b.New)*c.Dim)
	b.sent = append(b.sent[:0], tensors.FromFlatDataAndDimensions(b.Places, len(b.Places)),
		tensors.FromFlatDataAndDimensions(b.Index, c.Batch, c.Categorical),
		tensors.FromFlatDataAndDimensions(b.New, len(b.New)),
		tensors.FromFlatDataAndDimensions(b.Rows, len(b.New), c.Dim))
	for _, t := range b.sent {
		if err := t.MaterializeOnDevice(m.backend, m.backend.HasSharedBuffers(), 0); err != nil {
			return fmt.Errorf("model: copy to the device: %w", err)
		}
	}
	return nil
}

// padded appends zeros up to the next of the sizes {4, 5, 6, 7} × 2^k: one graph is compiled for each size.
func padded(s []int32, least int) []int32 { return zeroPadded(s, sizeFor(least)) }

func sizeFor(n int) int {
	unit := 16
	for 8*unit <= n {
		unit *= 2
	}
	return max((n+unit-1)/unit, 4) * unit
}

func zeroPadded[T int32 | float32](s []T, n int) []T {
	for len(s) < n {
		s = append(s, 0)
	}
	return s
}

// Step writes the new rows of rows, which was sent, and runs the model forward and backward. The gradients of the
// batch's rows go to grads, dim numbers each. All others go to out, but those of fields. b.Fields is not used.
func (m *DLRMRows) Step(b *Batch, rows *RowBatch, params []float32, out *Result, grads []float32) error {
	g, c := m.graph, &m.graph.cfg
	if err := g.check(b, params); err != nil {
		return err
	}
	defer func() { finalize(rows.sent) }()
	old, err := DonateTensorBuffer(m.rows, m.backend, 0)
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	updated, err := m.update.Call(old, rows.sent[2], rows.sent[3])
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	m.rows = updated[0]
	in := []*tensors.Tensor{}
	own := func(t *tensors.Tensor) { in = append(in, t) }
	if c.Dense > 0 {
		own(tensors.FromFlatDataAndDimensions(b.Dense, c.Batch, c.Dense))
	}
	g.setWeights(b.N)
	own(tensors.FromFlatDataAndDimensions(b.Labels, c.Batch))
	own(tensors.FromFlatDataAndDimensions(g.weights, c.Batch))
	outputs, err := call(m.step, []*tensors.Tensor{m.rows, rows.sent[0], rows.sent[1]}, in, g.params, params)
	if err != nil {
		return err
	}
	defer finalize(outputs)
	if err := g.readLogits(outputs[0], b, out); err != nil {
		return err
	}
	if err := read(outputs[1], grads); err != nil {
		return err
	}
	out.FieldGrads = out.FieldGrads[:0]
	out.ParamGrads = grow(out.ParamGrads, len(params))
	return readGrads(outputs[2:], g.params, out.ParamGrads)
}
