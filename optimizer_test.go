package rowraft

import (
	"math"
	"strings"
	"testing"
)

func optimizerTable(o Optimizer) *Schema {
	return &Schema{Name: "t", Kind: Sparse, Dim: 1, Initializer: Initializer{Kind: InitZeros}, Optimizer: o}
}

func TestOptimizersThatAreTables(t *testing.T) {
	for want, o := range map[string]Optimizer{
		"sgd (lr 0.5)": {Kind: SGD, LR: 0.5},
		"sgd (lr 0.5, weight decay 0.25, bound 2)":                     {Kind: SGD, LR: 0.5, WeightDecay: 0.25, Bound: 2},
		"adagrad (lr 0.05, initial accumulator 0.1, epsilon 0)":        {Kind: Adagrad, LR: 0.05, InitialAccumulator: 0.1},
		"adam (lr 1, epsilon 1e-08, beta1 0.9, beta2 0)":               {Kind: Adam, LR: 1, Epsilon: 1e-8, Beta1: 0.9},
		"momentum (lr 0.1, momentum 0)":                                {Kind: Momentum, LR: 0.1},
		"rowwise-adagrad (lr 0, initial accumulator 0, epsilon 1e-08)": {Kind: RowWiseAdagrad, Epsilon: 1e-8},
		"ftrl (lr 0.1, initial accumulator 0, l1 1, l2 2, beta 0)":     {Kind: FTRL, LR: 0.1, L1: 1, L2: 2},
		"add":           {Kind: Add},
		"add (bound 3)": {Kind: Add, Bound: 3},
	} {
		if err := optimizerTable(o).Validate(); err != nil {
			t.Error(err)
		}
		if o.String() != want {
			t.Errorf("%s, want %s", o, want)
		}
		if kind, err := ParseOptimizerKind(o.Kind.String()); err != nil || kind != o.Kind {
			t.Errorf("%s reads as %s, %v", o.Kind, kind, err)
		}
	}
}

func TestOptimizersThatAreRefused(t *testing.T) {
	for _, tc := range []struct {
		o    Optimizer
		want string
	}{
		{Optimizer{}, "optimizer kind 0"},
		{Optimizer{Kind: 8, LR: 1}, "optimizer kind 8"},
		{Optimizer{Kind: SGD, Momentum: 0.9}, "sgd has no momentum"},
		{Optimizer{Kind: Momentum, Momentum: 1}, "[0, 1)"},
		{Optimizer{Kind: Momentum, Momentum: -0.5}, "momentum -0.5"},
		{Optimizer{Kind: Momentum, Epsilon: 1}, "no epsilon"},
		{Optimizer{Kind: Adam, Beta1: 1, Epsilon: 1}, "betas"},
		{Optimizer{Kind: Adam}, "epsilon"},
		{Optimizer{Kind: Adam, Epsilon: 1, InitialAccumulator: 1}, "no initial_accumulator"},
		{Optimizer{Kind: Adagrad}, "not both be 0"},
		{Optimizer{Kind: RowWiseAdagrad}, "not both be 0"},
		{Optimizer{Kind: FTRL, Beta: 1}, "must be > 0"},
		{Optimizer{Kind: FTRL, LR: 1}, "not all be 0"},
		{Optimizer{Kind: FTRL, LR: 1, Beta: 1, WeightDecay: 1}, "no weight_decay"},
		{Optimizer{Kind: Add, LR: 1}, "add has no lr"},
		{Optimizer{Kind: Add, WeightDecay: 1}, "no weight_decay"},
		{Optimizer{Kind: SGD, Bound: float32(math.Inf(1))}, "bound +Inf"},
		{Optimizer{Kind: SGD, WeightDecay: float32(math.NaN())}, "weight_decay NaN"},
		{Optimizer{Kind: Adagrad, Epsilon: 1, L1: 1}, "no l1"},
		{Optimizer{Kind: Adagrad, Epsilon: 1, L2: 1}, "no l2"},
		{Optimizer{Kind: Adagrad, Epsilon: 1, Beta: 1}, "no beta"},
	} {
		if err := optimizerTable(tc.o).Validate(); CodeOf(err) != CodeInvalidArgument ||
			!strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", tc.o, err, tc.want)
		}
	}
	if _, err := ParseOptimizerKind("lamb"); CodeOf(err) != CodeInvalidArgument {
		t.Errorf("lamb: %v", err)
	}
}

// TestExtensionsOfOptimizers: what an optimizer of long ago can say needs no extension.
func TestExtensionsOfOptimizers(t *testing.T) {
	for _, tc := range []struct {
		o    Optimizer
		want int
	}{
		{Optimizer{Kind: SGD, LR: 1}, 0}, {Optimizer{Kind: Adagrad, InitialAccumulator: 1, Epsilon: 1}, 0},
		{Optimizer{Kind: Adam, Epsilon: 1, Beta1: 0.5, Beta2: 0.5}, 0},
		{Optimizer{Kind: Momentum}, 2}, {Optimizer{Kind: Add}, 2}, {Optimizer{Kind: SGD, Bound: 1}, 2},
		{Optimizer{Kind: Adam, Epsilon: 1, WeightDecay: 1}, 2},
	} {
		s := optimizerTable(tc.o)
		if got := s.Extension(); got != tc.want {
			t.Errorf("%s: extension %d, want %d", tc.o, got, tc.want)
		}
		s.Storage = BFloat16
		if got := s.Extension(); got != max(tc.want, 1) {
			t.Errorf("%s in bfloat16: extension %d, want %d", tc.o, got, max(tc.want, 1))
		}
	}
}
