package models

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

// sizes are the shapes in which every kind of the CPU is tested: widths that need padding and widths that do not, with
// and without dense features, cross and hidden layers, and a batch that is not full.
var sizes = map[string]struct {
	c        Config
	features int
	n        int
}{
	"padded": {
		Config{Batch: 6, Dense: 3, Dim: 5, Bottom: []int{7}, Top: []int{8, 3}, Cross: 2, Items: 2}, 4, 6,
	},
	"not full": {
		Config{Batch: 6, Dense: 2, Dim: 4, Bottom: []int{5}, Top: []int{6}, Cross: 1, Items: 1}, 3, 4,
	},
	"without dense features": {Config{Batch: 5, Dim: 16, Top: []int{16}, Cross: 1, Items: 2}, 3, 5},
	"without hidden layers":  {Config{Batch: 5, Dense: 2, Dim: 3, Items: 1}, 3, 5},
	"two tasks": {
		Config{Batch: 5, Dense: 2, Dim: 3, Bottom: []int{4}, Top: []int{6}, Cross: 1, Tasks: 2}, 3, 4,
	},
	"numbers": {
		Config{Batch: 5, Dense: 2, Dim: 3, Bottom: []int{4}, Top: []int{6}, Cross: 1, Loss: MSE}, 3, 5,
	},
}

// eachNet calls f with every kind of the CPU in every size that it allows.
func eachNet(t *testing.T, f func(t *testing.T, m *net, b *Batch, params []float32)) {
	for _, kind := range Kinds() {
		k, _ := Find(kind)
		if k.RowWidth == nil {
			continue
		}
		for name, s := range sizes {
			t.Run(kind+"/"+name, func(t *testing.T) {
				c := s.c
				c.Widths = slices.Repeat([]int{k.RowWidth(c.Dim)}, s.features)
				m, err := k.New(nil, &c)
				single := kind == "lr" || kind == "fm" || kind == "two-tower"
				if refused := c.Tasks > 1 && single || c.Loss == MSE && kind == "two-tower"; refused {
					if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
						t.Errorf("New = %v, want InvalidArgument", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				b, params := sample(&c, m.Params(), s.n, 7)
				if kind == "two-tower" { // an item twice, and examples of both labels
					copy(b.Fields[len(b.Fields)/c.Batch:2*len(b.Fields)/c.Batch], b.Fields)
					b.Labels[0], b.Labels[1], b.Labels[2] = 1, 1, 0
					// Longer vectors and a higher temperature make the loss smooth enough for differences.
					for i := range params {
						params[i] *= 2
					}
					m.(*net).head.(*towersHead).temperature = 1
				}
				f(t, m.(*net), b, params)
			})
		}
	}
}

// The gradients against central differences of the loss, for each weight and each number of the fields, in five points:
// (8·(L(h) − L(−h)) − (L(2h) − L(−2h)))/12h, whose error is h⁴ times the fifth derivative. Where a ReLU changes its
// side between the points, or two items become different, the loss has a kink, and the number is not compared.
func TestNetGradients(t *testing.T) {
	eachNet(t, func(t *testing.T, m *net, b *Batch, params []float32) {
		var r, scratch Result
		if err := m.Step(b, params, &r); err != nil {
			t.Fatal(err)
		}
		sides := func() string {
			var s strings.Builder
			for _, l := range m.layers {
				if a, ok := l.(*affine); ok && a.relu {
					for i := range b.N {
						for _, v := range a.out.row(i) {
							s.WriteByte("-+"[min(int(math.Ceil(float64(v)*1e6)), 1)])
						}
					}
				}
			}
			if h, ok := m.head.(*towersHead); ok {
				for i := range b.N {
					for j := range i {
						fmt.Fprint(&s, slices.Equal(h.items.row(i), h.items.row(j)))
					}
				}
			}
			return s.String()
		}
		base := sides()
		compared, all, steep := 0, 0, 0
		check := func(name string, values, grads []float32) {
			const h = 1.0 / 64
			for i, was := range values {
				var loss [4]float64
				kink := false
				for p, step := range []float32{h, -h, 2 * h, -2 * h} {
					values[i] = was + step
					if err := m.Predict(b, params, &scratch); err != nil {
						t.Fatal(err)
					}
					loss[p] = scratch.Loss
					kink = kink || sides() != base
				}
				values[i] = was
				if all++; kink {
					continue
				}
				compared++
				want := (8*(loss[0]-loss[1]) - (loss[2] - loss[3])) / (12 * h)
				if got := float64(grads[i]); !(math.Abs(got-want) < 5e-5+1e-3*math.Abs(want)) {
					t.Fatalf("gradient of %s[%d] is %g, differences say %g", name, i, got, want)
				}
				if math.Abs(want) > 1e-3 {
					steep++
				}
			}
		}
		check("fields", b.Fields[:b.N*m.fields.width], r.FieldGrads)
		at := 0
		for _, p := range m.Params() {
			check(p.Name, params[at:at+p.Size()], r.ParamGrads[at:])
			at += p.Size()
		}
		if compared < all*2/3 || steep < all/4 {
			t.Errorf("%d of %d numbers were compared, %d of them have a gradient", compared, all, steep)
		}
	})
}

// Examples behind N change nothing, used memory changes nothing, and Predict gives what Step gives.
func TestNetRepeats(t *testing.T) {
	eachNet(t, func(t *testing.T, m *net, b *Batch, params []float32) {
		var first, second Result
		if err := m.Step(b, params, &first); err != nil {
			t.Fatal(err)
		}
		first.FieldGrads, first.ParamGrads = slices.Clone(first.FieldGrads), slices.Clone(first.ParamGrads)
		real := b.N * m.fields.width
		for i := real; i < len(b.Fields); i++ {
			b.Fields[i] = float32(math.NaN())
		}
		for i := b.N * m.cfg.Dense; i < len(b.Dense); i++ {
			b.Dense[i] = float32(math.NaN())
		}
		for i := b.N * m.cfg.tasks(); i < len(b.Labels); i++ {
			b.Labels[i] = float32(math.NaN())
		}
		if err := m.Step(b, params, &second); err != nil {
			t.Fatal(err)
		}
		same := func(what string, a, b []float32) {
			t.Helper()
			if !slices.Equal(a, b) {
				t.Errorf("%s: %v, then %v", what, a, b)
			}
		}
		same("fields", first.FieldGrads[:real], second.FieldGrads[:real])
		same("params", first.ParamGrads, second.ParamGrads)
		var predicted Result
		if err := m.Predict(b, params, &predicted); err != nil || predicted.Loss != first.Loss || second.Loss != first.Loss {
			t.Errorf("loss %v, again %v, of Predict %v, %v", first.Loss, second.Loss, predicted.Loss, err)
		}
		same("predictions", first.Predictions, predicted.Predictions)
	})
}

func TestNetRefusesBatches(t *testing.T) {
	m, err := newNet(&tiny, dlrm)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(b *Batch, params *[]float32){
		"no examples":       func(b *Batch, _ *[]float32) { b.N = 0 },
		"too many examples": func(b *Batch, _ *[]float32) { b.N = 7 },
		"labels cut short":  func(b *Batch, _ *[]float32) { b.Labels = b.Labels[:5] },
		"dense cut short":   func(b *Batch, _ *[]float32) { b.Dense = b.Dense[:5] },
		"fields cut short":  func(b *Batch, _ *[]float32) { b.Fields = b.Fields[:7] },
		"params cut short":  func(_ *Batch, params *[]float32) { *params = (*params)[:7] },
	} {
		b, params := sample(&tiny, m.Params(), 6, 1)
		spoil(b, &params)
		if err := m.Step(b, params, &Result{}); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
	for name, spoil := range map[string]func(c *Config){
		"batch": func(c *Config) { c.Batch = 0 }, "dim": func(c *Config) { c.Dim = 0 },
		"no features": func(c *Config) { c.Widths = nil }, "width": func(c *Config) { c.Widths = []int{5, 0} },
		"layer": func(c *Config) { c.Top = []int{3, 0} }, "dense": func(c *Config) { c.Dense = -1 },
		"cross": func(c *Config) { c.Cross = -1 }, "loss": func(c *Config) { c.Loss = "hinge" },
		"one vector": func(c *Config) { c.Dense, c.Widths = 0, []int{5} },
	} {
		c := tiny
		spoil(&c)
		if _, err := newNet(&c, dlrm); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
	for _, items := range []int{0, 4} {
		c := tiny
		c.Items = items
		if _, err := newNet(&c, twoTower); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%d of 4 features for the item: %v, want InvalidArgument", items, err)
		}
	}
}

// Rows and weights that follow the gradients make each query find its item: the loss falls from about ln of the number
// of different items.
func TestTwoTowerLearns(t *testing.T) {
	c := Config{Batch: 8, Dim: 4, Widths: []int{4, 4}, Top: []int{8}, Items: 1}
	m, err := newNet(&c, twoTower)
	if err != nil {
		t.Fatal(err)
	}
	b, params := sample(&c, m.Params(), 8, 3)
	for i := range b.Labels {
		b.Labels[i] = 1
	}
	copy(b.Fields[4:8], b.Fields[12:16]) // examples 0 and 1 have one item
	m.(*net).head.(*towersHead).temperature = 1
	var r Result
	first := 0.0
	for step := range 500 {
		if err := m.Step(b, params, &r); err != nil {
			t.Fatal(err)
		}
		if step == 0 {
			first = r.Loss
			m.(*net).head.(*towersHead).temperature = temperature
		}
		for i, g := range r.FieldGrads {
			b.Fields[i] -= 0.3 * g
		}
		copy(b.Fields[4:8], b.Fields[12:16])
		for i, g := range r.ParamGrads {
			params[i] -= 0.3 * g
		}
	}
	if math.Abs(first-math.Log(7.75)) > 0.7 || !(r.Loss < 0.05) {
		t.Errorf("loss %.3f at first and %.3f after 500 steps, want about ln 8 and < 0.05", first, r.Loss)
	}
}
