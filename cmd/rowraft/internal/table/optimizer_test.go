package table

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
)

// TestOptimizerDefaults: constants that are not given have the defaults of their rule, those of a job in package
// trainer.
func TestOptimizerDefaults(t *testing.T) {
	for name, want := range map[string]rowraft.Optimizer{
		"adagrad":         {Kind: rowraft.Adagrad, LR: 0.05, InitialAccumulator: 1e-5, Epsilon: 1e-8},
		"rowwise-adagrad": {Kind: rowraft.RowWiseAdagrad, LR: 0.05, InitialAccumulator: 1e-5, Epsilon: 1e-8},
		"adam":            {Kind: rowraft.Adam, LR: 0.05, Epsilon: 1e-8, Beta1: 0.9, Beta2: 0.999},
		"momentum":        {Kind: rowraft.Momentum, LR: 0.05, Momentum: 0.9},
		"ftrl":            {Kind: rowraft.FTRL, LR: 0.05, Beta: 1},
		"add":             {Kind: rowraft.Add},
	} {
		var f tableFlags
		cmd := &cobra.Command{}
		f.registerOptimizer(cmd.Flags())
		f.optimizer = name
		if got, err := f.rule(cmd.Flags().Changed); err != nil || got != want {
			t.Errorf("--optimizer %s: %s, %v, want %s", name, got, err, want)
		}
	}
}
