package models

import "github.com/rowraft/rowraft/trainer/models/kernel"

// pairs is the dot products of all pairs of an example's vectors: those of vector 1 with 0, 2 with 0, 2 with 1, and so
// on.
type pairs struct {
	out     *node
	xs      []*node
	dim     int
	vectors int

	// Of one example.
	rows       []float32 // [vectors, dim], rows padded
	transposed []float32 // [dim, vectors], rows padded
	products   []float32 // [vectors, vectors], rows padded
	grads      []float32 // as rows

	add []bool // of xs: add to the gradient
}

// pairs adds the products of the vectors of dim numbers that the xs consist of.
func (n *net) pairs(name string, dim int, xs ...*node) *node {
	l := &pairs{xs: xs, dim: dim, add: make([]bool, len(xs))}
	for _, x := range xs {
		l.vectors += x.width / dim
	}
	l.out = n.node(name, l.vectors*(l.vectors-1)/2)
	stride := kernel.Pad(l.vectors)
	l.rows, l.grads = make([]float32, l.vectors*kernel.Pad(dim)), make([]float32, l.vectors*kernel.Pad(dim))
	l.transposed, l.products = make([]float32, dim*stride), make([]float32, l.vectors*stride)
	n.layers = append(n.layers, l)
	return l.out
}

// gather copies the vectors of an example to rows.
func (l *pairs) gather(example int) {
	at, stride := 0, kernel.Pad(l.dim)
	for _, x := range l.xs {
		v := x.row(example)
		if stride == l.dim {
			at += copy(l.rows[at:], v)
			continue
		}
		for ; len(v) > 0; v = v[l.dim:] {
			copy(l.rows[at:], v[:l.dim])
			at += stride
		}
	}
}

func (l *pairs) forward(n int) {
	stride, width := kernel.Pad(l.vectors), kernel.Pad(l.dim)
	for e := range n {
		l.gather(e)
		for i := range l.vectors {
			at := i
			for _, v := range l.rows[i*width:][:l.dim] {
				l.transposed[at] = v
				at += stride
			}
		}
		kernel.Gemm(l.products, stride, kernel.Matrix{V: l.rows, Rows: width, Columns: 1}, l.transposed, stride, l.vectors,
			stride, l.dim, false)
		out := l.out.row(e)
		for i := 1; i < l.vectors; i++ {
			out = out[copy(out[:i], l.products[i*stride:]):]
		}
	}
}

// backward: the gradient of vector i is the sum over j of the gradient of the pair (i, j) times vector j.
func (l *pairs) backward(n int) {
	stride, width := kernel.Pad(l.vectors), kernel.Pad(l.dim)
	for i, x := range l.xs {
		l.add[i] = x.adds()
	}
	for i := range l.vectors {
		l.products[i*stride+i] = 0
	}
	for e := range n {
		d := l.out.grad(e)
		for i := 1; i < l.vectors; i++ {
			row, column := l.products[i*stride:][:i], i
			for j, g := range d[:i] {
				row[j] = g
				l.products[column] = g
				column += stride
			}
			d = d[i:]
		}
		l.gather(e)
		kernel.Gemm(l.grads, width, kernel.Matrix{V: l.products, Rows: stride, Columns: 1}, l.rows, width, l.vectors, width,
			l.vectors, false)
		at := 0
		for i, x := range l.xs {
			if width == l.dim {
				x.put(e, l.grads[at:at+x.width], l.add[i])
				at += x.width
				continue
			}
			for v := 0; v < x.width; v += l.dim {
				part := x.grad(e)[v : v+l.dim]
				if l.add[i] {
					kernel.Add(part, l.grads[at:])
				} else {
					copy(part, l.grads[at:])
				}
				at += width
			}
		}
	}
}
