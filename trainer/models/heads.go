package models

import "math"

// labelHead scores each number of a node against a label.
type labelHead struct {
	z     *node // [batch, tasks]
	loss  string
	tasks int
}

// predict returns the head for the outputs z, one for each task, before the sigmoid of BCE.
func (n *net) predict(z *node) head {
	return &labelHead{z: z, loss: n.cfg.Loss, tasks: n.cfg.tasks()}
}

// oneTask is predict for a model that has one output.
func (n *net) oneTask(z *node) (head, error) {
	if n.cfg.tasks() > 1 {
		return nil, invalid("%d tasks: this kind of model has one output", n.cfg.tasks())
	}
	return n.predict(z), nil
}

func (h *labelHead) forward(b *Batch, out *Result) {
	out.Predictions, out.Classes = grow(out.Predictions, b.N*h.tasks), nil
	sum := 0.0
	for i := range b.N {
		at := i * h.tasks
		for t, z := range h.z.row(i) {
			y := float64(b.Labels[at+t])
			if h.loss == MSE {
				out.Predictions[at+t] = z
				sum += (float64(z) - y) * (float64(z) - y)
				continue
			}
			var loss float64
			out.Predictions[at+t], loss = bce(float64(z), y)
			sum += loss
		}
	}
	out.Loss = sum / float64(b.N*h.tasks)
}

// backward: the derivative of BCE is σ(z) − y, that of MSE is 2·(z − y).
func (h *labelHead) backward(b *Batch) {
	h.z.set = true
	scale := 1 / float64(b.N*h.tasks)
	for i := range b.N {
		d := h.z.grad(i)
		for t, z := range h.z.row(i) {
			y := float64(b.Labels[i*h.tasks+t])
			if h.loss == MSE {
				d[t] = float32(2 * (float64(z) - y) * scale)
			} else {
				d[t] = float32((1/(1+math.Exp(-float64(z))) - y) * scale)
			}
		}
	}
}

// bce returns the probability and the cross entropy, log(1 + e^z) − y·z without overflow.
func bce(z, y float64) (p float32, loss float64) {
	return float32(1 / (1 + math.Exp(-z))), max(z, 0) + math.Log1p(math.Exp(-math.Abs(z))) - y*z
}
