package models

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	. "github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/accel"
)

func open(t testing.TB) *accel.Backend {
	t.Helper()
	b, _, err := accel.Open(accel.CPU)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var small = DLRMGraphConfig{Batch: 6, Dense: 3, Categorical: 4, Dim: 5, Bottom: []int{7}, Top: []int{8, 3}}

// example is a batch of n examples with its params, in float32.
func example(cfg DLRMGraphConfig, n int, seed uint64) (b *Batch, params []float32) {
	r := rand.New(rand.NewPCG(seed, 1))
	normal := func(n int, scale float64) []float32 {
		s := make([]float32, n)
		for i := range s {
			s[i] = float32(r.NormFloat64() * scale)
		}
		return s
	}
	b = &Batch{N: n, Labels: make([]float32, cfg.Batch), Dense: normal(cfg.Batch*cfg.Dense, 1),
		Fields: normal(cfg.Batch*cfg.Categorical*cfg.Dim, 0.5)}
	for i := range b.Labels {
		b.Labels[i] = float32(r.IntN(2))
	}
	m := cfg.params()
	params = make([]float32, TotalSize(m))
	Initial(params, m, seed)
	for i := range params { // biases are not zero either
		params[i] += float32(r.NormFloat64() * 0.1)
	}
	return b, params
}

func wide(s []float32) []float64 {
	w := make([]float64, len(s))
	for i, v := range s {
		w[i] = float64(v)
	}
	return w
}

// The graph in float64 against central differences of the host's loss, for
// each weight and each field: method of numeric gradient checking.
func TestGradients(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  DLRMGraphConfig
		n    int
	}{
		{"with dense features", small, 6},
		{"with padding examples", small, 4},
		{"without dense features", DLRMGraphConfig{Batch: 6, Categorical: 4, Dim: 5, Top: []int{8}}, 6},
		{"without hidden layers", DLRMGraphConfig{Batch: 6, Dense: 2, Categorical: 3, Dim: 4}, 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := NewDLRMGraph(open(t), tc.cfg)
			if err != nil {
				t.Fatal(err)
			}
			b, params32 := example(tc.cfg, tc.n, 3)
			fields, params := wide(b.Fields), wide(params32)
			labels, weights := wide(b.Labels), make([]float64, tc.cfg.Batch)
			for i := range tc.n {
				weights[i] = 1 / float64(tc.n)
			}
			inputs := func(backward bool) []any {
				in := []any{tensors.FromFlatDataAndDimensions(fields, tc.cfg.Batch, tc.cfg.Categorical*tc.cfg.Dim)}
				if tc.cfg.Dense > 0 {
					in = append(in, tensors.FromFlatDataAndDimensions(wide(b.Dense), tc.cfg.Batch, tc.cfg.Dense))
				}
				if backward {
					in = append(in, tensors.FromFlatDataAndDimensions(labels, tc.cfg.Batch),
						tensors.FromFlatDataAndDimensions(weights, tc.cfg.Batch))
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
				for i := range tc.n {
					sum += (max(z[i], 0) + math.Log1p(math.Exp(-math.Abs(z[i]))) - labels[i]*z[i]) * weights[i]
				}
				return sum
			}
			out, err := m.step.Call(inputs(true)...)
			if err != nil {
				t.Fatal(err)
			}
			grads := out[1:]
			check := func(name string, values, got []float64) {
				const h = 1e-5
				for i := range values {
					was := values[i]
					values[i] = was + h
					up := loss()
					values[i] = was - h
					down := loss()
					values[i] = was
					if want := (up - down) / (2 * h); math.Abs(got[i]-want) > 1e-8+1e-6*math.Abs(want) {
						t.Errorf("gradient of %s[%d] = %g, differences say %g", name, i, got[i], want)
					}
				}
			}
			check("fields", fields, tensors.MustCopyFlatData[float64](grads[0]))
			at := 0
			for i, p := range m.Params() {
				check(p.Name, params[at:at+p.Size()], tensors.MustCopyFlatData[float64](grads[1+i]))
				at += p.Size()
			}
		})
	}
}

// Step in float32, through padding, against the same formula by hand.
func TestStepMatchesHandWrittenDLRM(t *testing.T) {
	cfg := DLRMGraphConfig{Batch: 2, Dense: 1, Categorical: 2, Dim: 2}
	m, err := NewDLRMGraph(open(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	// bottom.out: [1,2] weights, [2] bias; top.0.bottom [2,1]; top.0.pairs [3,1]; top.0.bias [1]
	params := []float32{0.5, -1, 0.25, 0.75, 2, 3, 0.1, 0.2, 0.3, -0.4}
	b := &Batch{N: 1, Labels: []float32{1, 0}, Dense: []float32{2, 9}, Fields: []float32{1, 2, 3, -1, 1, 2, 1, 2}}
	var got Result
	if err := m.Step(b, params, &got); err != nil {
		t.Fatal(err)
	}
	// bottom = (1.25, -1.25); pairs: e0·b = -1.25, e1·b = 5, e1·e0 = 1
	z := 2*1.25 - 3*1.25 + 0.1*-1.25 + 0.2*5 + 0.3*1 - 0.4
	p := 1 / (1 + math.Exp(-z))
	if math.Abs(float64(got.Predictions[0])-p) > 1e-6 || math.Abs(got.Loss+math.Log(p)) > 1e-6 ||
		len(got.Predictions) != 1 {
		t.Errorf("predictions %v loss %v, want %v and %v", got.Predictions, got.Loss, p, -math.Log(p))
	}
	// dz/de0 = 0.1·b + 0.3·e1, dz/de1 = 0.2·b + 0.3·e0
	want := []float64{(p - 1) * (0.125 + 0.9), (p - 1) * (-0.125 - 0.3), (p - 1) * (0.25 + 0.3), (p - 1) * (-0.25 + 0.6)}
	for i, w := range want {
		if math.Abs(float64(got.FieldGrads[i])-w) > 1e-6 {
			t.Errorf("gradients of fields %v, want %v", got.FieldGrads, want)
			break
		}
	}
	if bias := float64(got.ParamGrads[len(params)-1]); math.Abs(bias-(p-1)) > 1e-6 {
		t.Errorf("gradient of the last bias %v, want %v", bias, p-1)
	}
	var again Result
	if err := m.Predict(b, params, &again); err != nil || again.Predictions[0] != got.Predictions[0] {
		t.Errorf("Predict = %v, %v, want Step's %v", again.Predictions, err, got.Predictions)
	}
}

func TestStepIsDeterministic(t *testing.T) {
	run := func() []float32 {
		m, err := NewDLRMGraph(open(t), small)
		if err != nil {
			t.Fatal(err)
		}
		var all []float32
		for seed := range uint64(4) {
			b, params := example(small, 6, seed)
			var r Result
			if err := m.Step(b, params, &r); err != nil {
				t.Fatal(err)
			}
			all = slices.Concat(all, r.Predictions, r.FieldGrads, r.ParamGrads)
		}
		return all
	}
	a, b := run(), run()
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			t.Fatalf("number %d of two equal runs: %v and %v", i, a[i], b[i])
		}
	}
}

func TestBadShapes(t *testing.T) {
	m, err := NewDLRMGraph(open(t), small)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(b *Batch, params *[]float32){
		"no examples":       func(b *Batch, _ *[]float32) { b.N = 0 },
		"too many examples": func(b *Batch, _ *[]float32) { b.N = 7 },
		"labels cut short":  func(b *Batch, _ *[]float32) { b.Labels = b.Labels[:5] },
		"fields cut short":  func(b *Batch, _ *[]float32) { b.Fields = b.Fields[:7] },
		"params cut short":  func(_ *Batch, params *[]float32) { *params = (*params)[:7] },
	} {
		t.Run(name, func(t *testing.T) {
			b, params := example(small, 6, 1)
			spoil(b, &params)
			var r Result
			if err := m.Step(b, params, &r); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
				t.Errorf("Step = %v, want InvalidArgument", err)
			}
		})
	}
	for _, cfg := range []DLRMGraphConfig{{}, {Batch: 1, Dim: 1, Categorical: 1},
		{Batch: 1, Dim: 1, Categorical: 2, Top: []int{0}}} {
		if _, err := NewDLRMGraph(open(t), cfg); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("NewDLRMGraph(%+v) = %v, want InvalidArgument", cfg, err)
		}
	}
}

// The initial weights are part of what trainers share without talking: their
// bits are fixed.
func TestInitial(t *testing.T) {
	params := []Param{{Name: "w", Shape: []int{2, 2}, FanIn: 2, FanOut: 2}, {Name: "b", Shape: []int{2}}}
	got := make([]float32, 6)
	Initial(got, params, 42)
	limit := float32(math.Sqrt(1.5))
	for i, v := range got {
		if i >= 4 && v != 0 || i < 4 && (v == 0 || v < -limit || v > limit) {
			t.Errorf("Initial = %v, want four of ±%v and two zeros", got, limit)
			break
		}
	}
	other := make([]float32, 6)
	Initial(other, params, 43)
	if slices.Equal(got, other) {
		t.Error("two seeds give the same weights")
	}
}

// The library's default mode hangs with many independent large products; the
// mode accel opens must not. A hang shows as the test's timeout.
func TestManyIndependentProducts(t *testing.T) {
	e, err := NewExec(open(t).Backend, func(x *Node) *Node {
		var sum *Node
		for range 24 {
			p := ReduceAllSum(MatMul(x, x))
			if sum == nil {
				sum = p
			} else {
				sum = Add(sum, p)
			}
		}
		return sum
	})
	if err != nil {
		t.Fatal(err)
	}
	x := make([]float32, 96*96)
	for range 5 {
		out, err := e.Call(tensors.FromFlatDataAndDimensions(x, 96, 96))
		if err != nil {
			t.Fatal(err)
		}
		finalize(out)
	}
}

func BenchmarkGraphStep(b *testing.B) {
	for _, tc := range []struct {
		name string
		cfg  DLRMGraphConfig
	}{
		{"demo", DLRMGraphConfig{Batch: 512, Dense: 4, Categorical: 8, Dim: 16, Bottom: []int{64}, Top: []int{64, 32}}},
		{"criteo", DLRMGraphConfig{Batch: 512, Dense: 13, Categorical: 26, Dim: 16, Bottom: []int{64}, Top: []int{64, 32}}},
	} {
		b.Run(tc.name, func(b *testing.B) {
			m, err := NewDLRMGraph(open(b), tc.cfg)
			if err != nil {
				b.Fatal(err)
			}
			batch, params := example(tc.cfg, tc.cfg.Batch, 1)
			var r Result
			if err := m.Step(batch, params, &r); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := m.Step(batch, params, &r); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(tc.cfg.Batch*b.N)/b.Elapsed().Seconds(), "examples/s")
		})
	}
}
