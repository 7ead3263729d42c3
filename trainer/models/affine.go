package models

import (
	"fmt"

	"github.com/rowraft/rowraft/trainer/models/kernel"
)

// affine is out = Σ x·weights + bias, then maybe ReLU.
type affine struct {
	out      *node
	relu     bool
	inputs   []affineInput
	bias     []float32 // of the params
	biasGrad []float32 // padded
}

// affineInput is one x with its weights.
type affineInput struct {
	x          *node
	weights    []float32 // [in, out], out padded
	padded     []float32 // memory of weights, if they need padding
	transposed []float32 // [out, in], in padded
	grads      []float32 // as weights
}

// affine adds a layer of out numbers over the xs, of which those of width 0 have no effect. Its weights are
// NAME.weights, or NAME.X for each of several xs, and NAME.bias.
func (n *net) affine(name string, out int, relu bool, xs ...*node) *node {
	l := &affine{out: n.node(name, out), relu: relu, biasGrad: make([]float32, kernel.Pad(out))}
	in := 0
	for _, x := range xs {
		in += x.width
	}
	for _, x := range xs {
		if x.width == 0 {
			continue
		}
		suffix := x.name
		if len(xs) == 1 {
			suffix = "weights"
		}
		n.weights(Param{Name: name + "." + suffix, Shape: []int{x.width, out}, FanIn: in, FanOut: out})
		l.inputs = append(l.inputs, affineInput{x: x, grads: make([]float32, x.width*kernel.Pad(out))})
	}
	n.weights(Param{Name: name + ".bias", Shape: []int{out}})
	n.layers = append(n.layers, l)
	return l.out
}

// linear adds a layer of one number over the dense features, whose weights are zeros at first: numbers that are not
// standardized would decide the first predictions.
func (n *net) linear(name string) *node {
	first := len(n.params)
	y := n.affine(name, 1, false, n.dense)
	for i := range n.params[first:] {
		p := &n.params[first+i]
		p.FanIn, p.FanOut = 0, 0
	}
	return y
}

// deep adds hidden layers with ReLU over the xs, NAME.0 and so on, and a last layer of one number for each task.
func (n *net) deep(name string, hidden []int, xs ...*node) *node {
	return n.affine(fmt.Sprintf("%s.%d", name, len(hidden)), n.cfg.tasks(), false, n.mlp(name, hidden, xs...)...)
}

// mlp adds hidden layers with ReLU over the xs, NAME.0 and so on, and returns the last, or the xs if there are none.
func (n *net) mlp(name string, hidden []int, xs ...*node) []*node {
	for i, width := range hidden {
		xs = []*node{n.affine(fmt.Sprintf("%s.%d", name, i), width, true, xs...)}
	}
	return xs
}

func (l *affine) size() int {
	n := l.out.width
	for i := range l.inputs {
		n += l.inputs[i].x.width * l.out.width
	}
	return n
}

func (l *affine) load(params []float32, backward bool) {
	out := l.out.width
	for i := range l.inputs {
		p := &l.inputs[i]
		in := p.x.width
		p.weights = pad(&p.padded, params[:in*out], in, out)
		if backward && !p.x.still {
			p.transposed = transpose(p.transposed, params[:in*out], in, out)
		}
		params = params[in*out:]
	}
	l.bias = params
}

// pad returns a matrix with rows of a padded width, in the memory of buf if it is not m itself.
func pad(buf *[]float32, m []float32, rows, columns int) []float32 {
	stride := kernel.Pad(columns)
	if stride == columns {
		return m
	}
	if len(*buf) == 0 {
		*buf = make([]float32, rows*stride)
	}
	for i := range rows {
		copy((*buf)[i*stride:], m[i*columns:(i+1)*columns])
	}
	return *buf
}

// transpose returns the [columns, rows] of m, [rows, columns], with rows of a padded width, in the memory of buf.
func transpose(buf, m []float32, rows, columns int) []float32 {
	stride := kernel.Pad(rows)
	if len(buf) == 0 {
		buf = make([]float32, columns*stride)
	}
	for i := range rows {
		for j, v := range m[i*columns : (i+1)*columns] {
			buf[j*stride+i] = v
		}
	}
	return buf
}

func (l *affine) forward(n int) {
	y := l.out
	for i := range l.inputs {
		p := &l.inputs[i]
		kernel.Gemm(y.v, y.sv, kernel.Matrix{V: p.x.v, Rows: p.x.sv, Columns: 1}, p.weights, y.sv, n, y.sv, p.x.width, i > 0)
	}
	if len(l.inputs) == 0 {
		clear(y.v[:n*y.sv])
	}
	for i := range n {
		kernel.Add(y.row(i), l.bias)
	}
	if l.relu {
		kernel.Relu(y.v[:n*y.sv])
	}
}

func (l *affine) backward(n int) {
	y := l.out
	if l.relu {
		kernel.ReluGrad(y.d[:n*y.sd], y.v[:n*y.sv])
	}
	clear(l.biasGrad)
	for i := range n {
		kernel.Add(l.biasGrad[:y.width], y.grad(i))
	}
	for i := range l.inputs {
		p := &l.inputs[i]
		x := p.x
		kernel.Gemm(p.grads, y.sd, kernel.Matrix{V: x.v, Rows: 1, Columns: x.sv}, y.d, y.sd, x.width, y.sd, n, false)
		if !x.still {
			kernel.Gemm(x.d, x.sd, kernel.Matrix{V: y.d, Rows: y.sd, Columns: 1}, p.transposed, x.sd, n, x.sd, y.width, x.adds())
		}
	}
}

func (l *affine) store(grads []float32) {
	out, stride := l.out.width, l.out.sd
	for i := range l.inputs {
		p := &l.inputs[i]
		for k := range p.x.width {
			copy(grads[:out], p.grads[k*stride:])
			grads = grads[out:]
		}
	}
	copy(grads, l.biasGrad)
}
