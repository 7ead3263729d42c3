package optim

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestFTRLIsGradientDescent: McMahan et al. 2013, section 3: without λ1 and λ2, FTRL-Proximal gives the
// same weights as online gradient descent, w(t+1) = w(t) - η(t)·g(t) with η = α/(β + √n), for any sequence
// of learning rates (σ is the new 1/η minus the previous one). So a row with any start stays on that path,
// also when a schedule changes α.
func TestFTRLIsGradientDescent(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 0))
	r := mustNew(t, rowraft.Optimizer{Kind: rowraft.FTRL, LR: 0.1, Beta: 1})
	for _, start := range []float32{0, 0.75, -3} {
		w := []float32{start}
		state := make([]float32, r.StateLen(1))
		r.InitState(w, state)
		want, n := float64(start), 0.0
		for step := range 200 {
			alpha := 0.1 / float64(1+step/20) // decreases to a tenth
			if step < 10 {
				alpha = 0.01 * float64(step+1) // warms up
			}
			g := rng.NormFloat64()
			r.Update(w, state, []float32{float32(g)}, float32(alpha))
			n += g * g
			want -= alpha / (1 + math.Sqrt(n)) * g
			if math.Abs(float64(w[0])-want) > 2e-5 {
				t.Fatalf("from %v, step %d with learning rate %v: w = %v, gradient descent has %v", start, step, alpha, w[0], want)
			}
		}
	}
}

// TestFTRLGoesOnFromAnAssignedWeight: docs/formats/rules.md: an assign sets z to fit. A push with gradient
// 0 then changes nothing, for any λ1 and λ2.
func TestFTRLGoesOnFromAnAssignedWeight(t *testing.T) {
	r := mustNew(t, rowraft.Optimizer{Kind: rowraft.FTRL, LR: 0.1, Beta: 1, L1: 0.5, L2: 3})
	w, state := []float32{0.25, 0, -0.5}, make([]float32, r.StateLen(3))
	r.InitState(w, state)
	for step, assigned := range [][]float32{nil, {-4, 2, 0}, {1e-3, -1e3, 7}} {
		if assigned != nil {
			r.Assign(w, state, assigned)
		}
		before := [3]float32(w)
		r.Update(w, state, make([]float32, 3), 0.1)
		for i, v := range w {
			if math.Abs(float64(v-before[i])) > 1e-5*math.Abs(float64(before[i])) {
				t.Errorf("step %d: weight %d went from %v to %v by a gradient of 0", step, i, before[i], v)
			}
		}
		r.Update(w, state, []float32{1, -2, 3}, 0.1)
	}
}
