package trainer

import (
	"reflect"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tableconf"
)

// TestOptimizersOfAJob: unset constants have the defaults of their rule, and constants of other rules are refused.
func TestOptimizersOfAJob(t *testing.T) {
	f := func(v float32) *float32 { return &v }
	for _, tc := range []struct {
		table tableconf.Table
		want  rowraft.Optimizer
	}{
		{tableconf.Table{Optimizer: "sgd", LR: 1, WeightDecay: f(0.5), Bound: f(3)},
			rowraft.Optimizer{Kind: rowraft.SGD, LR: 1, WeightDecay: 0.5, Bound: 3}},
		{tableconf.Table{Optimizer: "momentum", LR: 1}, rowraft.Optimizer{Kind: rowraft.Momentum, LR: 1, Momentum: 0.9}},
		{tableconf.Table{Optimizer: "adagrad", LR: 1}, rowraft.Optimizer{Kind: rowraft.Adagrad, LR: 1,
			InitialAccumulator: 1e-5, Epsilon: 1e-8}},
		{tableconf.Table{Optimizer: "rowwise-adagrad", LR: 1, Epsilon: f(0)},
			rowraft.Optimizer{Kind: rowraft.RowWiseAdagrad, LR: 1, InitialAccumulator: 1e-5}},
		{tableconf.Table{Optimizer: "adam", LR: 1, WeightDecay: f(0.01)},
			rowraft.Optimizer{Kind: rowraft.Adam, LR: 1, Epsilon: 1e-8, Beta1: 0.9, Beta2: 0.999, WeightDecay: 0.01}},
		{tableconf.Table{Optimizer: "ftrl", LR: 1, L1: f(2)}, rowraft.Optimizer{Kind: rowraft.FTRL, LR: 1, L1: 2, Beta: 1}},
		{tableconf.Table{Optimizer: "ftrl", LR: 1, L2: f(2), Beta: f(0)},
			rowraft.Optimizer{Kind: rowraft.FTRL, LR: 1, L2: 2}},
	} {
		c := twoPasses(1, 0)
		tc.table.Init = 0.1
		c.Embeddings = tc.table
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", tc.want, err)
		}
		if got := c.schemas()[0].Optimizer; got != tc.want {
			t.Errorf("%s, want %s", got, tc.want)
		}
	}
	for want, change := range map[string]func(*Config){
		"adagrad has no constant momentum": func(c *Config) { c.Embeddings.Momentum = f(0.9) },
		"ftrl has no constant weight_decay": func(c *Config) {
			c.Embeddings.Optimizer, c.Embeddings.WeightDecay = "ftrl", f(1)
		},
		"momentum in [0, 1)": func(c *Config) {
			c.Embeddings.Optimizer, c.Embeddings.Momentum = "momentum", f(1)
		},
		`optimizer "add"`:  func(c *Config) { c.Embeddings.Optimizer = "add" },
		`optimizer "lamb"`: func(c *Config) { c.Dense.Optimizer = "lamb" },
		"bound -1":         func(c *Config) { c.Embeddings.Bound = f(-1) },
	} {
		c := twoPasses(1, 0)
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
}

// TestDecayOfDenseWeights: rows of differences do not decay; rows of weights do, and follow the schedule.
func TestDecayOfDenseWeights(t *testing.T) {
	decay, bound := float32(0.01), float32(2)
	c := tinyConfig(5, 0)
	c.Dense.WeightDecay, c.Dense.Bound = &decay, &bound
	c.Dense.Schedule = &tableconf.Schedule{Kind: tableconf.Linear, Steps: 10}
	if _, err := NewJob(t.Context(), c, newLocal(t), nil); err == nil ||
		!strings.Contains(err.Error(), "dense: weight_decay, bound: ") {
		t.Errorf("differences with a decay: %v", err)
	}
	c.Parameters = []ParameterConfig{{Name: "*", Init: InitServer}}
	r := &rated{Tables: newLocal(t)}
	j := newJob(t, c, r, nil)
	if _, err := j.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(r.rates) != 5 {
		t.Fatalf("%d pushes, want 5", len(r.rates))
	}
	for i, got := range r.rates {
		want := c.Dense.Schedule.Rate(c.Dense.LR, int64(i+1))
		if got[1] != want { // the second segment is that of a parameter
			t.Errorf("step %d: learning rate %v, want %v", i+1, got[1], want)
		}
	}
}

// TestLaterOptimizersLearn: a run with each of them improves, and a run resumed from its state has the same bits.
func TestLaterOptimizersLearn(t *testing.T) {
	f := func(v float32) *float32 { return &v }
	for _, table := range []tableconf.Table{
		{Optimizer: "momentum", LR: 0.02, Init: 0.05, WeightDecay: f(1e-4)},
		{Optimizer: "rowwise-adagrad", LR: 0.05, Init: 0.05, Bound: f(2)},
		{Optimizer: "ftrl", LR: 0.05, Init: 0.05, L2: f(1e-3),
			Schedule: &tableconf.Schedule{Kind: tableconf.Cosine, Warmup: 5, Steps: 40, End: 0.01}},
	} {
		t.Run(table.Optimizer, func(t *testing.T) {
			c := tinyConfig(60, 0)
			c.Embeddings = table
			var losses []float64
			got := newLocal(t)
			r := mustRun(t, c, got, func(e report.Event) {
				if e.Event == report.EventStep {
					losses = append(losses, float64(e.Loss))
				}
			})
			if first, last := losses[0], losses[len(losses)-1]; !(last < first) || r.Steps != 60 {
				t.Errorf("%d steps, the mean loss went from %v to %v", r.Steps, first, last)
			}
			again := newLocal(t)
			mustRun(t, c, again, nil)
			if !reflect.DeepEqual(bits(got), bits(again)) {
				t.Error("two runs gave other bits")
			}
		})
	}
}
