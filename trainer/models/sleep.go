package models

import (
	"math"
	"time"
)

// Sleep takes the time of a model and computes nothing: its gradients are zeros. A benchmark with it shows how
// workers wait for each other, however few cores they share.
type Sleep struct {
	Time time.Duration // of a step
}

// Params returns one tensor, so that there is something dense to pull and push.
func (m *Sleep) Params() []Param { return []Param{{Name: "weights", Shape: []int{64}}} }

// Step implements [Model].
func (m *Sleep) Step(b *Batch, params []float32, out *Result) error {
	time.Sleep(m.Time)
	out.FieldGrads, out.ParamGrads = grow(out.FieldGrads, len(b.Fields)), grow(out.ParamGrads, len(params))
	clear(out.FieldGrads)
	clear(out.ParamGrads)
	return m.Predict(b, params, out)
}

// Predict implements [Model]: every label is as likely as the other.
func (m *Sleep) Predict(b *Batch, _ []float32, out *Result) error {
	out.Loss, out.Predictions = math.Ln2, grow(out.Predictions, b.N)
	for i := range out.Predictions {
		out.Predictions[i] = 0.5
	}
	return nil
}
