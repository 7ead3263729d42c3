package models

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/rowraft/rowraft"
)

// digits is a batch of images with a bright square whose place is the label.
func digits(cfg LeNetConfig, n int, seed uint64) *Batch {
	r := rand.New(rand.NewPCG(seed, 2))
	b := &Batch{N: n, Labels: make([]float32, cfg.Batch), Dense: make([]float32, cfg.Batch*cfg.pixels())}
	for i := range b.Labels {
		y := r.IntN(cfg.Classes)
		b.Labels[i] = float32(y)
		image := b.Dense[i*cfg.pixels() : (i+1)*cfg.pixels()]
		for p := range image {
			image[p] = float32(0.2 * r.Float64())
		}
		for dy := range 4 {
			for dx := range 4 {
				image[(2+dy+3*(y%3))*cfg.Width+2+dx+3*(y/3)] += 0.8
			}
		}
	}
	return b
}

func lenetParams(m *LeNet, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 3))
	params := make([]float32, TotalSize(m.Params()))
	Initial(params, m.Params(), seed)
	for i := range params {
		params[i] += float32(r.NormFloat64() * 0.02)
	}
	return params
}

// The graph in float64 against central differences of the host's loss, for
// weights spread over every tensor: method of numeric gradient checking.
func TestLeNetGradients(t *testing.T) {
	for _, n := range []int{3, 2} { // 2: with a padding example
		cfg := LeNetConfig{Batch: 3, Height: 16, Width: 20, Classes: 4}
		m, err := NewLeNet(open(t), cfg)
		if err != nil {
			t.Fatal(err)
		}
		b := digits(cfg, n, 5)
		params := wide(lenetParams(m, 7))
		m.fill(b)
		inputs := func(backward bool) []any {
			in := []any{tensors.FromFlatDataAndDimensions(wide(m.windows), kernelSize*kernelSize, cfg.Batch*len(m.places))}
			if backward {
				in = append(in, tensors.FromFlatDataAndDimensions(wide(m.labels), cfg.Batch, cfg.Classes),
					tensors.FromFlatDataAndDimensions(wide(m.weights), cfg.Batch))
			}
			at := 0
			for _, p := range m.Params() {
				in = append(in, tensors.FromFlatDataAndDimensions(params[at:at+p.Size()], p.Shape...))
				at += p.Size()
			}
			return in
		}
		loss := func() float64 {
			out, err := m.predict.Call(inputs(false)...)
			if err != nil {
				t.Fatal(err)
			}
			defer finalize(out)
			z, sum := tensors.MustCopyFlatData[float64](out[0]), 0.0
			for i := range n {
				total := 0.0
				for _, v := range z[i*cfg.Classes : (i+1)*cfg.Classes] {
					total += math.Exp(v)
				}
				sum += math.Log(total) - z[i*cfg.Classes+int(b.Labels[i])]
			}
			return sum / float64(n)
		}
		out, err := m.step.Call(inputs(true)...)
		if err != nil {
			t.Fatal(err)
		}
		at, moved := 0, 0
		for i, p := range m.Params() {
			got := tensors.MustCopyFlatData[float64](out[1+i])
			for j := 0; j < p.Size(); j += 1 + p.Size()/7 {
				const h = 1e-5
				was := params[at+j]
				params[at+j] = was + h
				up := loss()
				params[at+j] = was - h
				down := loss()
				params[at+j] = was
				want := (up - down) / (2 * h)
				if math.Abs(got[j]-want) > 1e-8+1e-6*math.Abs(want) {
					t.Errorf("%d examples: gradient of %s[%d] = %g, differences say %g", n, p.Name, j, got[j], want)
				}
				if want != 0 {
					moved++
				}
			}
			at += p.Size()
		}
		if moved < 30 {
			t.Errorf("only %d of the weights that were looked at have a gradient", moved)
		}
	}
}

// A step by hand on the host, in float64, against the graph in float32.
func TestLeNetPredictsWhatItsFormulaSays(t *testing.T) {
	cfg := LeNetConfig{Batch: 2, Height: 16, Width: 20, Classes: 4}
	m, err := NewLeNet(open(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	b, params := digits(cfg, 1, 9), lenetParams(m, 9)
	var got Result
	if err := m.Step(b, params, &got); err != nil {
		t.Fatal(err)
	}
	z := lenetByHand(cfg, b.Dense[:cfg.pixels()], m.Params(), params)
	sum, best := 0.0, 0
	for k, v := range z {
		sum += math.Exp(v)
		if v > z[best] {
			best = k
		}
	}
	want := math.Log(sum) - z[int(b.Labels[0])]
	if math.Abs(got.Loss-want) > 1e-5 || len(got.Classes) != 1 || int(got.Classes[0]) != best ||
		math.Abs(float64(got.Predictions[0])-math.Exp(-want)) > 1e-5 {
		t.Errorf("loss %v, class %v, probability %v; want %v, %d, %v", got.Loss, got.Classes, got.Predictions, want, best,
			math.Exp(-want))
	}
	var again Result
	if err := m.Predict(b, params, &again); err != nil || again.Loss != got.Loss {
		t.Errorf("Predict has the loss %v, %v; Step %v", again.Loss, err, got.Loss)
	}
}

// lenetByHand returns the logits of one image.
func lenetByHand(cfg LeNetConfig, image []float32, params []Param, flat []float32) []float64 {
	take := func() []float64 {
		n := params[0].Size()
		p := wide(flat[:n])
		params, flat = params[1:], flat[n:]
		return p
	}
	h, w, channels, x := cfg.Height, cfg.Width, 1, wide(image)
	for _, out := range []int{firstChannels, secondChannels} {
		weights, bias := take(), take()
		oh, ow := (h-kernelSize+1)/2, (w-kernelSize+1)/2
		y := make([]float64, oh*ow*out)
		for o := range out {
			for i := range oh {
				for j := range ow {
					best := math.Inf(-1)
					for cell := range 4 {
						sum := bias[o]
						for ky := range kernelSize {
							for kx := range kernelSize {
								for c := range channels {
									row, column := 2*i+cell/2+ky, 2*j+cell%2+kx
									sum += x[(c*h+row)*w+column] * weights[(o*channels+c)*kernelSize*kernelSize+ky*kernelSize+kx]
								}
							}
						}
						best = max(best, sum)
					}
					y[(o*oh+i)*ow+j] = max(best, 0)
				}
			}
		}
		h, w, channels, x = oh, ow, out, y
	}
	for layer := range 3 {
		weights, bias := take(), take()
		y := make([]float64, len(bias))
		for o := range y {
			y[o] = bias[o]
			for i := range x {
				y[o] += x[i] * weights[i*len(y)+o]
			}
			if layer < 2 {
				y[o] = max(y[o], 0)
			}
		}
		x = y
	}
	return x
}

func TestLeNetLearns(t *testing.T) {
	cfg := LeNetConfig{Batch: 16, Height: 20, Width: 20, Classes: 9}
	m, err := NewLeNet(open(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	params := make([]float32, TotalSize(m.Params()))
	Initial(params, m.Params(), 1)
	var r Result
	first := 0.0
	for step := range uint64(60) {
		if err := m.Step(digits(cfg, cfg.Batch, step), params, &r); err != nil {
			t.Fatal(err)
		}
		if step == 0 {
			first = r.Loss
		}
		for i, g := range r.ParamGrads {
			params[i] -= 0.1 * g
		}
	}
	if math.Abs(first-math.Log(9)) > 0.02 || !(r.Loss < 0.5) {
		t.Errorf("loss %.3f at first and %.3f after 60 steps, want ln 9 = %.3f and < 0.5", first, r.Loss, math.Log(9))
	}
}

func TestBadLeNets(t *testing.T) {
	for _, cfg := range []LeNetConfig{
		{}, {Batch: 1, Height: 28, Width: 28}, {Batch: 1, Height: 27, Width: 28, Classes: 10},
		{Batch: 1, Height: 28, Width: 12, Classes: 10}, {Height: 28, Width: 28, Classes: 10},
	} {
		if _, err := NewLeNet(open(t), cfg); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("NewLeNet(%+v) = %v, want InvalidArgument", cfg, err)
		}
	}
	cfg := LeNetConfig{Batch: 2, Height: 16, Width: 16, Classes: 3}
	m, err := NewLeNet(open(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(b *Batch, params *[]float32){
		"no examples":       func(b *Batch, _ *[]float32) { b.N = 0 },
		"pixels cut short":  func(b *Batch, _ *[]float32) { b.Dense = b.Dense[1:] },
		"rows":              func(b *Batch, _ *[]float32) { b.Fields = make([]float32, 4) },
		"params cut short":  func(_ *Batch, params *[]float32) { *params = (*params)[1:] },
		"a class too many":  func(b *Batch, _ *[]float32) { b.Labels[1] = 3 },
		"half a class":      func(b *Batch, _ *[]float32) { b.Labels[1] = 0.5 },
		"a class below all": func(b *Batch, _ *[]float32) { b.Labels[1] = -1 },
		"no class":          func(b *Batch, _ *[]float32) { b.Labels[1] = float32(math.NaN()) },
	} {
		t.Run(name, func(t *testing.T) {
			b, params := digits(cfg, 2, 1), lenetParams(m, 1)
			spoil(b, &params)
			var r Result
			if err := m.Step(b, params, &r); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
				t.Errorf("Step = %v, want InvalidArgument", err)
			}
		})
	}
}

func BenchmarkLeNetStep(b *testing.B) {
	cfg := LeNetConfig{Batch: 64, Height: 28, Width: 28, Classes: 10}
	m, err := NewLeNet(open(b), cfg)
	if err != nil {
		b.Fatal(err)
	}
	batch, params := digits(LeNetConfig{Batch: 64, Height: 28, Width: 28, Classes: 9}, 64, 1), lenetParams(m, 1)
	var r Result
	if err := m.Step(batch, params, &r); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := m.Step(batch, params, &r); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(64*b.N)/b.Elapsed().Seconds(), "examples/s")
}
