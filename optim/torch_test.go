package optim

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestRulesMatchTorch: a row that every step pushes moves as in PyTorch (testdata/torch_rules.py, torch 1.13). PyTorch
// rounds at other places, so the weights agree to 1e-5 and not to the bit.
func TestRulesMatchTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/torch_rules.txt")
	if err != nil {
		t.Fatal(err)
	}
	rules := map[string]rowraft.Optimizer{
		"sgd":            {Kind: rowraft.SGD, LR: 0.1},
		"sgd-decay":      {Kind: rowraft.SGD, LR: 0.1, WeightDecay: 0.01},
		"momentum":       {Kind: rowraft.Momentum, LR: 0.1, Momentum: 0.9},
		"momentum-decay": {Kind: rowraft.Momentum, LR: 0.1, Momentum: 0.9, WeightDecay: 0.01},
		"adagrad":        {Kind: rowraft.Adagrad, LR: 0.1, InitialAccumulator: 1e-5, Epsilon: 1e-8},
		"adam":           {Kind: rowraft.Adam, LR: 0.01, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8},
		"adamw":          {Kind: rowraft.Adam, LR: 0.01, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8, WeightDecay: 0.1},
	}
	seen := 0
	for line := range strings.Lines(string(text)) {
		seen++
		var name string
		want := make([]float32, 6)
		if _, err := fmt.Sscan(line, &name, &want[0], &want[1], &want[2], &want[3], &want[4], &want[5]); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		rule, err := New(rules[name])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		w, g, state := make([]float32, 6), make([]float32, 6), make([]float32, rule.StateLen(6))
		for j := range w {
			w[j] = float32(j-2) / 4
		}
		rule.InitState(w, state)
		for s := range 20 {
			for j := range g {
				g[j] = float32((31*s+17*j)%21-10) / 8
			}
			rule.Update(w, state, g, rule.LR())
		}
		for j := range w {
			if math.Abs(float64(w[j]-want[j])) > 1e-5 {
				t.Errorf("%s: weights %v, in PyTorch %v", name, w, want)
				break
			}
		}
	}
	if seen != len(rules) {
		t.Errorf("testdata/torch_rules.txt has %d lines, want %d", seen, len(rules))
	}
}
