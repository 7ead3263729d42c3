package models

import (
	"fmt"
	"math"

	"github.com/gomlx/compute"
)

// SelfTest runs one step of a small model on backend and compares its
// predictions with the same formula on the host, to 2 % (a GPU may round
// products to TF32).
func SelfTest(backend compute.Backend) error {
	cfg := DLRMGraphConfig{Batch: 4, Dense: 1, Categorical: 2, Dim: 2}
	m, err := NewDLRMGraph(backend, cfg)
	if err != nil {
		return err
	}
	params := []float32{0.5, -1, 0.25, 0.75, 2, 3, 0.1, 0.2, 0.3, -0.4}
	b := &Batch{N: 4, Labels: []float32{1, 0, 0, 1}, Dense: []float32{2, 1, 0, -1},
		Fields: []float32{1, 2, 3, -1, 3, -1, 1, 2, 1, 2, 1, 2, 3, -1, 3, -1}}
	var r Result
	if err := m.Step(b, params, &r); err != nil {
		return err
	}
	for i := range b.N {
		x := float64(b.Dense[i])
		v := [2]float64{0.5*x + 0.25, -x + 0.75} // bottom.out
		e0, e1 := b.Fields[4*i:], b.Fields[4*i+2:]
		dot := func(a, b [2]float64) float64 { return a[0]*b[0] + a[1]*b[1] }
		f0, f1 := [2]float64{float64(e0[0]), float64(e0[1])}, [2]float64{float64(e1[0]), float64(e1[1])}
		z := 2*v[0] + 3*v[1] + 0.1*dot(f0, v) + 0.2*dot(f1, v) + 0.3*dot(f1, f0) - 0.4
		want := 1 / (1 + math.Exp(-z))
		if got := float64(r.Predictions[i]); !(math.Abs(got-want) < 0.02) {
			return fmt.Errorf("example %d: prediction %v, want %v: the backend computes something else", i, got, want)
		}
	}
	return nil
}
