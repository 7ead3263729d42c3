package table

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
)

// optimizerFlags are the flags for the constants of update rules. A constant that is not given has the default of its
// rule.
var optimizerFlags = []struct {
	constant string
	usage    string
}{
	{"lr", "learning rate; a push may override it"},
	{"initial_accumulator", "first value of the accumulator; ftrl: 0 unless given"},
	{"epsilon", "keeps the divisor from 0"},
	{"beta1", "decay of the first moment"},
	{"beta2", "decay of the second moment"},
	{"momentum", "decay of the velocity"},
	{"weight_decay", "pulls the weights of a row towards 0 with each push of it; decoupled (AdamW) in adam"},
	{"bound", "keeps weights within plus or minus so much after each push; 0 for no bound"},
	{"l1", "makes weights exactly 0 whose evidence is less"},
	{"l2", "pulls weights towards 0"},
	{"beta", "how much evidence the learning rate waits for"},
}

func flagOf(constant string) string { return strings.ReplaceAll(constant, "_", "-") }

// registerOptimizer adds the flags of an update rule.
func (f *tableFlags) registerOptimizer(fl *pflag.FlagSet) {
	fl.StringVar(&f.optimizer, "optimizer", "adagrad",
		cli.OrList(rowraft.OptimizerNames())+": the update that every replica runs")
	for _, c := range optimizerFlags {
		var of []string
		for _, name := range rowraft.OptimizerNames() {
			if kind, err := rowraft.ParseOptimizerKind(name); err == nil && kind.Has(c.constant) {
				of = append(of, name)
			}
		}
		usage := c.usage
		if len(of) < 4 {
			usage = strings.Join(of, ", ") + ": " + usage
		}
		fl.Float32Var(f.constants.Constant(c.constant), flagOf(c.constant), rowraft.Adagrad.Default(c.constant), usage)
	}
}

// rule converts the flags to an update rule. given reports whether a flag was given.
func (f *tableFlags) rule(given func(string) bool) (rowraft.Optimizer, error) {
	kind, err := rowraft.ParseOptimizerKind(f.optimizer)
	if err != nil {
		names := rowraft.OptimizerNames()
		return rowraft.Optimizer{}, cli.Usagef("--optimizer %q: want %s%s", f.optimizer, cli.OrList(names),
			cli.DidYouMean("", f.optimizer, names))
	}
	o := rowraft.Optimizer{Kind: kind}
	for _, c := range optimizerFlags {
		switch flag := flagOf(c.constant); {
		case given(flag) && !kind.Has(c.constant):
			return o, cli.Usagef("--%s has no meaning with --optimizer %s", flag, kind)
		case given(flag):
			*o.Constant(c.constant) = *f.constants.Constant(c.constant)
		case kind.Has(c.constant):
			*o.Constant(c.constant) = kind.Default(c.constant)
		}
	}
	return o, nil
}

// optimizerJSON has the constants LR to Beta2 always, and the others only if they are not 0.
type optimizerJSON struct {
	Kind               string  `json:"kind"`
	LR                 float32 `json:"lr"`
	InitialAccumulator float32 `json:"initial_accumulator"`
	Epsilon            float32 `json:"epsilon"`
	Beta1              float32 `json:"beta1"`
	Beta2              float32 `json:"beta2"`
	Momentum           float32 `json:"momentum,omitempty"`
	WeightDecay        float32 `json:"weight_decay,omitempty"`
	Bound              float32 `json:"bound,omitempty"`
	L1                 float32 `json:"l1,omitempty"`
	L2                 float32 `json:"l2,omitempty"`
	Beta               float32 `json:"beta,omitempty"`

	text string
}

func newOptimizerJSON(o rowraft.Optimizer) optimizerJSON {
	return optimizerJSON{
		Kind: o.Kind.String(), LR: o.LR, InitialAccumulator: o.InitialAccumulator, Epsilon: o.Epsilon, Beta1: o.Beta1,
		Beta2:    o.Beta2,
		Momentum: o.Momentum, WeightDecay: o.WeightDecay, Bound: o.Bound, L1: o.L1, L2: o.L2, Beta: o.Beta, text: o.String(),
	}
}

func (o optimizerJSON) String() string { return o.text }
