package optim

import (
	"fmt"
	"math"

	"github.com/rowraft/rowraft"
)

// Rule is the update rule of one table with its constants. It is immutable and
// safe for concurrent use; the zero Rule is not usable.
//
// It is a struct with a switch rather than an interface: a call through an
// interface costs as much as the arithmetic of a short row.
type Rule struct {
	opt        rowraft.Optimizer
	oneMinusB1 float32
	oneMinusB2 float32
}

// New returns the rule of o, or CodeInvalidArgument if o names none.
func New(o rowraft.Optimizer) (Rule, error) {
	switch o.Kind {
	case rowraft.SGD, rowraft.Adagrad, rowraft.Adam:
		return Rule{opt: o, oneMinusB1: 1 - o.Beta1, oneMinusB2: 1 - o.Beta2}, nil
	}
	return Rule{}, fmt.Errorf("update rule: %w",
		rowraft.Errorf(rowraft.CodeInvalidArgument, "optimizer kind %d: want sgd, adagrad or adam", o.Kind))
}

// LR returns the learning rate of the table, for pushes that name none.
func (r *Rule) LR() float32 { return r.opt.LR }

// StateLen returns how many float32 of state a row of dim weights keeps.
//
//	sgd      0
//	adagrad  dim      the sum of squared gradients
//	adam     2·dim+2  first moments, second moments, β1^t, β2^t
func (r *Rule) StateLen(dim int) int {
	switch r.opt.Kind {
	case rowraft.Adagrad:
		return dim
	case rowraft.Adam:
		return 2*dim + 2
	}
	return 0
}

// InitState sets state, of length StateLen, to that of a row never pushed.
func (r *Rule) InitState(state []float32) {
	switch r.opt.Kind {
	case rowraft.Adagrad:
		for i := range state {
			state[i] = r.opt.InitialAccumulator
		}
	case rowraft.Adam:
		clear(state)
		state[len(state)-2] = 1
		state[len(state)-1] = 1
	}
}

// Update moves w by one step of learning rate lr along gradient g and brings
// state up to date.
//
// len(w) == len(g) = dim > 0 and len(state) == StateLen(dim), else it panics or
// writes part of the row: the caller checks shapes once per batch. w, state and
// g must not overlap. It allocates nothing and keeps none of the slices.
func (r *Rule) Update(w, state, g []float32, lr float32) {
	n := len(w)
	g = g[:n]
	switch r.opt.Kind {
	case rowraft.SGD:
		sgd(w, g, lr)
	case rowraft.Adagrad:
		adagrad(w, state[:n], g, lr, r.opt.Epsilon)
	case rowraft.Adam:
		t := state[2*n : 2*n+2]
		t[0] = decay(t[0], r.opt.Beta1)
		t[1] = decay(t[1], r.opt.Beta2)
		adam(w, state[:n], state[n:2*n], g, &adamStep{
			lr: lr, eps: r.opt.Epsilon,
			b1: r.opt.Beta1, b2: r.opt.Beta2,
			omb1: r.oneMinusB1, omb2: r.oneMinusB2,
			c1: 1 - t[0], c2: 1 - t[1],
		})
	}
	settle(w)
	settle(state)
}

// decay returns b·β, or 0 once that is below 2^-64. 1 − β^t is 1 long before, so
// no step changes; without it β^t would stay at the smallest denormal for ever
// (0.9 times it rounds to itself), and each step would pay for a slow multiply.
func decay(b, beta float32) float32 {
	b = float32(b * beta)
	if b < 0x1p-64 {
		return 0
	}
	return b
}

// adamStep holds what one Adam step shares between the elements of a row.
type adamStep struct {
	lr, eps, b1, b2 float32
	omb1, omb2      float32 // 1-β1, 1-β2
	c1, c2          float32 // 1-β1^t, 1-β2^t
}

// sqrt32 is the correctly rounded float32 square root: rounding the float64
// root once more is exact for float32 arguments, so it equals SQRTPS.
func sqrt32(x float32) float32 { return float32(math.Sqrt(float64(x))) }

// sgdPlain: w ← w − lr·g.
func sgdPlain(w, g []float32, lr float32) {
	for i := range w {
		w[i] -= float32(lr * g[i])
	}
}

// adagradPlain: acc ← acc + g²; w ← w − lr·g ÷ (√acc + ε).
func adagradPlain(w, acc, g []float32, lr, eps float32) {
	acc = acc[:len(w)]
	g = g[:len(w)]
	for i := range w {
		a := acc[i] + float32(g[i]*g[i])
		acc[i] = a
		w[i] -= float32(lr*g[i]) / (sqrt32(a) + eps)
	}
}

// adamPlain: m ← β1·m + (1−β1)·g; v ← β2·v + (1−β2)·g²;
// w ← w − lr·(m ÷ (1−β1^t)) ÷ (√(v ÷ (1−β2^t)) + ε).
func adamPlain(w, m, v, g []float32, s *adamStep) {
	m = m[:len(w)]
	v = v[:len(w)]
	g = g[:len(w)]
	for i := range w {
		mi := float32(s.b1*m[i]) + float32(s.omb1*g[i])
		vi := float32(s.b2*v[i]) + float32(s.omb2*float32(g[i]*g[i]))
		m[i] = mi
		v[i] = vi
		w[i] -= float32(s.lr*(mi/s.c1)) / (sqrt32(vi/s.c2) + s.eps)
	}
}
