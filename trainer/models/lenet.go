package models

import (
	"fmt"
	"math"

	"github.com/gomlx/compute"
	. "github.com/gomlx/gomlx/core/graph" //nolint:staticcheck // graph code reads as formulas
	"github.com/gomlx/gomlx/core/tensors"
)

// LeNetConfig is the shape of a [LeNet].
type LeNetConfig struct {
	Batch         int // images per step, padding included
	Height, Width int // of an image, one number per pixel
	Classes       int
}

// LeNet is the convolutional network of LeCun et al., "Gradient-Based Learning
// Applied to Document Recognition" (1998), figure 2, as it is trained today:
// ReLU for tanh, maxima for sub-sampling, softmax cross entropy.
//
//	[B,H,W] ─ 6 of 5×5 ─ max 2×2 ─ 16 of 5×5 ─ max 2×2 ─ 120 ─ 84 ─ classes
//
// A convolution is a product of matrices, weights [channels, 25·inputs] by the
// 5×5 windows of its input, one per column; see [lenetGraph] for their order.
type LeNet struct {
	cfg     LeNetConfig
	params  []Param
	step    *Exec
	predict *Exec

	places  []int     // of the windows in an image, in the order of columns
	windows []float32 // scratch: [25, 16 parts, B, q] of the images
	labels  []float32 // scratch: [B, classes], 1 at the label
	weights []float32 // scratch: 1/N for real examples, 0 for padding
}

// Sizes of the network.
const (
	kernelSize     = 5
	firstChannels  = 6
	secondChannels = 16
	firstHidden    = 120
	secondHidden   = 84
)

// NewLeNet builds a LeNet on a backend opened by package accel.
//
// Errors: CodeInvalidArgument if cfg makes no model.
func NewLeNet(backend compute.Backend, cfg LeNetConfig) (*LeNet, error) {
	if cfg.Batch < 1 || cfg.Classes < 2 || cfg.Classes > 1<<12 {
		return nil, invalid("batch %d, %d classes: want a batch ≥ 1 and 2 to %d classes", cfg.Batch, cfg.Classes, 1<<12)
	}
	for _, n := range []int{cfg.Height, cfg.Width} {
		// Both maxima take the cells of a layer two by two.
		if n < 16 || n > 1<<10 || (n-kernelSize+1)%4 != 0 {
			return nil, invalid("images of %d × %d: a LeNet takes 16, 20, 24, 28 … to %d pixels each way", cfg.Height,
				cfg.Width, 1<<10)
		}
	}
	m := &LeNet{cfg: cfg, params: cfg.params(), places: cfg.places()}
	m.windows = make([]float32, kernelSize*kernelSize*cfg.Batch*len(m.places))
	m.labels = make([]float32, cfg.Batch*cfg.Classes)
	m.weights = make([]float32, cfg.Batch)
	var err error
	if m.step, err = NewExec(backend, m.stepGraph); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if m.predict, err = NewExec(backend, m.predictGraph); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return m, nil
}

// quarter returns a quarter of the first convolution's output in each direction, the smallest unit of the layout;
// the second's maxima are two cells smaller.
func (c *LeNetConfig) quarter() (h, w int) {
	return (c.Height - kernelSize + 1) / 4, (c.Width - kernelSize + 1) / 4
}

// places lists where in an image the windows begin, in the order of columns:
// by place in the 2×2 cell that a maximum is taken of, by parity of the cell's
// row and column, and only then by row and column.
func (c *LeNetConfig) places() []int {
	h, w := c.quarter()
	var places []int
	for cell := range 4 {
		for parity := range 4 {
			for y := range h {
				for x := range w {
					row, column := 2*(2*y+parity/2)+cell/2, 2*(2*x+parity%2)+cell%2
					places = append(places, row*c.Width+column)
				}
			}
		}
	}
	return places
}

// pixels is the number of pixels of an image.
func (c *LeNetConfig) pixels() int { return c.Height * c.Width }

func (c *LeNetConfig) params() []Param {
	h, w := c.quarter()
	var params []Param
	layer := func(name string, shape []int, in, out int) {
		params = append(params,
			Param{Name: name + ".weights", Shape: shape, FanIn: in, FanOut: out},
			Param{Name: name + ".bias", Shape: []int{out}})
	}
	const window = kernelSize * kernelSize
	layer("conv1", []int{firstChannels, window}, window, firstChannels)
	layer("conv2", []int{secondChannels, window * firstChannels}, window*firstChannels, secondChannels)
	flat := secondChannels * (h - 2) * (w - 2)
	layer("dense1", []int{flat, firstHidden}, flat, firstHidden)
	layer("dense2", []int{firstHidden, secondHidden}, firstHidden, secondHidden)
	layer("out", []int{secondHidden, c.Classes}, secondHidden, c.Classes)
	// A tenth of Glorot's range: at first all classes are as likely, and the loss is ln(classes).
	last := &params[len(params)-2]
	last.FanIn, last.FanOut = 100*last.FanIn, 100*last.FanOut
	return params
}

// Params returns the dense weights.
func (m *LeNet) Params() []Param { return m.params }

// lenetGraph is the forward pass and what the backward pass needs of it.
//
// Columns are ordered so that nothing is ever strided, and no small matrix
// stands where the library has its slow kernels (BenchmarkLeNetStep):
//
//	windows  [25, 4·4·B·q]      by cell of the first maximum, parity, image, place; q of each
//	pooled   [6, 4·B·q]         by parity, image, place
//	inner    [150, 4·B·p]       by cell of the second maximum, image, place; p of each
//
// A window of the second convolution begins at row 2y + cell/2; its k-th row is
// number 2(y+a/2) + a%2 for a = cell/2 + k, so it lies in the rows of parity a%2.
type lenetGraph struct {
	windows *Node
	first   *Node // [6, 4, 4·B·q], before the maxima
	pooled  *Node
	inner   *Node
	second  *Node        // [16, 4, B·p], before the maxima
	kernels *Node        // of the second convolution
	layers  []graphLayer // dense
	flat    *Node        // [B, 16·p]
	logits  *Node        // [B, classes]
}

// forward builds the graph: windows as above, params as listed.
func (m *LeNet) forward(windows *Node, params []*Node) *lenetGraph {
	c := &m.cfg
	h, w := c.quarter()
	q, p := h*w, (h-2)*(w-2)
	take := func() *Node { n := params[0]; params = params[1:]; return n }
	g := &lenetGraph{windows: windows}
	// Bias and ReLU come after the maxima: the same, for a quarter of the work.
	g.first = Reshape(MatMul(take(), windows), firstChannels, 4, 4*c.Batch*q)
	g.pooled = relu(Add(maxima(g.first), ExpandDims(take(), -1)))
	g.inner = m.inner(g.pooled)
	g.kernels = take()
	g.second = Reshape(MatMul(g.kernels, g.inner), secondChannels, 4, c.Batch*p)
	x := relu(Add(maxima(g.second), ExpandDims(take(), -1)))
	g.flat = Reshape(Transpose(Reshape(x, secondChannels, c.Batch, p), 0, 1), c.Batch, secondChannels*p)
	x = g.flat
	for i := range 3 {
		if i > 0 {
			x = relu(x)
		}
		var l graphLayer
		x, l = graphAffine(x, take(), take())
		g.layers = append(g.layers, l)
	}
	g.logits = x
	return g
}

// maxima of x, [channels, 4, n], over the four: [channels, n].
func maxima(x *Node) *Node {
	a, b, c, d := cells(x)
	return Reshape(Max(Max(a, b), Max(c, d)), x.Shape().Dimensions[0], x.Shape().Dimensions[2])
}

func cells(x *Node) (a, b, c, d *Node) {
	cell := func(i int) *Node { return Slice(x, AxisRange(), AxisRange(i, i+1)) }
	return cell(0), cell(1), cell(2), cell(3)
}

// unmaxima gives the gradient d of maxima(x), [channels, n], to the first of the
// four that is largest, and zero to the others: [channels, 4·n].
func unmaxima(x, d *Node) *Node {
	channels, n := x.Shape().Dimensions[0], x.Shape().Dimensions[2]
	d = Reshape(d, channels, 1, n)
	a, b, e, f := cells(x)
	share := func(x, y, d *Node) (*Node, *Node) {
		zero, first := ZerosLike(d), GreaterOrEqual(x, y)
		return Where(first, d, zero), Where(first, zero, d)
	}
	left, right := share(Max(a, b), Max(e, f), d)
	da, db := share(a, b, left)
	de, df := share(e, f, right)
	return Reshape(Concatenate([]*Node{da, db, de, df}, 1), channels, 4*n)
}

// eachWindow calls f for every cell of the second convolution's windows, in the
// order in which inner has them: offsets k of the kernel, then cells of the
// maximum. (row, column) < 6 is where in the input it begins.
func eachWindow(f func(row, column int)) {
	for k := range kernelSize * kernelSize {
		for cell := range 4 {
			f(k/kernelSize+cell/2, k%kernelSize+cell%2)
		}
	}
}

// inner lays out the windows of the second convolution.
func (m *LeNet) inner(pooled *Node) *Node {
	c := &m.cfg
	h, w := c.quarter()
	x := Reshape(pooled, firstChannels, 4, c.Batch, h, w)
	var from [kernelSize + 1][kernelSize + 1]*Node // [6, 1, B, h−2, w−2]
	for row := range from {
		for column := range from[row] {
			parity, y, x0 := row%2*2+column%2, row/2, column/2
			from[row][column] = Slice(x, AxisRange(), AxisRange(parity, parity+1), AxisRange(), AxisRange(y, y+h-2),
				AxisRange(x0, x0+w-2))
		}
	}
	var parts []*Node
	eachWindow(func(row, column int) { parts = append(parts, from[row][column]) })
	return Reshape(Concatenate(parts, 1), firstChannels*kernelSize*kernelSize, 4*c.Batch*(h-2)*(w-2))
}

// uninner is the gradient of pooled, given that of inner.
func (m *LeNet) uninner(d *Node) *Node {
	c := &m.cfg
	h, w := c.quarter()
	d = Reshape(d, firstChannels, 4*kernelSize*kernelSize, c.Batch, h-2, w-2)
	var from [kernelSize + 1][kernelSize + 1]*Node
	i := 0
	eachWindow(func(row, column int) {
		part := Slice(d, AxisRange(), AxisRange(i, i+1))
		i++
		from[row][column] = sum(from[row][column], part)
	})
	var parities [4]*Node
	for row := range from {
		for column := range from[row] {
			parity, y, x := row%2*2+column%2, row/2, column/2
			whole := Pad(from[row][column], ScalarZero(d.Graph(), d.DType()), PadAxis{}, PadAxis{}, PadAxis{},
				PadAxis{Start: y, End: 2 - y}, PadAxis{Start: x, End: 2 - x})
			parities[parity] = sum(parities[parity], whole)
		}
	}
	return Reshape(Concatenate(parities[:], 1), firstChannels, 4*c.Batch*h*w)
}

// sum is a + b; a may be nil.
func sum(a, b *Node) *Node {
	if a == nil {
		return b
	}
	return Add(a, b)
}

// backward returns the gradients of the params as listed, given that of the
// logits. TestLeNetGradients compares it with differences.
func (m *LeNet) backward(g *lenetGraph, d *Node) (params []*Node) {
	c := &m.cfg
	h, w := c.quarter()
	// Gradients are found from the last param to the first.
	add := func(ps ...*Node) { params = append(ps, params...) }
	for i := len(g.layers) - 1; i >= 0; i-- {
		weights, bias, in := g.layers[i].backward(d)
		add(weights, bias)
		d = where(g.layers[i].in, in) // of the first layer it is flat, behind a ReLU too
	}
	p := (h - 2) * (w - 2)
	d = Reshape(Transpose(Reshape(d, c.Batch, secondChannels, p), 0, 1), secondChannels, c.Batch*p)
	bias := ReduceSum(d, 1)
	d = unmaxima(g.second, d)
	add(contract(d, g.inner), bias)
	d = where(g.pooled, m.uninner(MatMul(Transpose(g.kernels, 0, 1), d)))
	bias = ReduceSum(d, 1)
	add(contract(unmaxima(g.first, d), g.windows), bias)
	return params
}

// contract is a·bᵀ.
func contract(a, b *Node) *Node { return EinsumAxes(a, b, [][2]int{{1, 1}}, nil) }

func (m *LeNet) predictGraph(in []*Node) []*Node {
	return []*Node{m.forward(in[0], in[1:]).logits}
}

// stepGraph returns the logits and the gradients of params. The loss itself is
// computed on the host; its gradient is (softmax(z) − y)·weight.
func (m *LeNet) stepGraph(in []*Node) []*Node {
	labels, weights, params := in[1], in[2], in[3:]
	g := m.forward(in[0], params)
	d := Mul(Sub(Softmax(g.logits, -1), labels), ExpandDims(weights, -1))
	return append([]*Node{g.logits}, m.backward(g, d)...)
}

// Step implements [Model].
func (m *LeNet) Step(b *Batch, params []float32, out *Result) error {
	outputs, err := m.run(m.step, b, params, true)
	if err != nil {
		return err
	}
	defer finalize(outputs)
	if err := m.readLogits(outputs[0], b, out); err != nil {
		return err
	}
	out.FieldGrads = out.FieldGrads[:0]
	out.ParamGrads = grow(out.ParamGrads, len(params))
	return readGrads(outputs[1:], m.params, out.ParamGrads)
}

// Predict implements [Model].
func (m *LeNet) Predict(b *Batch, params []float32, out *Result) error {
	outputs, err := m.run(m.predict, b, params, false)
	if err != nil {
		return err
	}
	defer finalize(outputs)
	return m.readLogits(outputs[0], b, out)
}

func (m *LeNet) check(b *Batch, params []float32) error {
	c := &m.cfg
	switch {
	case b.N < 1 || b.N > c.Batch:
		return invalid("%d examples: want 1 to %d", b.N, c.Batch)
	case len(b.Labels) != c.Batch || len(b.Dense) != c.Batch*c.pixels() || len(b.Fields) != 0:
		return invalid("%d labels, %d pixels, %d numbers of embeddings: want %d, %d, 0", len(b.Labels), len(b.Dense),
			len(b.Fields), c.Batch, c.Batch*c.pixels())
	case len(params) != TotalSize(m.params):
		return invalid("%d dense weights: want %d", len(params), TotalSize(m.params))
	}
	for i, y := range b.Labels[:b.N] {
		if y < 0 || y >= float32(c.Classes) || y != float32(int(y)) {
			return invalid("label %v of example %d: want 0 to %d", y, i, c.Classes-1)
		}
	}
	return nil
}

// fill lays out the windows of the images, labels and weights of b.
func (m *LeNet) fill(b *Batch) {
	c := &m.cfg
	clear(m.labels)
	for i := range m.weights {
		m.weights[i] = 0
		if i < b.N {
			m.weights[i] = 1 / float32(b.N)
			m.labels[i*c.Classes+int(b.Labels[i])] = 1
		}
	}
	q := len(m.places) / 16
	clear(m.windows)
	for k := range kernelSize * kernelSize {
		for part := range 16 {
			at := (k*16 + part) * c.Batch * q
			for i := range b.N {
				image := b.Dense[i*c.pixels()+k/kernelSize*c.Width+k%kernelSize:]
				for _, place := range m.places[part*q : (part+1)*q] {
					m.windows[at] = image[place]
					at++
				}
			}
		}
	}
}

// run copies the inputs into tensors and runs e.
func (m *LeNet) run(e *Exec, b *Batch, params []float32, backward bool) ([]*tensors.Tensor, error) {
	if err := m.check(b, params); err != nil {
		return nil, err
	}
	m.fill(b)
	c := &m.cfg
	var in []*tensors.Tensor
	add := func(t *tensors.Tensor) { in = append(in, t) }
	add(tensors.FromFlatDataAndDimensions(m.windows, kernelSize*kernelSize, c.Batch*len(m.places)))
	if backward {
		add(tensors.FromFlatDataAndDimensions(m.labels, c.Batch, c.Classes))
		add(tensors.FromFlatDataAndDimensions(m.weights, c.Batch))
	}
	return call(e, nil, in, m.params, params)
}

func (m *LeNet) readLogits(t *tensors.Tensor, b *Batch, out *Result) error {
	return tensors.ConstFlatData(t, func(z []float32) { crossEntropy(z, m.cfg.Classes, b.Labels, b.N, out) })
}

// crossEntropy fills out.Loss, Predictions and Classes from logits, [N,classes].
func crossEntropy(logits []float32, classes int, labels []float32, n int, out *Result) {
	out.Predictions, out.Classes = grow(out.Predictions, n), grow(out.Classes, n)
	total := 0.0
	for i := range n {
		z := logits[i*classes : (i+1)*classes]
		best := 0
		for k, v := range z {
			if v > z[best] {
				best = k
			}
		}
		// log(Σ e^z) − z[y], without overflow.
		sum := 0.0
		for _, v := range z {
			sum += math.Exp(float64(v) - float64(z[best]))
		}
		loss := math.Log(sum) + float64(z[best]) - float64(z[int(labels[i])])
		total += loss
		out.Predictions[i], out.Classes[i] = float32(math.Exp(-loss)), int32(best)
	}
	out.Loss = total / float64(n)
}
