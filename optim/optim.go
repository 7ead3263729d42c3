package optim

import (
	"fmt"

	"github.com/rowraft/rowraft"
)

// Rule is the update rule of one table with its constants. It is immutable and
// safe for concurrent use; the zero Rule is not usable.
//
// Rejected: an interface with one type per rule. A call through an
// interface costs as much as the arithmetic of a short row.
type Rule struct {
	opt        rowraft.Optimizer
	oneMinusB1 float32
	oneMinusB2 float32
}

// New returns the rule of o, or CodeInvalidArgument if this binary does not know it.
func New(o rowraft.Optimizer) (Rule, error) {
	if o.Kind < rowraft.SGD || o.Kind > rowraft.Add {
		return Rule{}, fmt.Errorf("update rule: %w",
			rowraft.Errorf(rowraft.CodeInvalidArgument, "this binary does not know the rule %s", o.Kind))
	}
	return Rule{opt: o, oneMinusB1: 1 - o.Beta1, oneMinusB2: 1 - o.Beta2}, nil
}

// LR returns the learning rate of the table, for pushes without one of their own.
func (r *Rule) LR() float32 { return r.opt.LR }

// StateLen returns the number of float32 of state that a row of dim weights has.
//
//	sgd, add         0
//	adagrad          dim      the sum of squared gradients
//	rowwise-adagrad  1        the sum of their means
//	momentum         dim      the velocity
//	adam             2·dim+2  first moments, second moments, β1^t, β2^t
//	ftrl             2·dim+1  z, n, the last learning rate
func (r *Rule) StateLen(dim int) int {
	switch r.opt.Kind {
	case rowraft.Adagrad, rowraft.Momentum:
		return dim
	case rowraft.RowWiseAdagrad:
		return 1
	case rowraft.Adam:
		return 2*dim + 2
	case rowraft.FTRL:
		return 2*dim + 1
	}
	return 0
}

// InitState sets state, of length StateLen, to the state of a row that was never pushed. w is the
// weights of the row.
func (r *Rule) InitState(w, state []float32) {
	switch r.opt.Kind {
	case rowraft.Adagrad, rowraft.RowWiseAdagrad:
		for i := range state {
			state[i] = r.opt.InitialAccumulator
		}
	case rowraft.Momentum:
		clear(state)
	case rowraft.Adam:
		clear(state)
		state[len(state)-2] = 1
		state[len(state)-1] = 1
	case rowraft.FTRL:
		n := len(w)
		for i := range n {
			state[n+i] = r.opt.InitialAccumulator
		}
		state[2*n] = r.opt.LR
		r.fit(w, state)
	}
}

// Assign sets w to values. It keeps the state. With FTRL, where the weights are a function
// of the state, it sets the state that gives these weights. w and values have the length of a row.
func (r *Rule) Assign(w, state, values []float32) {
	copy(w, values)
	if r.opt.Kind == rowraft.FTRL {
		r.fit(w, state)
	}
}

// fit sets the z of FTRL to the value that gives the weights w.
func (r *Rule) fit(w, state []float32) {
	n := len(w)
	ftrlFit(w, state[:n], state[n:2*n], &ftrlStep{alpha: state[2*n], l1: r.opt.L1, l2: r.opt.L2, beta: r.opt.Beta})
	settle(state)
}

// Update moves w by one step of learning rate lr along gradient g and updates state.
//
// REQUIRES: len(w) == len(g) = dim > 0 and len(state) == StateLen(dim); w, state and g do not
// overlap. Otherwise Update panics or changes only a part of the row: the caller checks shapes once
// per batch. Update allocates nothing and keeps none of the slices.
func (r *Rule) Update(w, state, g []float32, lr float32) {
	g = g[:len(w)]
	switch {
	case r.opt.WeightDecay == 0:
		r.whole(w, state, g, lr)
	case r.opt.Kind == rowraft.Adam:
		sgd(w, w, float32(lr*r.opt.WeightDecay)) // w ← w − (lr·λ)·w
		r.whole(w, state, g, lr)
	default:
		r.decayed(w, state, g, lr)
	}
	if r.opt.Bound != 0 {
		clamp(w, r.opt.Bound)
	}
	settle(w)
	settle(state)
}

// whole applies the rule to a whole row.
func (r *Rule) whole(w, state, g []float32, lr float32) {
	n := len(w)
	switch r.opt.Kind {
	case rowraft.SGD: // as in elements: that call would take 3 % of an update
		sgd(w, g, lr)
	case rowraft.Adagrad:
		adagrad(w, state[:n], g, lr, r.opt.Epsilon)
	case rowraft.RowWiseAdagrad:
		var sums [lanes]float32
		squares(&sums, g)
		rowWise(w, g, lr, r.mean(&sums, state, n))
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
	case rowraft.FTRL:
		if lr == 0 {
			return
		}
		k := 1/lr - 1/state[2*n]
		state[2*n] = lr
		ftrl(w, state[:n], state[n:2*n], g, &ftrlStep{alpha: lr, k: k, l1: r.opt.L1, l2: r.opt.L2, beta: r.opt.Beta})
	default:
		r.elements(w, state, g, lr)
	}
}

// elements applies a rule without sums over the row to some elements of a row;
// state is the state of these elements.
func (r *Rule) elements(w, state, g []float32, lr float32) {
	switch r.opt.Kind {
	case rowraft.SGD:
		sgd(w, g, lr)
	case rowraft.Adagrad:
		adagrad(w, state[:len(w)], g, lr, r.opt.Epsilon)
	case rowraft.Momentum:
		momentum(w, state[:len(w)], g, lr, r.opt.Momentum)
	case rowraft.Add:
		add(w, g)
	}
}

// decayBlock is how many weights decayed processes at a time; a multiple of lanes.
const decayBlock = 64

// decayed applies the rule with g + λ·w instead of g. It computes that in blocks on the stack,
// because the gradient belongs to the caller.
func (r *Rule) decayed(w, state, g []float32, lr float32) {
	var block [decayBlock]float32
	var divisor float32
	rowWiseRule := r.opt.Kind == rowraft.RowWiseAdagrad
	if rowWiseRule {
		var sums [lanes]float32
		for at := 0; at < len(w); at += decayBlock {
			to := min(at+decayBlock, len(w))
			b := block[:to-at]
			addDecay(b, w[at:to], g[at:to], r.opt.WeightDecay)
			squares(&sums, b)
		}
		divisor = r.mean(&sums, state, len(w))
	}
	for at := 0; at < len(w); at += decayBlock {
		to := min(at+decayBlock, len(w))
		b := block[:to-at]
		addDecay(b, w[at:to], g[at:to], r.opt.WeightDecay)
		switch {
		case rowWiseRule:
			rowWise(w[at:to], b, lr, divisor)
		case len(state) == 0:
			r.elements(w[at:to], nil, b, lr)
		default:
			r.elements(w[at:to], state[at:to], b, lr)
		}
	}
}

// mean adds the mean of a row's squares to its accumulator and returns √s + ε.
func (r *Rule) mean(sums *[lanes]float32, state []float32, dim int) float32 {
	q := ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]))
	state[0] += q / float32(dim)
	return sqrt32(state[0]) + r.opt.Epsilon
}

// decay returns b·β, or 0 if that is below 2^-64. 1 − β^t is 1 long before that, so
// no step changes. Without this rule β^t would stay at the smallest denormal forever
// (0.9 times it rounds to itself), and each step would pay for a slow multiplication.
func decay(b, beta float32) float32 {
	b = float32(b * beta)
	if b < 0x1p-64 {
		return 0
	}
	return b
}

// adamStep is the values of one Adam step that all elements of a row share.
type adamStep struct {
	lr, eps, b1, b2 float32
	omb1, omb2      float32 // 1-β1, 1-β2
	c1, c2          float32 // 1-β1^t, 1-β2^t
}

// ftrlStep is the values of one FTRL step that all elements of a row share.
type ftrlStep struct {
	alpha, k     float32 // k = 1/alpha − 1/alpha of the previous step
	l1, l2, beta float32
}
