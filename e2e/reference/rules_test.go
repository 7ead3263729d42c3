package reference

import (
	"slices"

	"github.com/rowraft/rowraft"
)

var (
	momentum = rowraft.Optimizer{Kind: rowraft.Momentum, LR: 0.1, Momentum: 0.9}
	rowWise  = rowraft.Optimizer{Kind: rowraft.RowWiseAdagrad, LR: 0.1, InitialAccumulator: 0.1, Epsilon: 1e-8}
	ftrl     = rowraft.Optimizer{Kind: rowraft.FTRL, LR: 0.1, Beta: 1, L1: 0.05, L2: 0.5}
	adding   = rowraft.Optimizer{Kind: rowraft.Add}
)

// with gives an optimizer a weight decay and a bound.
func with(o rowraft.Optimizer, decay, bound float32) rowraft.Optimizer {
	o.WeightDecay, o.Bound = decay, bound
	return o
}

// ruleTables are tables of which all that docs/formats/rules.md says of
// optimizers holds for one at least.
var ruleTables = func() []rowraft.Schema {
	half := testTable(73, "rowwise.half", 3, with(rowWise, 0.01, 1))
	half.Storage = rowraft.BFloat16
	halfFTRL := testTable(75, "ftrl.half", 5, with(ftrl, 0, 0.25))
	halfFTRL.Storage = rowraft.BFloat16
	zeros := testTable(76, "ftrl.zeros", 9, ftrl)
	zeros.Initializer = rowraft.Initializer{Kind: rowraft.InitZeros}
	dense := testTable(77, "added", 8, adding)
	dense.Kind = rowraft.Dense
	return []rowraft.Schema{
		testTable(71, "momentum", 6, with(momentum, 0.02, 0)), testTable(72, "rowwise", 17, rowWise), half,
		testTable(74, "ftrl", 11, ftrl), halfFTRL, zeros, dense,
		testTable(78, "adamw", 4, with(adam, 0.05, 0.5)), testTable(79, "decayed", 70, with(adagrad, 0.1, 2)),
		testTable(80, "bounded", 1, with(sgd, 0, 1.5)),
	}
}()

// pushed are all tables that entries are drawn for.
var pushed = slices.Concat(schemas[:4], streamTables, ruleTables)

// summed are those of them whose pushes may be summed.
var summed = slices.DeleteFunc(slices.Clone(pushed), func(s rowraft.Schema) bool { return !sums(&s) })
