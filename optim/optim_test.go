package optim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
)

func mustNew(tb testing.TB, o rowraft.Optimizer) Rule {
	tb.Helper()
	r, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// minus rounds both operands to float32 first; constant arithmetic does not.
func minus(a, b float32) float32 { return a - b }

// TestUpdate checks results that were computed by hand from the cited equations.
func TestUpdate(t *testing.T) {
	type step struct{ g, wantW, wantState []float32 }
	for _, tc := range []struct {
		name  string
		opt   rowraft.Optimizer
		lr    float32
		w     []float32
		steps []step
	}{
		{
			name: "sgd: w(t+1) = w(t) - lr·g (Robbins & Monro 1951)",
			opt:  rowraft.Optimizer{Kind: rowraft.SGD}, lr: 0.5,
			w: []float32{1, -2},
			steps: []step{
				{g: []float32{4, 1}, wantW: []float32{-1, -2.5}, wantState: []float32{}},
				{g: []float32{0, -1}, wantW: []float32{-1, -2}, wantState: []float32{}},
			},
		},
		{
			// Duchi, Hazan & Singer 2011, section 1.1: x(t+1) = x(t) - η·g(t) / sqrt(Σ g(τ)²),
			// diagonal form. First step: lr·g/|g| = ±lr. Second: 3²+4² = 25, 4/5 of lr.
			name: "adagrad: first step moves by the learning rate whatever the gradient's size, the second by lr·g/√(g1²+g2²)",
			opt:  rowraft.Optimizer{Kind: rowraft.Adagrad, Epsilon: 0x1p-126}, lr: 0.5,
			w: []float32{1, 1},
			steps: []step{
				{g: []float32{3, -100}, wantW: []float32{0.5, 1.5}, wantState: []float32{9, 10000}},
				{g: []float32{4, 0}, wantW: []float32{minus(0.5, 0.4), 1.5}, wantState: []float32{25, 10000}},
			},
		},
		{
			name: "adagrad: the accumulator starts at InitialAccumulator and ε is added outside the root",
			opt:  rowraft.Optimizer{Kind: rowraft.Adagrad, InitialAccumulator: 7, Epsilon: 1}, lr: 1,
			w: []float32{0},
			steps: []step{
				{g: []float32{3}, wantW: []float32{-3.0 / 5}, wantState: []float32{16}},
			},
		},
		{
			// Kingma & Ba 2015, algorithm 1, with powers of two so that every step is exact:
			// β1 = 1/2, β2 = 3/4, ε = 1.
			// t=1: m = 2, v = 4; m̂ = 2/(1-1/2) = 4, v̂ = 4/(1-3/4) = 16; w = 0 - 1·4/(4+1).
			// t=2, g=0: m = 1, v = 3; m̂ = 1/(1-1/4) = 4/3, v̂ = 3/(1-9/16) = 48/7.
			name: "adam: algorithm 1, both moments corrected for their bias",
			opt:  rowraft.Optimizer{Kind: rowraft.Adam, Beta1: 0.5, Beta2: 0.75, Epsilon: 1}, lr: 1,
			w: []float32{0},
			steps: []step{
				{g: []float32{4}, wantW: []float32{-0.8}, wantState: []float32{2, 4, 0.5, 0.75}},
				{g: []float32{0}, wantW: []float32{minus(-0.8, float32(4.0/3)/(float32(math.Sqrt(48.0/7))+1))},
					wantState: []float32{1, 3, 0.25, 0.5625}},
			},
		},
		{
			// Polyak 1964 in the form of today's libraries: v(t) = μ·v(t-1) + g(t); w(t) = w(t-1) - lr·v(t).
			name: "momentum: the velocity is the decayed sum of gradients, and the step lr times it",
			opt:  rowraft.Optimizer{Kind: rowraft.Momentum, Momentum: 0.5}, lr: 0.25,
			w: []float32{1, 0},
			steps: []step{
				{g: []float32{4, -8}, wantW: []float32{0, 2}, wantState: []float32{4, -8}},
				{g: []float32{2, 4}, wantW: []float32{-1, 2}, wantState: []float32{4, 0}},
			},
		},
		{
			// Duchi et al. 2011 with one accumulator for the row, the mean of squares (Naumov et al. 2019, arXiv:1906.00091,
			// and FBGEMM's EXACT_ROWWISE_ADAGRAD): s += mean(g²); w -= lr·g/(√s + ε). mean(1, 49, 1, 49) = 25;
			// then 11 + 25 = 36.
			name: "row-wise adagrad: one accumulator, the sum of the means of squares",
			opt:  rowraft.Optimizer{Kind: rowraft.RowWiseAdagrad, Epsilon: 0x1p-126}, lr: 0.5,
			w: []float32{0, 0, 0, 0},
			steps: []step{
				{g: []float32{1, 7, -1, -7}, wantW: []float32{-0.1, -0.7, 0.1, 0.7}, wantState: []float32{25}},
				{g: []float32{0, 6, 2, 2}, wantW: []float32{-0.1, minus(-0.7, 0.5), minus(0.1, 1.0/6), minus(0.7, 1.0/6)},
					wantState: []float32{36}},
			},
		},
		{
			// McMahan et al. 2013, Algorithm 1, α = 0.5, β = 1, λ1 = 1, λ2 = 2, from w = 0. n = 16, σ = (4-0)/α = 8,
			// z = 4 - 8·0; w = -(4-1)/((1+4)/α + 2). Then n = 25, σ = (5-4)/α = 2, z = 4+3-2·w = 7.5.
			name: "ftrl: Algorithm 1, two steps",
			opt:  rowraft.Optimizer{Kind: rowraft.FTRL, LR: 0.5, Beta: 1, L1: 1, L2: 2}, lr: 0.5,
			w: []float32{0},
			steps: []step{
				{g: []float32{4}, wantW: []float32{-0.25}, wantState: []float32{4, 16, 0.5}},
				{g: []float32{3}, wantW: []float32{-6.5 / 14}, wantState: []float32{7.5, 25, 0.5}},
			},
		},
		{
			name: "ftrl: Algorithm 1: the weight is exactly 0 while |z| ≤ λ1, on either side",
			opt:  rowraft.Optimizer{Kind: rowraft.FTRL, LR: 1, Beta: 1, L1: 3}, lr: 1,
			w: []float32{0, 0, 0},
			steps: []step{
				{g: []float32{3, -3, 4}, wantW: []float32{0, 0, -1.0 / 5}, wantState: []float32{3, -3, 4, 9, 9, 16, 1}},
			},
		},
		{
			name:  "ftrl: with a learning rate of 0 nothing changes",
			opt:   rowraft.Optimizer{Kind: rowraft.FTRL, LR: 1, Beta: 1},
			w:     []float32{0},
			steps: []step{{g: []float32{5}, wantW: []float32{0}, wantState: []float32{0, 0, 1}}},
		},
		{
			name: "add: w += value, whatever the learning rate is",
			opt:  rowraft.Optimizer{Kind: rowraft.Add}, lr: 7,
			w:     []float32{1, -2},
			steps: []step{{g: []float32{0.5, 0.25}, wantW: []float32{1.5, -1.75}, wantState: []float32{}}},
		},
		{
			// The gradient of loss + λ/2·w² is g + λ·w: w = 8, g = 1, λ = 0.5, so 5.
			name: "weight decay of sgd is L2 regularization: w - lr·(g + λ·w)",
			opt:  rowraft.Optimizer{Kind: rowraft.SGD, WeightDecay: 0.5}, lr: 0.5,
			w: []float32{8},
			steps: []step{{g: []float32{1}, wantW: []float32{5.5}, wantState: []float32{}},
				{g: []float32{0}, wantW: []float32{4.125}, wantState: []float32{}}},
		},
		{
			name: "weight decay of momentum goes into the velocity: v = μ·v + (g + λ·w)",
			opt:  rowraft.Optimizer{Kind: rowraft.Momentum, Momentum: 0.5, WeightDecay: 0.5}, lr: 0.5,
			w: []float32{8},
			steps: []step{{g: []float32{0}, wantW: []float32{6}, wantState: []float32{4}},
				{g: []float32{0}, wantW: []float32{3.5}, wantState: []float32{5}}},
		},
		{
			name: "weight decay of adagrad goes into the accumulator: s + (g + λ·w)²",
			opt:  rowraft.Optimizer{Kind: rowraft.Adagrad, Epsilon: 1, WeightDecay: 0.5}, lr: 1,
			w:     []float32{6},
			steps: []step{{g: []float32{0}, wantW: []float32{5.25}, wantState: []float32{9}}},
		},
		{
			// s starts at 8, and mean((0 + 0.5·6)², (4 + 0.5·2)²) = 17.
			name: "weight decay of row-wise adagrad goes into the mean",
			opt:  rowraft.Optimizer{Kind: rowraft.RowWiseAdagrad, InitialAccumulator: 8, WeightDecay: 0.5}, lr: 1,
			w:     []float32{6, 2},
			steps: []step{{g: []float32{0, 4}, wantW: []float32{minus(6, 3.0/5), 1}, wantState: []float32{25}}},
		},
		{
			// Loshchilov & Hutter 2019, Algorithm 2, line 12: λ·θ is added to m/(√v + ε), not to g. With g = 0
			// only this term remains.
			name: "weight decay of adam is decoupled: w - lr·λ·w, and the moments do not see it",
			opt:  rowraft.Optimizer{Kind: rowraft.Adam, Beta1: 0.5, Beta2: 0.75, Epsilon: 1, WeightDecay: 0.5}, lr: 0.5,
			w: []float32{8},
			steps: []step{{g: []float32{0}, wantW: []float32{6}, wantState: []float32{0, 0, 0.5, 0.75}},
				{g: []float32{1}, wantW: []float32{minus(4.5, float32(0.5*float32(0.5/0.75))/(sqrt32(0.25/0.4375)+1))},
					wantState: []float32{0.5, 0.25, 0.25, 0.5625}}},
		},
		{
			// PERSIA's weight_bound: every weight is clamped after the update.
			name: "bounds: after the step a weight is within ±b",
			opt:  rowraft.Optimizer{Kind: rowraft.SGD, Bound: 2}, lr: 1,
			w:     []float32{1, 1, 1, -5},
			steps: []step{{g: []float32{-3, 4, 0.5, 0}, wantW: []float32{2, -2, 0.5, -2}, wantState: []float32{}}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := mustNew(t, tc.opt)
			w := slices.Clone(tc.w)
			state := make([]float32, r.StateLen(len(w)))
			r.InitState(w, state)
			for i, s := range tc.steps {
				r.Update(w, state, s.g, tc.lr)
				if !slices.Equal(w, s.wantW) || !slices.Equal(state, s.wantState) {
					t.Fatalf("after step %d with g %v: w %v state %v, want w %v state %v", i+1, s.g, w, state, s.wantW, s.wantState)
				}
			}
		})
	}
}

// TestAdamStepIsBounded: Kingma & Ba 2015, section 2.1: with a constant gradient the effective step is lr,
// for any scale of the gradient.
func TestAdamStepIsBounded(t *testing.T) {
	for _, g := range []float32{1e-3, 1, 1e4} {
		r := mustNew(t, rowraft.Optimizer{Kind: rowraft.Adam, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-12})
		w := []float32{0}
		state := make([]float32, r.StateLen(1))
		r.InitState(w, state)
		for step := 1; step <= 2000; step++ {
			before := w[0]
			r.Update(w, state, []float32{g}, 0.01)
			if d := before - w[0]; math.Abs(float64(d)-0.01) > 2e-4 {
				t.Fatalf("g %v, step %d moved by %v, want about 0.01", g, step, d)
			}
		}
	}
}

// naive is a second implementation of the rules: one element at a time in float64, with every result
// rounded to float32. For + - * / and sqrt that rounding is exact (float64 has more than 2·24+2 bits), so
// the bits must equal those of float32 arithmetic.
func naive(o rowraft.Optimizer, w, state, g []float32, lr float32) {
	r := func(x float64) float64 { return float64(float32(x)) }
	root := func(x float32) float64 { return r(math.Sqrt(float64(x))) }
	n := len(w)
	var c1, c2, k float64
	l, eps, lambda := float64(lr), float64(o.Epsilon), float64(o.WeightDecay)
	if lambda != 0 {
		g = slices.Clone(g)
		for i := range w {
			if o.Kind == rowraft.Adam {
				w[i] = float32(float64(w[i]) - r(r(l*lambda)*float64(w[i])))
			} else {
				g[i] = float32(float64(g[i]) + r(lambda*float64(w[i])))
			}
		}
	}
	switch o.Kind {
	case rowraft.Adam:
		for i, beta := range []float32{o.Beta1, o.Beta2} {
			if state[2*n+i] = float32(float64(state[2*n+i]) * float64(beta)); state[2*n+i] < 0x1p-64 {
				state[2*n+i] = 0
			}
		}
		c1, c2 = r(1-float64(state[2*n])), r(1-float64(state[2*n+1]))
	case rowraft.RowWiseAdagrad:
		var s [8]float64
		for i, v := range g {
			s[i%8] = r(s[i%8] + r(float64(v)*float64(v)))
		}
		q := r(r(r(s[0]+s[4])+r(s[2]+s[6])) + r(r(s[1]+s[5])+r(s[3]+s[7])))
		state[0] = float32(float64(state[0]) + r(q/float64(n)))
	case rowraft.FTRL:
		k = r(r(1/l) - r(1/float64(state[2*n])))
		state[2*n] = lr
	}
	for i := range w {
		wi, gi := float64(w[i]), float64(g[i])
		var step float64
		switch o.Kind {
		case rowraft.SGD:
			step = r(l * gi)
		case rowraft.Add:
			step = -gi
		case rowraft.Momentum:
			state[i] = float32(r(float64(o.Momentum)*float64(state[i])) + gi)
			step = r(l * float64(state[i]))
		case rowraft.Adagrad:
			a := r(float64(state[i]) + r(gi*gi))
			state[i] = float32(a)
			step = r(r(l*gi) / r(r(math.Sqrt(a))+eps))
		case rowraft.RowWiseAdagrad:
			step = r(r(l*gi) / r(root(state[0])+eps))
		case rowraft.Adam:
			b1, b2 := float64(o.Beta1), float64(o.Beta2)
			m := r(r(b1*float64(state[i])) + r(r(1-b1)*gi))
			v := r(r(b2*float64(state[n+i])) + r(r(1-b2)*r(gi*gi)))
			state[i], state[n+i] = float32(m), float32(v)
			step = r(r(l*r(m/c1)) / r(r(math.Sqrt(r(v/c2)))+eps))
		case rowraft.FTRL:
			beta, l1 := float64(o.Beta), float64(o.L1)
			before := root(state[n+i])
			state[n+i] = float32(float64(state[n+i]) + r(gi*gi))
			after := root(state[n+i])
			sigma := r(r(r(after-before)/l) + r(r(beta+before)*k))
			z := r(r(float64(state[i])+gi) - r(sigma*wi))
			state[i] = float32(z)
			d := r(r(r(beta+after)/l) + float64(o.L2))
			switch {
			case math.Abs(z) <= l1:
				w[i] = 0
			case z > 0:
				w[i] = float32(r(l1-z) / d)
			default:
				w[i] = float32(r(-l1-z) / d)
			}
		}
		if o.Kind != rowraft.FTRL {
			w[i] = float32(wi - step)
		}
		if b := o.Bound; b != 0 && float32(math.Abs(float64(w[i]))) > b {
			w[i] = float32(math.Copysign(float64(b), float64(w[i])))
		}
	}
}

var testOptimizers = []rowraft.Optimizer{
	{Kind: rowraft.SGD},
	{Kind: rowraft.Adagrad, InitialAccumulator: 0.1, Epsilon: 1e-10},
	{Kind: rowraft.Adagrad, Epsilon: 1e-8},
	{Kind: rowraft.Adam, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8},
	{Kind: rowraft.Adam, Beta1: 0, Beta2: 0, Epsilon: 1e-8},
	{Kind: rowraft.Momentum, Momentum: 0.9},
	{Kind: rowraft.RowWiseAdagrad, InitialAccumulator: 0.1, Epsilon: 1e-8},
	{Kind: rowraft.FTRL, LR: 0.1, Beta: 1, L1: 0.5, L2: 0.25},
	{Kind: rowraft.FTRL, LR: 0.1, InitialAccumulator: 0.1},
	{Kind: rowraft.Add},
	{Kind: rowraft.SGD, WeightDecay: 0.01, Bound: 2},
	{Kind: rowraft.Adagrad, Epsilon: 1e-8, WeightDecay: 0.01},
	{Kind: rowraft.Adam, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8, WeightDecay: 0.01, Bound: 1e30},
	{Kind: rowraft.Momentum, Momentum: 0.5, WeightDecay: 0.1, Bound: 3},
	{Kind: rowraft.RowWiseAdagrad, Epsilon: 1e-8, WeightDecay: 0.01, Bound: 1},
	{Kind: rowraft.FTRL, LR: 0.1, Beta: 1, Bound: 0.5},
	{Kind: rowraft.Add, Bound: 1.5},
}

// number draws a float32 that is normal, denormal, huge, zero or of random bits.
func number(rng *rand.Rand) float32 {
	switch rng.IntN(8) {
	case 0:
		return math.Float32frombits(rng.Uint32() & 0x807FFFFF) // denormal or zero
	case 1:
		return float32(rng.NormFloat64()) * 1e38 / 3
	case 2:
		return 0
	case 3:
		for {
			if v := math.Float32frombits(rng.Uint32()); v-v == 0 {
				return v
			}
		}
	}
	return float32(rng.NormFloat64())
}

// TestUpdateBits: in every build, for each length 1 … 70 and longer ones with different remainders, the
// kernels give the same bits as naive. It detects a fused product and a reciprocal in place of a division.
func TestUpdateBits(t *testing.T) {
	const seed = 1
	t.Logf("seed %d, SIMD kernels: %v", seed, simd())
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, o := range testOptimizers {
		r := mustNew(t, o)
		for dim := 1; dim <= 70; dim++ {
			for range 8 {
				w, g := make([]float32, dim), make([]float32, dim)
				state := make([]float32, r.StateLen(dim))
				for i := range w {
					w[i] = number(rng)
				}
				r.InitState(w, state)
				wantW, wantState := slices.Clone(w), slices.Clone(state)
				for step := range 4 {
					for i := range g {
						g[i] = number(rng)
					}
					lr := []float32{0.01, 1, 1e-30, 3}[step]
					r.Update(w, state, g, lr)
					naive(o, wantW, wantState, g, lr)
					equalBits(t, fmt.Sprintf("%s dim %d step %d weights", o.Kind, dim, step), w, wantW)
					equalBits(t, fmt.Sprintf("%s dim %d step %d state", o.Kind, dim, step), state, wantState)
				}
			}
		}
	}
}

// equalBits compares bit by bit. Two NaN are equal, since the machine chooses their payload.
func equalBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) && !(got[i] != got[i] && want[i] != want[i]) {
			t.Fatalf("%s: [%d] = %v (%08x), want %v (%08x)",
				what, i, got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

func TestUpdateDoesNotAllocate(t *testing.T) {
	for _, o := range testOptimizers {
		r := mustNew(t, o)
		w, g, state := make([]float32, 19), make([]float32, 19), make([]float32, r.StateLen(19))
		r.InitState(w, state)
		if n := testing.AllocsPerRun(100, func() { r.Update(w, state, g, 0.1) }); n != 0 {
			t.Errorf("%s: %v allocations per Update, want 0", o.Kind, n)
		}
	}
}

func TestNewRefusesUnknownRule(t *testing.T) {
	if _, err := New(rowraft.Optimizer{Kind: 99}); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("New with kind 99: %v, want CodeInvalidArgument", err)
	}
}

func BenchmarkUpdate(b *testing.B) {
	for _, o := range testOptimizers {
		if o.Kind == rowraft.Adam && o.Beta1 == 0 || o.Kind == rowraft.Adagrad && o.WeightDecay == 0 &&
			o.InitialAccumulator == 0 || o.Kind == rowraft.FTRL && o.L1 == 0 && o.Bound == 0 {
			continue
		}
		name := o.Kind.String()
		if o.WeightDecay != 0 {
			name += "+decay"
		}
		if o.Bound != 0 {
			name += "+bound"
		}
		for _, dim := range []int{16, 64} {
			b.Run(fmt.Sprintf("%s/dim=%d", name, dim), func(b *testing.B) {
				r := mustNew(b, o)
				w, g, state := make([]float32, dim), make([]float32, dim), make([]float32, r.StateLen(dim))
				r.InitState(w, state)
				for i := range g {
					g[i] = 0.01 * float32(i+1)
				}
				for i := 0; b.Loop(); i++ {
					r.Update(w, state, g, 1e-6)
				}
			})
		}
	}
}
