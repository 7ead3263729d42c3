package models

import (
	"math"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
)

// tiny is a DLRM whose widths need padding.
var tiny = Config{Batch: 6, Dense: 3, Widths: []int{5, 5, 5, 5}, Dim: 5, Bottom: []int{7}, Top: []int{8, 3}}

func openThreads(t testing.TB, threads int, c Config) Model {
	t.Helper()
	m, err := NewThreads(threads, c.Batch, func(batch int) (Model, error) {
		c := c
		c.Batch = batch
		return newNet(&c, dlrm)
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A batch on several threads gives the loss, the predictions and the gradients of the
// whole batch on one: that is the rule of the sum, d(Σ nᵢ/n · Lᵢ) = Σ nᵢ/n · dLᵢ.
func TestThreadsAreOneModel(t *testing.T) {
	cfg := tiny
	cfg.Batch = 12
	for _, n := range []int{12, 11, 7, 4, 1} { // whole, ragged, one slice short, one slice
		b, params := sample(&cfg, openThreads(t, 1, cfg).Params(), n, uint64(n))
		var want Result
		if err := openThreads(t, 1, cfg).Step(b, params, &want); err != nil {
			t.Fatal(err)
		}
		for _, threads := range []int{2, 3, 12} {
			m := openThreads(t, threads, cfg)
			var got, again, predicted Result
			for _, out := range []*Result{&again, &got} { // the second on used buffers
				if err := m.Step(b, params, out); err != nil {
					t.Fatal(err)
				}
			}
			if err := m.Predict(b, params, &predicted); err != nil {
				t.Fatal(err)
			}
			if math.Abs(got.Loss-want.Loss) > 1e-5 || predicted.Loss != got.Loss {
				t.Errorf("%d examples on %d threads: loss %v, predicted %v, want %v", n, threads, got.Loss, predicted.Loss,
					want.Loss)
			}
			near(t, "predictions", got.Predictions, want.Predictions)
			real := n * len(cfg.Widths) * cfg.Dim // those of padding examples are undefined
			near(t, "gradients of fields", got.FieldGrads[:real], want.FieldGrads[:real])
			near(t, "gradients of params", got.ParamGrads, want.ParamGrads)
			if !slices.Equal(got.FieldGrads, again.FieldGrads) || !slices.Equal(got.ParamGrads, again.ParamGrads) ||
				got.Loss != again.Loss {
				t.Errorf("%d examples on %d threads: two steps with the same inputs differ", n, threads)
			}
		}
	}
}

func near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d numbers, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if d := math.Abs(float64(got[i]) - float64(want[i])); !(d < 1e-5) {
			t.Errorf("%s: number %d is %v, want %v", what, i, got[i], want[i])
			return
		}
	}
}

func TestThreadsRefuse(t *testing.T) {
	never := func(int) (Model, error) { t.Error("a model was opened"); return nil, nil }
	for _, threads := range []int{0, 5, 13} {
		if _, err := NewThreads(threads, 12, never); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%d threads for a batch of 12: %v, want CodeInvalidArgument", threads, err)
		}
	}
	m := openThreads(t, 2, tiny)
	for name, spoil := range map[string]func(*Batch){
		"no examples": func(b *Batch) { b.N = 0 },
		"too many":    func(b *Batch) { b.N = 7 },
		"half a row":  func(b *Batch) { b.Fields = b.Fields[1:] },
	} {
		b, params := sample(&tiny, m.Params(), 6, 1)
		spoil(b)
		if err := m.Step(b, params, &Result{}); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v, want CodeInvalidArgument", name, err)
		}
	}
}
