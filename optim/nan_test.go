package optim

import (
	"math"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestNaNHasItsBits: docs/formats/rules.md, "A NaN that an update makes has the bits 0xFFC00000". The
// second step of each rule combines infinities. (Add never makes a NaN, because its values are finite.)
func TestNaNHasItsBits(t *testing.T) {
	for _, o := range []rowraft.Optimizer{
		{Kind: rowraft.SGD, LR: 1},
		{Kind: rowraft.Adagrad, LR: 0.1, Epsilon: 1e-8},
		{Kind: rowraft.Adam, LR: 0.01, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8},
		{Kind: rowraft.Momentum, LR: 1, Momentum: 0.5},
		{Kind: rowraft.RowWiseAdagrad, LR: 1, Epsilon: 1e-8},
		{Kind: rowraft.RowWiseAdagrad, LR: 1, Epsilon: 1e-8, WeightDecay: 0.1, Bound: 1}, // a NaN is not bounded
		{Kind: rowraft.FTRL, LR: 0.1, Beta: 1, L1: 1, L2: 1},
		{Kind: rowraft.FTRL, LR: 0.1, Beta: 1, Bound: 1},
		{Kind: rowraft.SGD, LR: 1, WeightDecay: 0.5},
		{Kind: rowraft.Adam, LR: 0.01, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8, WeightDecay: 1, Bound: 1},
	} {
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, dim := range []int{1, 8, 11} { // plain, vector, both
			w, state, g := make([]float32, dim), make([]float32, r.StateLen(dim)), make([]float32, dim)
			r.InitState(w, state)
			nans := 0
			for _, x := range []float32{math.MaxFloat32, -math.MaxFloat32, math.MaxFloat32} {
				for i := range g {
					g[i] = x
				}
				r.Update(w, state, g, math.MaxFloat32)
			}
			for i, v := range append(w, state...) {
				if v != v {
					nans++
					if b := math.Float32bits(v); b != 0xFFC00000 {
						t.Errorf("%s, dim %d: number %d is a NaN with bits %#x, want 0xffc00000", o, dim, i, b)
					}
				}
			}
			if nans < dim {
				t.Errorf("%s, dim %d: %d NaNs in %v %v: nothing was tested", o, dim, nans, w, state)
			}
		}
	}
}
