package tableconf

import (
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/rowraft/rowraft"
)

// Table is the initial value and the optimizer of a table.
type Table struct {
	// Optimizer is sgd, momentum, adagrad, rowwise-adagrad, adam or ftrl. A nil constant has the default of its
	// rule; a constant of another rule is an error.
	Optimizer          string   `yaml:"optimizer"`
	LR                 float32  `yaml:"lr"`
	InitialAccumulator *float32 `yaml:"initial_accumulator"`            // adagrad, rowwise-adagrad, ftrl
	Epsilon            *float32 `yaml:"epsilon"`                        // adagrad, rowwise-adagrad, adam
	Beta1              *float32 `yaml:"beta1"`                          // adam
	Beta2              *float32 `yaml:"beta2"`                          // adam
	Momentum           *float32 `yaml:"momentum" json:",omitempty"`     // momentum
	L1                 *float32 `yaml:"l1" json:",omitempty"`           // ftrl
	L2                 *float32 `yaml:"l2" json:",omitempty"`           // ftrl
	Beta               *float32 `yaml:"beta" json:",omitempty"`         // ftrl
	WeightDecay        *float32 `yaml:"weight_decay" json:",omitempty"` // all but ftrl
	Bound              *float32 `yaml:"bound" json:",omitempty"`        // limit of each weight
	// Schedule changes the learning rate with the steps; nil: it is always LR.
	Schedule *Schedule `yaml:"schedule" json:",omitempty"`
	// Init: embeddings start uniform in [−Init, Init).
	Init float32 `yaml:"init"`

	Storage   string    `yaml:"storage"`   // type of the weights: float32 or bfloat16
	Admission string    `yaml:"admission"` // all, count:3 or probability:0.1; embeddings only
	Expire    string    `yaml:"expire"`    // "168h", or seconds; embeddings only
	Capacity  *Capacity `yaml:"capacity"`  // embeddings only
	// SumPushes: leaders may sum the pushes of several trainers for any optimizer.
	SumPushes bool `yaml:"sum_pushes" json:",omitempty"`
	// Store tiered: rows that were not used lately are on the servers' disks, the others in Memory, such as 8GiB for one
	// copy of the table; embeddings only. "" and memory: all rows are in memory.
	Store  string `yaml:"store" json:",omitempty"`
	Memory string `yaml:"memory" json:",omitempty"`
}

// Capacity limits the rows of a table.
type Capacity struct {
	Rows  uint64 `yaml:"rows"`
	Evict string `yaml:"evict"` // lru or lfu
}

// Validate returns the first problem of t, with CodeInvalidArgument.
func (t *Table) Validate() error {
	if _, err := t.Rule(); err != nil {
		return err
	}
	if err := t.Policies(&rowraft.Schema{}); err != nil {
		return err
	}
	if !(t.LR > 0) {
		return invalid("lr %v: want > 0", t.LR)
	}
	return t.Schedule.validate(t.LR)
}

// Rule returns the optimizer with the defaults of unset constants.
func (t *Table) Rule() (rowraft.Optimizer, error) {
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

// FitsDifferences returns an error for constants that would treat the rows of a parameter with init seed as its
// weights. These rows are what training adds to the initial values (docs/formats/trainer-state.md): pulling them
// towards 0 would pull the weights back to the initial values.
func (t *Table) FitsDifferences(param string) error {
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

// Policies sets how rows are stored, which keys get a row and which rows are removed.
func (t *Table) Policies(s *rowraft.Schema) (err error) {
	switch t.Storage {
	case "", "float32":
	case "bfloat16":
		s.Storage = rowraft.BFloat16
	default:
		return invalid("storage %q: want float32 or bfloat16", t.Storage)
	}
	if s.Admission, err = rowraft.ParseAdmission(t.Admission); err != nil {
		return err
	}
	if s.Expire, err = rowraft.ParseTicks(t.Expire); err != nil {
		return err
	}
	s.SumPushes = t.SumPushes
	if t.Capacity != nil {
		s.Capacity.Rows = t.Capacity.Rows
		if s.Capacity.Evict, err = rowraft.ParseEvict(t.Capacity.Evict); err != nil {
			return err
		}
	}
	s.Memory, err = t.memory()
	return err
}

// memory returns how many bytes one copy of a tiered table may take in memory; 0: all rows are there.
func (t *Table) memory() (uint64, error) {
	switch {
	case t.Store != "" && t.Store != "memory" && t.Store != "tiered":
		return 0, invalid("store %q: want memory or tiered", t.Store)
	case t.Store != "tiered" && t.Memory != "":
		return 0, invalid("memory %s needs store: tiered; otherwise all rows are in memory", t.Memory)
	case t.Store != "tiered":
		return 0, nil
	}
	n, err := humanize.ParseBytes(t.Memory)
	if err != nil || n == 0 {
		return 0, invalid("store: tiered with memory %q: want how much memory the table may take, such as 8GiB", t.Memory)
	}
	return n, nil
}

func invalid(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
}
