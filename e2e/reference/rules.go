package reference

import (
	"math"

	"github.com/rowraft/rowraft"
)

// stateLength is how many numbers of optimizer state a row has: docs/formats/rules.md.
func stateLength(s *rowraft.Schema) int {
	switch s.Optimizer.Kind {
	case rowraft.Adagrad, rowraft.Momentum:
		return s.Dim
	case rowraft.Adam:
		return 2*s.Dim + 2
	case rowraft.RowWiseAdagrad:
		return 1
	case rowraft.FTRL:
		return 2*s.Dim + 1
	}
	return 0
}

// initialState returns the optimizer state of a new row with weights w.
func initialState(s *rowraft.Schema, w []float32) []float32 {
	state := make([]float32, stateLength(s))
	o, n := s.Optimizer, s.Dim
	switch o.Kind {
	case rowraft.Adagrad, rowraft.RowWiseAdagrad:
		for i := range state {
			state[i] = o.InitialAccumulator
		}
	case rowraft.Adam:
		state[2*n], state[2*n+1] = 1, 1
	case rowraft.FTRL:
		for i := range n {
			state[n+i] = o.InitialAccumulator
		}
		state[2*n] = o.LR
		fit(o, w, state)
	}
	return state
}

// fit sets z to the value that gives the weights w.
func fit(o rowraft.Optimizer, w, state []float32) {
	n := len(w)
	for i, w := range w {
		state[i] = 0
		if w != 0 {
			state[i] = 0 - (float32(w*((o.Beta+root(state[n+i]))/state[2*n]+o.L2)) + withSign(o.L1, w))
		}
	}
	settle(state)
}

func root(v float32) float32 { return float32(math.Sqrt(float64(v))) }

func withSign(v, sign float32) float32 {
	return float32(math.Copysign(float64(v), float64(sign)))
}

// power returns β^t from β^(t-1); a value below 2^-64 counts as 0.
func power(before, beta float32) float32 {
	p := float32(before * beta)
	if p < 1.0/(1<<32)/(1<<32) {
		return 0
	}
	return p
}

// push moves r along the gradient g: docs/formats/rules.md, from the weight decay to the bound.
func (r *Row) push(o rowraft.Optimizer, lr float32, g []float32) {
	if decay := o.WeightDecay; decay != 0 && o.Kind == rowraft.Adam {
		for i, w := range r.Weights {
			r.Weights[i] = w - float32(float32(lr*decay)*w)
		}
	} else if decay != 0 {
		pulled := make([]float32, len(g))
		for i := range g {
			pulled[i] = g[i] + float32(decay*r.Weights[i])
		}
		g = pulled
	}
	r.step(o, lr, g)
	for i, w := range r.Weights {
		switch {
		case o.Bound == 0:
		case w > o.Bound:
			r.Weights[i] = o.Bound
		case w < -o.Bound:
			r.Weights[i] = -o.Bound
		}
	}
	settle(r.Weights)
	settle(r.State)
}

// step is the step of one rule.
func (r *Row) step(o rowraft.Optimizer, lr float32, g []float32) {
	n := len(r.Weights)
	switch o.Kind {
	case rowraft.Adam:
		r.State[2*n] = power(r.State[2*n], o.Beta1)
		r.State[2*n+1] = power(r.State[2*n+1], o.Beta2)
	case rowraft.RowWiseAdagrad:
		var s [8]float32
		for i, g := range g {
			s[i%8] = s[i%8] + float32(g*g)
		}
		q := ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
		r.State[0] = r.State[0] + q/float32(n)
	case rowraft.FTRL:
		if lr != 0 {
			r.ftrl(o, lr, g)
		}
		return
	case rowraft.Add:
		for i, g := range g {
			r.Weights[i] = r.Weights[i] + g
		}
		return
	}
	for i, g := range g {
		step := float32(lr * g)
		switch o.Kind {
		case rowraft.Adagrad:
			r.State[i] = r.State[i] + float32(g*g)
			step = step / (root(r.State[i]) + o.Epsilon)
		case rowraft.RowWiseAdagrad:
			step = step / (root(r.State[0]) + o.Epsilon)
		case rowraft.Momentum:
			r.State[i] = float32(o.Momentum*r.State[i]) + g
			step = float32(lr * r.State[i])
		case rowraft.Adam:
			m := float32(o.Beta1*r.State[i]) + float32((1-o.Beta1)*g)
			v := float32(o.Beta2*r.State[n+i]) + float32((1-o.Beta2)*float32(g*g))
			r.State[i], r.State[n+i] = m, v
			step = float32(lr*(m/(1-r.State[2*n]))) / (root(v/(1-r.State[2*n+1])) + o.Epsilon)
		}
		r.Weights[i] = r.Weights[i] - step
	}
}

func (r *Row) ftrl(o rowraft.Optimizer, alpha float32, g []float32) {
	n := len(r.Weights)
	k := 1/alpha - 1/r.State[2*n]
	r.State[2*n] = alpha
	for i, g := range g {
		before := root(r.State[n+i])
		r.State[n+i] = r.State[n+i] + float32(g*g)
		after := root(r.State[n+i])
		sigma := (after-before)/alpha + float32((o.Beta+before)*k)
		z := (r.State[i] + g) - float32(sigma*r.Weights[i])
		r.State[i] = z
		if float32(math.Abs(float64(z))) <= o.L1 {
			r.Weights[i] = 0
		} else {
			r.Weights[i] = (withSign(o.L1, z) - z) / ((o.Beta+after)/alpha + o.L2)
		}
	}
}

// settle gives each NaN its specified bits.
func settle(numbers []float32) {
	for i, v := range numbers {
		if v != v {
			numbers[i] = math.Float32frombits(0xFFC00000)
		}
	}
}
