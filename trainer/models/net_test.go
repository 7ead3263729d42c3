package models

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rowraft/rowraft/trainer/models/kernel"
)

// sample is a batch of n examples for c, and params that are all different from zero.
func sample(c *Config, params []Param, n int, seed uint64) (*Batch, []float32) {
	r := rand.New(rand.NewPCG(seed, 1))
	normal := func(n int, scale float64) []float32 {
		s := make([]float32, n)
		for i := range s {
			s[i] = float32(r.NormFloat64() * scale)
		}
		return s
	}
	width := 0
	for _, w := range c.Widths {
		width += w
	}
	b := &Batch{N: n, Labels: make([]float32, c.Batch*c.tasks()), Dense: normal(c.Batch*c.Dense, 1),
		Fields: normal(c.Batch*width, 0.5)}
	for i := range b.Labels {
		b.Labels[i] = float32(r.IntN(2))
	}
	weights := make([]float32, TotalSize(params))
	Initial(weights, params, seed)
	kernel.Add(weights, normal(len(weights), 0.1))
	return b, weights
}

// The DLRM on the CPU and the graph are one model: equal params, and equal numbers but for rounding.
func TestDLRMIsTheGraph(t *testing.T) {
	for name, c := range map[string]Config{
		"with dense features":    tiny,
		"without dense features": {Batch: 6, Widths: []int{16, 16, 16}, Dim: 16, Top: []int{16}},
		"without hidden layers":  {Batch: 9, Dense: 2, Widths: []int{4, 4}, Dim: 4},
		"as the examples": {Batch: 32, Dense: 13, Widths: slices.Repeat([]int{16}, 26), Dim: 16, Bottom: []int{64},
			Top: []int{64, 32}},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := newNet(&c, dlrm)
			if err != nil {
				t.Fatal(err)
			}
			g, err := NewDLRMGraph(open(t), DLRMGraphConfig{Batch: c.Batch, Dense: c.Dense, Categorical: len(c.Widths),
				Dim: c.Dim, Bottom: c.Bottom, Top: c.Top})
			if err != nil {
				t.Fatal(err)
			}
			equal(t, m.Params(), g.Params())
			for n := c.Batch - 2; n <= c.Batch; n++ {
				b, params := sample(&c, m.Params(), n, uint64(n))
				var got, want, predicted Result
				for range 2 { // the second on used memory
					if err := m.Step(b, params, &got); err != nil {
						t.Fatal(err)
					}
				}
				if err := g.Step(b, params, &want); err != nil {
					t.Fatal(err)
				}
				if err := m.Predict(b, params, &predicted); err != nil || predicted.Loss != got.Loss {
					t.Errorf("Predict has the loss %v, %v; Step %v", predicted.Loss, err, got.Loss)
				}
				real := n * m.(*net).fields.width
				near(t, "loss", []float32{float32(got.Loss)}, []float32{float32(want.Loss)})
				near(t, "predictions", got.Predictions, want.Predictions)
				near(t, "gradients of fields", got.FieldGrads[:real], want.FieldGrads[:real])
				near(t, "gradients of params", got.ParamGrads, want.ParamGrads)
			}
		})
	}
}

func equal(t *testing.T, got, want []Param) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d params, want %d: %v, %v", len(got), len(want), got, want)
	}
	for i := range got {
		if got[i].Name != want[i].Name || got[i].Size() != want[i].Size() || got[i].FanIn != want[i].FanIn ||
			got[i].FanOut != want[i].FanOut {
			t.Errorf("param %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}

func BenchmarkStep(b *testing.B) {
	for _, tc := range []struct {
		kind            string
		dense, features int
	}{
		{"dlrm", 4, 8}, {"dlrm", 13, 26}, {"dcn", 13, 26}, {"deepfm", 13, 26}, {"wide-deep", 13, 26}, {"fm", 13, 26},
		{"lr", 13, 26}, {"two-tower", 0, 8},
	} {
		b.Run(fmt.Sprintf("%s/dense=%d/features=%d", tc.kind, tc.dense, tc.features), func(b *testing.B) {
			k, _ := Find(tc.kind)
			c := Config{Batch: 512, Dense: tc.dense, Dim: 16, Widths: slices.Repeat([]int{k.RowWidth(16)}, tc.features),
				Bottom: []int{64}, Top: []int{64, 32}, Cross: 2, Items: 4}
			m, err := k.New(nil, &c)
			if err != nil {
				b.Fatal(err)
			}
			batch, params := sample(&c, m.Params(), c.Batch, 1)
			var r Result
			if err := m.Step(batch, params, &r); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := m.Step(batch, params, &r); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(c.Batch*b.N)/b.Elapsed().Seconds(), "examples/s")
		})
	}
}
