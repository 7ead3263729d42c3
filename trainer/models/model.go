package models

import (
	"fmt"
	"math"

	"github.com/rowraft/rowraft"
)

// Model is the interface between the training loop and a model. One goroutine at a time uses a Model.
type Model interface {
	// Params are the dense weights, in the order of Step's arguments.
	Params() []Param
	// Step runs the model forward and backward.
	//
	// params has all dense weights one after the other, in the order of Params. Step fills out and keeps none of its
	// arguments. out.Loss is NaN or infinite if the numbers are; the caller then skips the batch.
	Step(b *Batch, params []float32, out *Result) error
	// Predict runs forward only and fills out.Predictions and out.Loss.
	Predict(b *Batch, params []float32, out *Result) error
}

// Param is one dense tensor: its name, shape and initial values.
type Param struct {
	Name  string
	Shape []int
	// FanIn and FanOut scale the Glorot initializer; both 0 means zeros.
	FanIn, FanOut int
}

// Size is the number of weights.
func (p Param) Size() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// TotalSize is the number of weights of all params.
func TotalSize(params []Param) int {
	n := 0
	for _, p := range params {
		n += p.Size()
	}
	return n
}

// Initial writes the initial weights of params one after the other into dst: a pure function of seed, the position
// of the tensor and of the weight, so that every trainer computes the same weights without communication. Tensors
// with a fan are Glorot uniform, the others zeros.
func Initial(dst []float32, params []Param, seed uint64) {
	at := 0
	for t, p := range params {
		limit := 0.0
		if p.FanIn+p.FanOut > 0 {
			limit = math.Sqrt(6 / float64(p.FanIn+p.FanOut))
		}
		for i := range p.Size() {
			u := float64(mix(seed^uint64(t+1)<<40, uint64(i))>>11) / (1 << 53)
			dst[at] = float32((2*u - 1) * limit)
			at++
		}
	}
}

// mix is splitmix64's finalizer over the i-th state after seed.
func mix(seed, i uint64) uint64 {
	z := seed + (i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Batch is the input of a step, apart from weights. All slices have the whole batch size of the model, of which the
// first N examples are real. Fields has the embeddings of each example, feature after feature, each with the width of
// its feature: the caller has pulled the rows and summed those of a feature with several values.
type Batch struct {
	N      int
	Labels []float32 // [batch, tasks], 0 or 1; the number of a class
	Dense  []float32 // [batch, dense features], row-major
	Fields []float32 // [batch, sum of the widths], row-major
}

// Result is the output of a step. The caller allocates its slices, or the model grows them; they are reused.
type Result struct {
	Loss        float64   // mean of the N examples; cross entropy is in nats
	Predictions []float32 // [N, tasks], probability of label 1, or of the right class, before the update
	Classes     []int32   // [N], the most probable class; nil where there are two, by probability
	FieldGrads  []float32 // of the mean loss, for Batch.Fields; those of padding examples are undefined
	ParamGrads  []float32 // of the mean loss, for all dense weights, in the order of Params
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// invalid returns the error for a shape that the caller got wrong.
func invalid(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, "model: %s", fmt.Sprintf(format, args...))
}
