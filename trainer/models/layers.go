package models

import "github.com/rowraft/rowraft/trainer/models/kernel"

// split separates rows whose first number is a linear weight from their embeddings.
type split struct {
	x                  *node // [batch, features · (1 + dim)]
	linear, embeddings *node // [batch, features], [batch, features · dim]
	dim                int
}

// split returns the linear weights and the embeddings of the fields, whose rows are those of linearFirst.
func (n *net) split() (linear, embeddings *node) {
	features, dim := len(n.cfg.Widths), n.cfg.Dim
	l := &split{x: n.fields, linear: n.node("linear", features), embeddings: n.node("fields", features*dim), dim: dim}
	n.layers = append(n.layers, l)
	return l.linear, l.embeddings
}

func (l *split) forward(n int) {
	for i := range n {
		x, e := l.x.row(i), l.embeddings.row(i)
		for f := range l.linear.row(i) {
			l.linear.row(i)[f] = x[0]
			copy(e[:l.dim], x[1:])
			x, e = x[1+l.dim:], e[l.dim:]
		}
	}
}

// backward sets what no other layer reads.
func (l *split) backward(n int) {
	l.x.set = true
	for i := range n {
		d, e := l.x.grad(i), l.embeddings.grad(i)
		for _, g := range l.linear.grad(i) {
			d[0] = g
			copy(d[1:], e[:l.dim])
			d, e = d[1+l.dim:], e[l.dim:]
		}
	}
}

// total is the sum of an example's numbers.
type total struct{ x, out *node }

func (n *net) sum(x *node) *node {
	l := &total{x: x, out: n.node(x.name, 1)}
	n.layers = append(n.layers, l)
	return l.out
}

func (l *total) forward(n int) {
	for i := range n {
		s := float32(0)
		for _, v := range l.x.row(i) {
			s += v
		}
		l.out.row(i)[0] = s
	}
}

func (l *total) backward(n int) {
	add := l.x.adds()
	for i := range n {
		g, d := l.out.grad(i)[0], l.x.grad(i)
		for k := range d {
			if add {
				d[k] += g
			} else {
				d[k] = g
			}
		}
	}
}

// plus is the sum of nodes. A node of one number counts in each number of the sum.
type plus struct {
	xs  []*node
	out *node
}

func (n *net) plus(xs ...*node) *node {
	width := 1
	for _, x := range xs {
		width = max(width, x.width)
	}
	l := &plus{xs: xs, out: n.node("sum", width)}
	n.layers = append(n.layers, l)
	return l.out
}

func (l *plus) forward(n int) {
	for i := range n {
		y := l.out.row(i)
		clear(y)
		for _, x := range l.xs {
			v := x.row(i)
			for k := range y {
				y[k] += v[min(k, x.width-1)]
			}
		}
	}
}

func (l *plus) backward(n int) {
	for _, x := range l.xs {
		add := x.adds()
		for i := range n {
			d := x.grad(i)
			if !add {
				clear(d)
			}
			for k, g := range l.out.grad(i) {
				d[min(k, x.width-1)] += g
			}
		}
	}
}

// concat has the numbers of some nodes one after the other.
type concat struct {
	xs  []*node
	out *node
}

// concat joins the xs; those of width 0 have no effect.
func (n *net) concat(name string, xs ...*node) *node {
	l, width := &concat{}, 0
	for _, x := range xs {
		if width += x.width; x.width > 0 {
			l.xs = append(l.xs, x)
		}
	}
	l.out = n.node(name, width)
	n.layers = append(n.layers, l)
	return l.out
}

func (l *concat) forward(n int) {
	for i := range n {
		y := l.out.row(i)
		for _, x := range l.xs {
			y = y[copy(y, x.row(i)):]
		}
	}
}

func (l *concat) backward(n int) {
	at := 0
	for _, x := range l.xs {
		if !x.still {
			add := x.adds()
			for i := range n {
				x.put(i, l.out.grad(i)[at:at+x.width], add)
			}
		}
		at += x.width
	}
}

// gate is x0 ⊙ u + x, number by number.
type gate struct{ x0, u, x, out *node }

// cross adds a cross layer of DCN-v2: x0 ⊙ (W·x + b) + x.
func (n *net) cross(name string, x0, x *node) *node {
	l := &gate{x0: x0, u: n.affine(name, x.width, false, x), x: x}
	l.out = n.node(name, x.width)
	n.layers = append(n.layers, l)
	return l.out
}

func (l *gate) forward(n int) {
	n *= l.out.sv // the strides of all four are equal: each is a node of this width, and none is an input
	copy(l.out.v[:n], l.x.v)
	kernel.Mul(l.out.v[:n], l.x0.v, l.u.v, true)
}

func (l *gate) backward(n int) {
	n *= l.out.sd
	d := l.out.d[:n]
	l.u.set = true
	kernel.Mul(l.u.d[:n], d, l.x0.v, false)
	if l.x.adds() {
		kernel.Add(l.x.d[:n], d)
	} else {
		copy(l.x.d, d)
	}
	kernel.Mul(l.x0.d[:n], d, l.u.v, l.x0.adds())
}

// fm is the second order of a factorization machine: the sum of the dot products of all pairs of embeddings, computed
// as ½·Σ((Σv)² − Σv²), Rendle (2010), lemma 3.1.
type fm struct {
	x, out *node
	dim    int
	sums   []float32 // [batch, dim], Σv
}

// fm adds the second order of the embeddings x.
func (n *net) fm(x *node) *node {
	l := &fm{x: x, out: n.node("fm", 1), dim: n.cfg.Dim}
	n.layers = append(n.layers, l)
	return l.out
}

func (l *fm) forward(n int) {
	l.sums = grow(l.sums, n*l.dim)
	clear(l.sums)
	for i := range n {
		s, squares, total := l.sums[i*l.dim:][:l.dim], float32(0), float32(0)
		for x := l.x.row(i); len(x) > 0; x = x[l.dim:] {
			for k, v := range x[:l.dim] {
				s[k] += v
				squares += float32(v * v)
			}
		}
		for _, v := range s {
			total += float32(v * v)
		}
		l.out.row(i)[0] = 0.5 * (total - squares)
	}
}

func (l *fm) backward(n int) {
	add := l.x.adds()
	for i := range n {
		g, s := l.out.grad(i)[0], l.sums[i*l.dim:][:l.dim]
		d := l.x.grad(i)
		for x := l.x.row(i); len(x) > 0; x, d = x[l.dim:], d[l.dim:] {
			for k, v := range x[:l.dim] {
				if add {
					d[k] += float32(g * (s[k] - v))
				} else {
					d[k] = g * (s[k] - v)
				}
			}
		}
	}
}
