package models

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	. "github.com/gomlx/gomlx/core/graph" //nolint:staticcheck // graph code reads as formulas
	"github.com/gomlx/gomlx/core/tensors"
)

// DLRMGraphConfig is the shape of a [DLRMGraph].
type DLRMGraphConfig struct {
	Batch       int   // examples per step, padding included
	Dense       int   // dense features; 0 leaves out the bottom network
	Categorical int   // categorical features
	Dim         int   // weights per embedding row
	Bottom      []int // hidden layers of the bottom network; a layer of Dim follows
	Top         []int // hidden layers of the top network; a layer of 1 follows
}

// DLRMGraph is the model of function dlrm as a graph of the compute library, for accelerators.
type DLRMGraph struct {
	cfg     DLRMGraphConfig
	params  []Param
	step    *Exec
	predict *Exec

	weights []float32 // scratch: 1/N for real examples, 0 for padding
}

// NewDLRMGraph builds the model on a backend opened by package accel.
//
// Errors: CodeInvalidArgument if cfg makes no model.
func NewDLRMGraph(backend compute.Backend, cfg DLRMGraphConfig) (*DLRMGraph, error) {
	if cfg.Batch < 1 || cfg.Dim < 1 || cfg.Categorical < 1 || cfg.Dense < 0 {
		return nil,
			invalid("batch %d, dim %d, %d categorical and %d dense features: want batch, dim and categorical ≥ 1, dense ≥ 0",
				cfg.Batch, cfg.Dim, cfg.Categorical, cfg.Dense)
	}
	if cfg.vectors() < 2 {
		return nil, invalid("one categorical feature and no dense one: nothing to multiply")
	}
	for _, width := range append(append([]int(nil), cfg.Bottom...), cfg.Top...) {
		if width < 1 {
			return nil, invalid("a layer of width %d: want ≥ 1", width)
		}
	}
	m := &DLRMGraph{cfg: cfg, params: cfg.params(), weights: make([]float32, cfg.Batch)}
	var err error
	if m.step, err = NewExec(backend, m.stepGraph); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if m.predict, err = NewExec(backend, m.predictGraph); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return m, nil
}

// vectors returns the number of vectors that are multiplied in pairs.
func (c *DLRMGraphConfig) vectors() int {
	if c.Dense > 0 {
		return c.Categorical + 1
	}
	return c.Categorical
}

func (c *DLRMGraphConfig) pairs() int { return c.vectors() * (c.vectors() - 1) / 2 }

// params lists the dense weights: bottom layers, then the top's first layer,
// in two parts because its input is never concatenated, then the other layers.
func (c *DLRMGraphConfig) params() []Param {
	var params []Param
	layer := func(name string, in, out int) int {
		params = append(params,
			Param{Name: name + ".weights", Shape: []int{in, out}, FanIn: in, FanOut: out},
			Param{Name: name + ".bias", Shape: []int{out}})
		return out
	}
	if c.Dense > 0 {
		in := c.Dense
		for i, width := range c.Bottom {
			in = layer(fmt.Sprintf("bottom.%d", i), in, width)
		}
		layer("bottom.out", in, c.Dim)
		// Uniform in ±1: from the first step the bottom's output has a constant part, without which the information
		// of a single embedding averages out over the examples.
		params[len(params)-1].FanIn, params[len(params)-1].FanOut = 3, 3
	}
	first, in := 1, c.pairs()
	if len(c.Top) > 0 {
		first = c.Top[0]
	}
	if c.Dense > 0 {
		in += c.Dim
		params = append(params, Param{Name: "top.0.bottom", Shape: []int{c.Dim, first}, FanIn: in, FanOut: first})
	}
	params = append(params,
		Param{Name: "top.0.pairs", Shape: []int{c.pairs(), first}, FanIn: in, FanOut: first},
		Param{Name: "top.0.bias", Shape: []int{first}})
	in = first
	for i := 1; i <= len(c.Top); i++ {
		width := 1
		if i < len(c.Top) {
			width = c.Top[i]
		}
		in = layer(fmt.Sprintf("top.%d", i), in, width)
	}
	return params
}

// Params returns the dense weights.
func (m *DLRMGraph) Params() []Param { return m.params }

// graphLayer is an affine map in a graph: out = in·weights + bias.
type graphLayer struct{ in, weights *Node }

func graphAffine(in, weights, bias *Node) (*Node, graphLayer) {
	return Add(MatMul(in, weights), ExpandDims(bias, 0)), graphLayer{in, weights}
}

// backward returns the gradients of weights, bias and in, given that of out.
// Operands are transposed by hand because the library's own gradient multiplies
// by a transposed right side, whose small AVX-512 kernel is several times slower
// than plain Go: 42 against 8.5 ms of CPU for BenchmarkStep/demo.
func (l graphLayer) backward(out *Node) (weights, bias, in *Node) {
	return MatMul(Transpose(l.in, 0, 1), out), ReduceSum(out, 0), MatMul(out, Transpose(l.weights, 0, 1))
}

// graph is the forward pass and what the backward pass needs of it.
type graph struct {
	bottom   []graphLayer // nil without dense features
	vectors  *Node        // [B,V,D]: the bottom's output, then the embeddings
	products *Node        // [B,V·V]
	spread   *Node        // [V·V,width]
	last     *Node        // [B,D], the bottom's output; nil without dense features
	direct   *Node        // its weights into the top
	top      []graphLayer // after the first
	logits   *Node        // [B]
}

// forward builds the graph: fields [B,F·D], dense [B,N] (nil without dense
// features), params as listed.
func (m *DLRMGraph) forward(fields, dense *Node, params []*Node) *graph {
	c := &m.cfg
	take := func() *Node { p := params[0]; params = params[1:]; return p }
	g := &graph{vectors: Reshape(fields, c.Batch, c.Categorical, c.Dim)}
	if c.Dense > 0 {
		x := dense
		for i := range len(c.Bottom) + 1 {
			if i > 0 {
				x = relu(x)
			}
			var l graphLayer
			x, l = graphAffine(x, take(), take())
			g.bottom = append(g.bottom, l)
		}
		g.last = x
		g.vectors = Concatenate([]*Node{InsertAxes(x, 1), g.vectors}, 1)
	}
	v := c.vectors()
	// Transposed by hand for the reason that graphLayer.backward gives.
	g.products = Reshape(EinsumAxes(g.vectors, Transpose(g.vectors, 1, 2), [][2]int{{2, 1}}, [][2]int{{0, 0}}), c.Batch,
		v*v)

	// The products are symmetric. Instead of cutting a triangle out of them, the weights of the pairs are spread,
	// halved, over the cells on both sides of the diagonal. That costs nothing per example; cutting costs V slices
	// and V pads.
	if c.Dense > 0 {
		g.direct = take()
	}
	pairs := take()
	zero := Slice(ZerosLike(pairs), AxisRange(0, 1))
	g.spread = MulScalar(Gather(Concatenate([]*Node{pairs, zero}, 0), InsertAxes(Const(pairs.Graph(), c.spread()), -1)),
		0.5)
	x := MatMul(g.products, g.spread)
	if c.Dense > 0 {
		x = Add(x, MatMul(g.last, g.direct))
	}
	x = Add(x, ExpandDims(take(), 0))
	for range c.Top {
		var l graphLayer
		x, l = graphAffine(relu(x), take(), take())
		g.top = append(g.top, l)
	}
	g.logits = Reshape(x, c.Batch)
	return g
}

// backward returns the gradients of the fields and of the params as listed, given
// that of the logits. TestGradients compares it with differences.
func (m *DLRMGraph) backward(g *graph, slope *Node) (fields *Node, params []*Node) {
	c := &m.cfg
	// Gradients are found from the last param to the first.
	add := func(ps ...*Node) { params = append(ps, params...) }
	d := Reshape(slope, c.Batch, 1)
	for i := len(g.top) - 1; i >= 0; i-- {
		weights, bias, in := g.top[i].backward(d)
		add(weights, bias)
		d = where(g.top[i].in, in)
	}
	// d is now [B,width], at the output of the top's first layer.
	spread := MatMul(Transpose(g.products, 0, 1), d)
	// The two cells of a pair have equal gradients, each counts half.
	add(Gather(spread, InsertAxes(Const(d.Graph(), c.lower()), -1)), ReduceSum(d, 0))
	v := c.vectors()
	products := Reshape(MatMul(d, Transpose(g.spread, 0, 1)), c.Batch, v, v) // symmetric, as spread is
	vectors := MulScalar(EinsumAxes(products, g.vectors, [][2]int{{2, 1}}, [][2]int{{0, 0}}), 2)
	if c.Dense > 0 {
		add(MatMul(Transpose(g.last, 0, 1), d))
		d = Add(MatMul(d, Transpose(g.direct, 0, 1)), Reshape(Slice(vectors, AxisRange(), AxisRange(0, 1)), c.Batch, c.Dim))
		for i := len(g.bottom) - 1; i >= 0; i-- {
			weights, bias, in := g.bottom[i].backward(d)
			add(weights, bias)
			d = where(g.bottom[i].in, in) // not used after the first layer, so never computed
		}
		vectors = Slice(vectors, AxisRange(), AxisRange(1))
	}
	return Reshape(vectors, c.Batch, c.Categorical*c.Dim), params
}

// spread maps each cell of the [V,V] products to its pair, and the diagonal to
// the zero row after the last pair.
func (c *DLRMGraphConfig) spread() []int32 {
	v := c.vectors()
	cells := make([]int32, v*v)
	for i := range v {
		cells[i*v+i] = int32(c.pairs())
		for j := range i {
			pair := int32(i*(i-1)/2 + j)
			cells[i*v+j], cells[j*v+i] = pair, pair
		}
	}
	return cells
}

// lower lists the cell below the diagonal of each pair.
func (c *DLRMGraphConfig) lower() []int32 {
	var cells []int32
	for i := range c.vectors() {
		for j := range i {
			cells = append(cells, int32(i*c.vectors()+j))
		}
	}
	return cells
}

func relu(x *Node) *Node { return Max(x, ZerosLike(x)) }

// where is d where the ReLU's output y is positive, else 0.
func where(y, d *Node) *Node { return Where(GreaterThan(y, ZerosLike(y)), d, ZerosLike(d)) }

// split separates the inputs: fields, [dense], then the others.
func (m *DLRMGraph) split(in []*Node) (fields, dense *Node, rest []*Node) {
	fields, rest = in[0], in[1:]
	if m.cfg.Dense > 0 {
		dense, rest = rest[0], rest[1:]
	}
	return fields, dense, rest
}

func (m *DLRMGraph) predictGraph(in []*Node) []*Node {
	fields, dense, params := m.split(in)
	return []*Node{m.forward(fields, dense, params).logits}
}

// stepGraph returns the logits and the gradients of fields and params. The loss
// itself is computed on the host; its gradient is (σ(z) − y)·weight.
func (m *DLRMGraph) stepGraph(in []*Node) []*Node {
	fields, dense, rest := m.split(in)
	labels, weights, params := rest[0], rest[1], rest[2:]
	g := m.forward(fields, dense, params)
	fieldGrads, grads := m.backward(g, Mul(Sub(Sigmoid(g.logits), labels), weights))
	return append([]*Node{g.logits, fieldGrads}, grads...)
}

// Step implements [Model].
func (m *DLRMGraph) Step(b *Batch, params []float32, out *Result) error {
	m.setWeights(b.N)
	outputs, err := m.run(m.step, b, params, true)
	if err != nil {
		return err
	}
	defer finalize(outputs)
	if err := m.readLogits(outputs[0], b, out); err != nil {
		return err
	}
	out.FieldGrads = grow(out.FieldGrads, len(b.Fields))
	if err := read(outputs[1], out.FieldGrads); err != nil {
		return err
	}
	out.ParamGrads = grow(out.ParamGrads, len(params))
	return readGrads(outputs[2:], m.params, out.ParamGrads)
}

// setWeights sets the weights of a batch with n examples.
func (m *DLRMGraph) setWeights(n int) {
	for i := range m.weights {
		m.weights[i] = 0
		if i < n {
			m.weights[i] = 1 / float32(n)
		}
	}
}

// Predict implements [Model].
func (m *DLRMGraph) Predict(b *Batch, params []float32, out *Result) error {
	outputs, err := m.run(m.predict, b, params, false)
	if err != nil {
		return err
	}
	defer finalize(outputs)
	return m.readLogits(outputs[0], b, out)
}

// check returns an error for a batch of another shape. It does not check the fields.
func (m *DLRMGraph) check(b *Batch, params []float32) error {
	c := &m.cfg
	switch {
	case b.N < 1 || b.N > c.Batch:
		return invalid("%d examples: want 1 to %d", b.N, c.Batch)
	case len(b.Labels) != c.Batch || len(b.Dense) != c.Batch*c.Dense:
		return invalid("%d labels, %d dense numbers: want %d, %d", len(b.Labels), len(b.Dense), c.Batch, c.Batch*c.Dense)
	case len(params) != TotalSize(m.params):
		return invalid("%d dense weights: want %d", len(params), TotalSize(m.params))
	}
	return nil
}

// run copies the inputs into tensors and runs e.
func (m *DLRMGraph) run(e *Exec, b *Batch, params []float32, backward bool) ([]*tensors.Tensor, error) {
	if err := m.check(b, params); err != nil {
		return nil, err
	}
	c := &m.cfg
	if want := c.Batch * c.Categorical * c.Dim; len(b.Fields) != want {
		return nil, invalid("%d numbers of embeddings: want %d", len(b.Fields), want)
	}
	var in []*tensors.Tensor
	add := func(t *tensors.Tensor) { in = append(in, t) }
	add(tensors.FromFlatDataAndDimensions(b.Fields, c.Batch, c.Categorical*c.Dim))
	if c.Dense > 0 {
		add(tensors.FromFlatDataAndDimensions(b.Dense, c.Batch, c.Dense))
	}
	if backward {
		add(tensors.FromFlatDataAndDimensions(b.Labels, c.Batch))
		add(tensors.FromFlatDataAndDimensions(m.weights, c.Batch))
	}
	return call(e, nil, in, m.params, params)
}

func (m *DLRMGraph) readLogits(t *tensors.Tensor, b *Batch, out *Result) error {
	return tensors.ConstFlatData(t, func(logits []float32) {
		out.Predictions, out.Classes, out.Loss = grow(out.Predictions, b.N), nil, 0
		for i, z := range logits[:b.N] {
			var loss float64
			out.Predictions[i], loss = bce(float64(z), float64(b.Labels[i]))
			out.Loss += loss / float64(b.N)
		}
	})
}

// call runs e on kept, in and the tensors of params, and frees the latter two.
func call(e *Exec, kept, in []*tensors.Tensor, shapes []Param, params []float32) ([]*tensors.Tensor, error) {
	for _, p := range shapes {
		in = append(in, tensors.FromFlatDataAndDimensions(params[:p.Size()], p.Shape...))
		params = params[p.Size():]
	}
	defer finalize(in)
	args := make([]any, 0, len(kept)+len(in))
	for _, t := range slices.Concat(kept, in) {
		args = append(args, t)
	}
	out, err := e.Call(args...)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return out, nil
}

// readGrads reads a tensor for each of shapes into dst, one after the other.
func readGrads(outputs []*tensors.Tensor, shapes []Param, dst []float32) error {
	for i, p := range shapes {
		if err := read(outputs[i], dst[:p.Size()]); err != nil {
			return err
		}
		dst = dst[p.Size():]
	}
	return nil
}

// read copies the first len(dst) numbers of t.
func read(t *tensors.Tensor, dst []float32) error {
	if t.DType() != dtypes.Float32 || t.Shape().Size() < len(dst) {
		return invalid("an output of shape %s: want %d float32", t.Shape(), len(dst))
	}
	return tensors.ConstFlatData(t, func(flat []float32) { copy(dst, flat) })
}

func finalize(ts []*tensors.Tensor) {
	for _, t := range ts {
		t.MustFinalizeAll()
	}
}
