package trainer

import (
	"strings"

	"github.com/rowraft/rowraft"
)

// optimizer returns the optimizer with the defaults of unset constants.
func (t *TableConfig) optimizer() (rowraft.Optimizer, error) {
	kind, err := rowraft.ParseOptimizerKind(t.Optimizer)
	if err != nil || kind == rowraft.Add {
		return rowraft.Optimizer{}, invalid("optimizer %q: want sgd, momentum, adagrad, rowwise-adagrad, adam or ftrl",
			t.Optimizer)
	}
	o := rowraft.Optimizer{Kind: kind, LR: t.LR}
	for _, c := range []struct {
		name string
		set  *float32
	}{
		{"initial_accumulator", t.InitialAccumulator},
		{"epsilon", t.Epsilon},
		{"beta1", t.Beta1},
		{"beta2", t.Beta2},
		{"momentum", t.Momentum},
		{"l1", t.L1},
		{"l2", t.L2},
		{"beta", t.Beta},
		{"weight_decay", t.WeightDecay},
		{"bound", t.Bound},
	} {
		switch at := o.Constant(c.name); {
		case c.set != nil && !kind.Has(c.name):
			return o, invalid("optimizer %s has no constant %s: remove it", kind, c.name)
		case c.set != nil:
			*at = *c.set
		case kind.Has(c.name):
			*at = kind.Default(c.name)
		}
	}
	return o, nil
}

// fitsDifferences returns an error for constants that would treat the rows of a parameter with init seed as its
// weights. These rows are what training adds to the initial values (docs/formats/trainer-state.md): pulling them
// towards 0 would pull the weights back to the initial values.
func (t *TableConfig) fitsDifferences(param string) error {
	var set []string
	for _, c := range []struct {
		name string
		at   *float32
	}{{"weight_decay", t.WeightDecay}, {"bound", t.Bound}, {"l1", t.L1}, {"l2", t.L2}} {
		if c.at != nil && *c.at != 0 {
			set = append(set, c.name)
		}
	}
	if len(set) > 0 {
		return invalid("dense: %s: the servers have only what training adds to the initial values of parameter %s; "+
			"with parameters: [{name: \"*\", init: server}] they have the weights", strings.Join(set, ", "), param)
	}
	return nil
}
