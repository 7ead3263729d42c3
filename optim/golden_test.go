package optim

import (
	"bufio"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestRulesGolden compares rows with testdata/rules.hex, which testdata/rules.py computes from the formulas
// of docs/formats/rules.md: each rule, with and without weight decay and a bound, with a changing learning
// rate and an assign in between.
func TestRulesGolden(t *testing.T) {
	f, err := os.Open("testdata/rules.hex")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := 0
	for sc := bufio.NewScanner(f); sc.Scan(); lines++ {
		in := &goldenLine{t: t, fields: strings.Fields(sc.Text())}
		o := rowraft.Optimizer{Kind: rowraft.OptimizerKind(in.count())}
		for _, c := range []*float32{
			&o.LR, &o.InitialAccumulator, &o.Epsilon, &o.Beta1, &o.Beta2, &o.Momentum, &o.WeightDecay, &o.Bound, &o.L1, &o.L2,
			&o.Beta,
		} {
			*c = in.numbers(1)[0]
		}
		dim, steps := in.count(), in.count()
		r := mustNew(t, o)
		w, state := in.numbers(dim), make([]float32, r.StateLen(dim))
		r.InitState(w, state)
		for range steps {
			op, lr, values := in.count(), in.numbers(1)[0], in.numbers(dim)
			if op == 1 {
				r.Assign(w, state, values)
			} else {
				r.Update(w, state, values, lr)
			}
		}
		what := o.String() + ", dim " + strconv.Itoa(dim)
		equalBits(t, what+": weights", w, in.numbers(dim))
		equalBits(t, what+": state", state, in.numbers(len(state)))
		if len(in.fields) > 0 {
			t.Fatalf("%s: %d numbers are left: the state is longer than %d", what, len(in.fields), len(state))
		}
	}
	if lines != 56 {
		t.Fatalf("testdata/rules.hex has %d rows, want 56", lines)
	}
}

// goldenLine is the unread rest of a line.
type goldenLine struct {
	t      *testing.T
	fields []string
}

func (l *goldenLine) next(base int) uint64 {
	if len(l.fields) == 0 {
		l.t.Fatal("a line of testdata/rules.hex ends early")
	}
	v, err := strconv.ParseUint(l.fields[0], base, 32)
	if err != nil {
		l.t.Fatal(err)
	}
	l.fields = l.fields[1:]
	return v
}

func (l *goldenLine) count() int { return int(l.next(10)) }

func (l *goldenLine) numbers(n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = math.Float32frombits(uint32(l.next(16)))
	}
	return out
}
