package rowraft

import (
	"fmt"
	"slices"
	"strings"
)

// OptimizerKind names the update rule a table's replicas run.
type OptimizerKind uint8

const (
	SGD            OptimizerKind = 1
	Adagrad        OptimizerKind = 2
	Adam           OptimizerKind = 3
	Momentum       OptimizerKind = 4
	RowWiseAdagrad OptimizerKind = 5 // Adagrad with one accumulator a row
	FTRL           OptimizerKind = 6 // FTRL-Proximal, McMahan et al. 2013
	Add            OptimizerKind = 7 // w += value: no learning rate, no state
)

// optimizerNames are what the command line and YAML say, by kind.
var optimizerNames = []string{"", "sgd", "adagrad", "adam", "momentum", "rowwise-adagrad", "ftrl", "add"}

func (k OptimizerKind) String() string {
	if k > 0 && int(k) < len(optimizerNames) {
		return optimizerNames[k]
	}
	return fmt.Sprintf("optimizer(%d)", uint8(k))
}

// OptimizerNames lists all rules by name, in the order of their kinds.
func OptimizerNames() []string { return slices.Clone(optimizerNames[1:]) }

// ParseOptimizerKind is the reverse of String.
func ParseOptimizerKind(name string) (OptimizerKind, error) {
	if i := slices.Index(optimizerNames, name); i > 0 {
		return OptimizerKind(i), nil
	}
	last := len(optimizerNames) - 1
	return 0, Errorf(CodeInvalidArgument, "optimizer %q: want %s or %s", name, strings.Join(optimizerNames[1:last], ", "),
		optimizerNames[last])
}

// Optimizer is the update rule of a table with its constants. Constants that a
// rule does not have ([OptimizerKind.Has]) must be 0.
type Optimizer struct {
	Kind               OptimizerKind
	LR                 float32 // learning rate; a push may override it
	InitialAccumulator float32 // Adagrad, RowWiseAdagrad, FTRL: first value of the accumulator
	Epsilon            float32 // Adagrad, RowWiseAdagrad, Adam
	Beta1, Beta2       float32 // Adam

	// What follows came later; the zero values are what optimizers were before.
	Momentum    float32 // Momentum
	WeightDecay float32 // all but FTRL and Add; decoupled in Adam
	Bound       float32 // weights stay within ±Bound; 0: no bound
	L1, L2      float32 // FTRL
	Beta        float32 // FTRL
}

// optimizerConstants are the fields of an [Optimizer] by name, the rules that have them, and their values where a job
// or a command names none.
var optimizerConstants = []struct {
	name      string
	at        func(*Optimizer) *float32
	off       bool // 0 switches the constant off
	byDefault float32
	rules     []OptimizerKind
}{
	{"lr", func(o *Optimizer) *float32 { return &o.LR }, false, 0.05,
		[]OptimizerKind{SGD, Adagrad, Adam, Momentum, RowWiseAdagrad, FTRL}},
	{"initial_accumulator", func(o *Optimizer) *float32 { return &o.InitialAccumulator }, false, 1e-5,
		[]OptimizerKind{Adagrad, RowWiseAdagrad, FTRL}},
	{"epsilon", func(o *Optimizer) *float32 { return &o.Epsilon }, false, 1e-8,
		[]OptimizerKind{Adagrad, RowWiseAdagrad, Adam}},
	{"beta1", func(o *Optimizer) *float32 { return &o.Beta1 }, false, 0.9, []OptimizerKind{Adam}},
	{"beta2", func(o *Optimizer) *float32 { return &o.Beta2 }, false, 0.999, []OptimizerKind{Adam}},
	{"momentum", func(o *Optimizer) *float32 { return &o.Momentum }, false, 0.9, []OptimizerKind{Momentum}},
	{"l1", func(o *Optimizer) *float32 { return &o.L1 }, false, 0, []OptimizerKind{FTRL}},
	{"l2", func(o *Optimizer) *float32 { return &o.L2 }, false, 0, []OptimizerKind{FTRL}},
	{"beta", func(o *Optimizer) *float32 { return &o.Beta }, false, 1, []OptimizerKind{FTRL}},
	{"weight_decay", func(o *Optimizer) *float32 { return &o.WeightDecay }, true, 0,
		[]OptimizerKind{SGD, Adagrad, Adam, Momentum, RowWiseAdagrad}},
	{"bound", func(o *Optimizer) *float32 { return &o.Bound }, true, 0,
		[]OptimizerKind{SGD, Adagrad, Adam, Momentum, RowWiseAdagrad, FTRL, Add}},
}

// Default returns the value of a constant of the rule where a job or a command names none. It is the same for both.
func (k OptimizerKind) Default(constant string) float32 {
	if k == FTRL && constant == "initial_accumulator" {
		return 0 // as in Algorithm 1 of McMahan et al. 2013
	}
	for _, c := range optimizerConstants {
		if c.name == constant {
			return c.byDefault
		}
	}
	return 0
}

// Constant returns where o keeps a constant, or nil if there is none of this name.
func (o *Optimizer) Constant(name string) *float32 {
	for _, c := range optimizerConstants {
		if c.name == name {
			return c.at(o)
		}
	}
	return nil
}

// Has reports whether the rule has a constant of this name.
func (k OptimizerKind) Has(constant string) bool {
	for _, c := range optimizerConstants {
		if c.name == constant {
			return slices.Contains(c.rules, k)
		}
	}
	return false
}

// String names the rule and its constants: "adagrad (lr 0.05, initial accumulator 0.1, epsilon 1e-08)".
// Those that are off at 0 are left out then.
func (o Optimizer) String() string {
	var text []string
	for _, c := range optimizerConstants {
		if v := *c.at(&o); slices.Contains(c.rules, o.Kind) && (v != 0 || !c.off) {
			text = append(text, fmt.Sprintf("%s %v", strings.ReplaceAll(c.name, "_", " "), v))
		}
	}
	if len(text) == 0 {
		return o.Kind.String()
	}
	return fmt.Sprintf("%s (%s)", o.Kind, strings.Join(text, ", "))
}

// extended reports whether o says more than optimizers could before there were
// Momentum, RowWiseAdagrad, FTRL and Add.
func (o *Optimizer) extended() bool {
	return o.Kind > Adam || o.Momentum != 0 || o.WeightDecay != 0 || o.Bound != 0 || o.L1 != 0 || o.L2 != 0 || o.Beta != 0
}

func (o *Optimizer) validate() error {
	if o.Kind < SGD || o.Kind > Add {
		return Errorf(CodeInvalidArgument,
			"optimizer kind %d: want sgd, adagrad, adam, momentum, rowwise-adagrad, ftrl or add", o.Kind)
	}
	for _, c := range optimizerConstants {
		switch v := *c.at(o); {
		case !finite(v) || v < 0:
			return Errorf(CodeInvalidArgument, "optimizer %s: constants must be finite and ≥ 0, got %s %v", o.Kind, c.name, v)
		case v != 0 && !slices.Contains(c.rules, o.Kind):
			return Errorf(CodeInvalidArgument, "optimizer %s has no %s", o.Kind, c.name)
		}
	}
	switch o.Kind {
	case Adagrad, RowWiseAdagrad:
		if o.InitialAccumulator == 0 && o.Epsilon == 0 {
			return Errorf(CodeInvalidArgument,
				"optimizer %s: initial accumulator and epsilon must not both be 0: a zero gradient would divide by zero", o.Kind)
		}
	case Adam:
		if o.Beta1 >= 1 || o.Beta2 >= 1 {
			return Errorf(CodeInvalidArgument, "optimizer adam: want betas in [0, 1), got %v and %v", o.Beta1, o.Beta2)
		}
		if o.Epsilon == 0 {
			return Errorf(CodeInvalidArgument, "optimizer adam: epsilon must be > 0")
		}
	case Momentum:
		if o.Momentum >= 1 {
			return Errorf(CodeInvalidArgument, "optimizer momentum: want a momentum in [0, 1), got %v", o.Momentum)
		}
	case FTRL:
		if o.LR == 0 {
			return Errorf(CodeInvalidArgument,
				"optimizer ftrl: the learning rate of the table must be > 0: its rows start from it")
		}
		if o.Beta == 0 && o.L2 == 0 && o.InitialAccumulator == 0 {
			return Errorf(CodeInvalidArgument,
				"optimizer ftrl: beta, l2 and initial accumulator must not all be 0: a new row would divide by zero")
		}
	}
	return nil
}
