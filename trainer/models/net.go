package models

import (
	"github.com/rowraft/rowraft/trainer/models/kernel"
)

// net is a model of layers that run on the CPU, forward in the order in which they were added and backward in the
// reverse order. A model is one function that adds its layers to a net and returns its head; layers.go has the layers.
// All memory is allocated at the first step.
type net struct {
	cfg    *Config
	params []Param
	layers []layer
	nodes  []*node
	head   head

	dense  *node // the dense features; width 0 without any
	fields *node // the embeddings
}

// layer computes a node from others. forward and backward work on the first n examples; backward adds to the gradients
// of the nodes that it reads, or sets them if it is the first.
type layer interface {
	forward(n int)
	backward(n int)
}

// weighted is a layer with dense weights. load gets those of the layer before forward; backward is false if only
// forward follows. store writes their gradients after backward.
type weighted interface {
	layer
	size() int
	load(params []float32, backward bool)
	store(grads []float32)
}

// head computes loss and predictions from the last nodes, and begins the gradients.
type head interface {
	forward(b *Batch, out *Result)
	backward(b *Batch)
}

// node is width numbers for each example, with their gradient.
type node struct {
	name   string
	width  int
	v, d   []float32 // [batch, stride]; d is nil where no gradient is wanted
	sv, sd int       // strides of v and d
	set    bool      // d has the gradient of a later layer
	input  bool      // v belongs to the batch
	still  bool      // no gradient is wanted
}

// row returns the numbers of an example.
func (x *node) row(i int) []float32 { return x.v[i*x.sv:][:x.width] }

// grad returns the gradient of an example.
func (x *node) grad(i int) []float32 { return x.d[i*x.sd:][:x.width] }

// adds reports whether a layer must add to the gradient of x, and marks it as set.
func (x *node) adds() bool {
	was := x.set
	x.set = true
	return was
}

// put copies src to a row of x's gradient, or adds it.
func (x *node) put(i int, src []float32, add bool) {
	if add {
		kernel.Add(x.grad(i), src)
	} else {
		copy(x.grad(i), src)
	}
}

// node adds a node to n.
func (n *net) node(name string, width int) *node {
	x := &node{name: name, width: width, sv: kernel.Pad(width), sd: kernel.Pad(width)}
	n.nodes = append(n.nodes, x)
	return x
}

// newNet builds the model that wire adds to a net.
func newNet(c *Config, wire func(*net) (head, error)) (Model, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	n := &net{cfg: c}
	n.dense = &node{name: "dense", width: c.Dense, sv: c.Dense, input: true, still: true}
	width := 0
	for _, w := range c.Widths {
		width += w
	}
	n.fields = n.node("fields", width)
	n.fields.input, n.fields.sv = true, width
	var err error
	n.head, err = wire(n)
	return n, err
}

// weights adds a dense weight.
func (n *net) weights(p Param) { n.params = append(n.params, p) }

// Params implements [Model].
func (n *net) Params() []Param { return n.params }

// Step implements [Model].
func (n *net) Step(b *Batch, params []float32, out *Result) error {
	if err := n.forward(b, params, out, true); err != nil {
		return err
	}
	out.FieldGrads = grow(out.FieldGrads, len(b.Fields))
	out.ParamGrads = grow(out.ParamGrads, len(params))
	f := n.fields
	direct := f.sd == f.width // the gradient of the fields needs no padding
	for _, x := range n.nodes {
		x.set = false
		if x == f && direct {
			x.d = out.FieldGrads
		} else {
			x.d = grow(x.d, n.cfg.Batch*x.sd)
		}
	}
	n.head.backward(b)
	grads := out.ParamGrads
	for i := len(n.layers) - 1; i >= 0; i-- {
		n.layers[i].backward(b.N)
		if w, ok := n.layers[i].(weighted); ok {
			from := len(grads) - w.size()
			w.store(grads[from:])
			grads = grads[:from]
		}
	}
	switch {
	case !f.set:
		clear(out.FieldGrads)
	case !direct:
		for i := range b.N {
			copy(out.FieldGrads[i*f.width:], f.grad(i))
		}
	}
	return nil
}

// Predict implements [Model].
func (n *net) Predict(b *Batch, params []float32, out *Result) error {
	return n.forward(b, params, out, false)
}

func (n *net) forward(b *Batch, params []float32, out *Result, backward bool) error {
	c := n.cfg
	switch {
	case b.N < 1 || b.N > c.Batch:
		return invalid("%d examples: want 1 to %d", b.N, c.Batch)
	case len(b.Labels) != c.Batch*c.tasks() || len(b.Dense) != c.Batch*c.Dense || len(b.Fields) != c.Batch*n.fields.width:
		return invalid("%d labels, %d dense numbers, %d numbers of embeddings: want %d, %d, %d", len(b.Labels),
			len(b.Dense), len(b.Fields), c.Batch*c.tasks(), c.Batch*c.Dense, c.Batch*n.fields.width)
	case len(params) != TotalSize(n.params):
		return invalid("%d dense weights: want %d", len(params), TotalSize(n.params))
	}
	n.dense.v, n.fields.v = b.Dense, b.Fields
	for _, x := range n.nodes {
		if !x.input {
			x.v = grow(x.v, c.Batch*x.sv)
		}
	}
	for _, l := range n.layers {
		if w, ok := l.(weighted); ok {
			w.load(params[:w.size()], backward)
			params = params[w.size():]
		}
		l.forward(b.N)
	}
	n.head.forward(b, out)
	return nil
}
