package models

import (
	"math"
	"slices"

	"github.com/rowraft/rowraft/trainer/models/kernel"
)

// twoTower is a retrieval model: a network over the features of a query and one over those of an item, whose outputs
// have the length 1. Their dot product divided by the temperature is the score. The loss of a positive example is the
// cross entropy of its item among all items of the batch (Yi et al. 2019, "Sampling-Bias-Corrected Neural Modeling",
// equation 5, without the correction). An equal item does not count as a negative. Examples with label 0 have no loss,
// but their items are negatives. A batch on several [Threads] has the negatives of each slice.
func twoTower(n *net) (head, error) {
	c := n.cfg
	if c.tasks() != 1 || c.Loss == MSE {
		return nil, invalid("%d tasks, loss %q: two towers want one label, 0 or 1", c.tasks(), c.Loss)
	}
	if c.Items < 1 || c.Items >= len(c.Widths) {
		return nil, invalid("%d of %d features describe the item: want at least one, and one for the query", c.Items,
			len(c.Widths))
	}
	at := 0
	for _, w := range c.Widths[:len(c.Widths)-c.Items] {
		at += w
	}
	query, item := n.cut("query", n.fields, 0, at), n.cut("item", n.fields, at, n.fields.width)
	h := &towersHead{items: item, temperature: temperature}
	q, v := n.mlp("query", c.Top, n.dense, query), n.mlp("item", c.Top, item)
	h.q = n.unit(n.affine("query.out", c.Dim, false, q...))
	h.v = n.unit(n.affine("item.out", c.Dim, false, v...))
	return h, nil
}

// temperature divides the scores: a score is at most 1/temperature.
const temperature = 0.1

// cut is some columns of a node.
type cut struct {
	x, out *node
	at     int
}

func (n *net) cut(name string, x *node, from, to int) *node {
	l := &cut{x: x, out: n.node(name, to-from), at: from}
	n.layers = append(n.layers, l)
	return l.out
}

func (l *cut) forward(n int) {
	for i := range n {
		copy(l.out.row(i), l.x.row(i)[l.at:])
	}
}

// backward: the cuts of a node do not overlap, so each sets its columns.
func (l *cut) backward(n int) {
	l.x.set = true
	for i := range n {
		copy(l.x.grad(i)[l.at:], l.out.grad(i))
	}
}

// unit divides vectors by their length.
type unit struct {
	x, out  *node
	lengths []float32
}

func (n *net) unit(x *node) *node {
	l := &unit{x: x, out: n.node(x.name, x.width)}
	n.layers = append(n.layers, l)
	return l.out
}

// shortest is the length below which a vector is divided by this number.
const shortest = 1e-6

func (l *unit) forward(n int) {
	l.lengths = grow(l.lengths, n)
	for i := range n {
		s := 0.0
		for _, v := range l.x.row(i) {
			s += float64(v) * float64(v)
		}
		l.lengths[i] = float32(max(math.Sqrt(s), shortest))
		for k, v := range l.x.row(i) {
			l.out.row(i)[k] = v / l.lengths[i]
		}
	}
}

// backward: d(x/|x|) = (d − (d·y)·y)/|x|.
func (l *unit) backward(n int) {
	l.x.set = true
	for i := range n {
		y, d := l.out.row(i), l.out.grad(i)
		dot := float32(0)
		for k, v := range y {
			dot += float32(d[k] * v)
		}
		for k, v := range y {
			l.x.grad(i)[k] = (d[k] - float32(dot*v)) / l.lengths[i]
		}
	}
}

// towersHead is the softmax over the items of the batch.
type towersHead struct {
	q, v, items *node
	temperature float32
	share       []float32 // [n, n], rows padded: scores, then the derivative of the loss by each
	transposed  []float32 // of v, rows padded
}

func (h *towersHead) forward(b *Batch, out *Result) {
	n := b.N
	out.Predictions, out.Classes = grow(out.Predictions, n), nil
	stride := kernel.Pad(n)
	h.share, h.transposed = grow(h.share, n*stride), grow(h.transposed, h.v.width*stride)
	positives, sum := 0, 0.0
	for i := range n {
		if b.Labels[i] > 0.5 {
			positives++
		}
		for k, v := range h.v.row(i) {
			h.transposed[k*stride+i] = v / h.temperature
		}
	}
	kernel.Gemm(h.share, stride, kernel.Matrix{V: h.q.v, Rows: h.q.sv, Columns: 1}, h.transposed, stride, n, stride,
		h.q.width, false)
	for i := range n {
		scores := h.share[i*stride:][:n]
		out.Predictions[i] = float32(1 / (1 + math.Exp(-float64(scores[i]))))
		if !(b.Labels[i] > 0.5) {
			clear(scores)
			continue
		}
		largest, total := scores[i], 0.0
		for j, s := range scores {
			if j != i && slices.Equal(h.items.row(i), h.items.row(j)) {
				scores[j] = float32(math.Inf(-1))
			} else {
				largest = max(largest, s)
			}
		}
		own := scores[i]
		for j, s := range scores {
			e := math.Exp(float64(s - largest))
			scores[j] = float32(e)
			total += e
		}
		sum += math.Log(total) - float64(own-largest)
		for j := range scores {
			scores[j] = float32(float64(scores[j]) / total / float64(positives))
		}
		scores[i] -= 1 / float32(positives)
	}
	out.Loss = sum / float64(max(positives, 1))
}

func (h *towersHead) backward(b *Batch) {
	n, stride := b.N, kernel.Pad(b.N)
	for i := range n {
		for j := range n {
			h.share[i*stride+j] /= h.temperature
		}
	}
	q, v := h.q, h.v
	q.set, v.set = true, true
	kernel.Gemm(q.d, q.sd, kernel.Matrix{V: h.share, Rows: stride, Columns: 1}, v.v, v.sv, n, q.sd, n, false)
	kernel.Gemm(v.d, v.sd, kernel.Matrix{V: h.share, Rows: 1, Columns: stride}, q.v, q.sv, n, v.sd, n, false)
}
