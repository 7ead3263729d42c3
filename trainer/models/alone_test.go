package models

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestPredictionsDoNotDependOnTheBatch: an example has the bits of its prediction at each place of a batch, whatever
// the other examples are.
func TestPredictionsDoNotDependOnTheBatch(t *testing.T) {
	const batch, dense, dim = 33, 3, 4
	for _, kind := range Kinds() {
		k, _ := Find(kind)
		if k.Images {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			width := k.RowWidth(dim)
			widths := []int{width, width, width, width}
			m, err := k.New(nil, &Config{Batch: batch, Dense: dense, Widths: widths, Dim: dim, Bottom: []int{8},
				Top: []int{8, 5}, Cross: 2, Items: 2})
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(1, 2))
			params := make([]float32, TotalSize(m.Params()))
			for i := range params {
				params[i] = float32(r.NormFloat64())
			}
			fields := len(widths) * width
			b := Batch{N: batch, Labels: make([]float32, batch), Dense: make([]float32, batch*dense),
				Fields: make([]float32, batch*fields)}
			for _, s := range [][]float32{b.Dense, b.Fields} {
				for i := range s {
					s[i] = float32(r.NormFloat64())
				}
			}
			var out Result
			if err := m.Predict(&b, params, &out); err != nil {
				t.Fatal(err)
			}
			want := append([]float32(nil), out.Predictions...)
			for from := range batch {
				for _, n := range []int{1, 2, 3, 5, 16} {
					n = min(n, batch-from)
					part := Batch{N: n, Labels: make([]float32, batch), Dense: make([]float32, batch*dense),
						Fields: make([]float32, batch*fields)}
					copy(part.Dense, b.Dense[from*dense:(from+n)*dense])
					copy(part.Fields, b.Fields[from*fields:(from+n)*fields])
					if err := m.Predict(&part, params, &out); err != nil {
						t.Fatal(err)
					}
					for i, p := range out.Predictions {
						if math.Float32bits(p) != math.Float32bits(want[from+i]) {
							t.Fatalf("example %d is %v at place %d of %d, and %v in the whole batch", from+i, p, i, n, want[from+i])
						}
					}
				}
			}
		})
	}
}
