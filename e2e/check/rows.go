package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/rowraft/rowraft/e2e/history"
)

// The values of history.Op.Mode.
const (
	ModeLinearizable = "linearizable"
	ModeLeader       = "leader"
	ModeBounded      = "bounded"
)

// since is the moment such that a read promises all that was acknowledged before it, by
// anybody.
func since(op *history.Op) int64 {
	switch op.Mode {
	case ModeLinearizable:
		return op.Call
	case ModeBounded:
		return op.Call - op.Age
	}
	return math.MinInt64
}

// hasOwn says that a read promises what its client was told of its own pushes.
func hasOwn(op *history.Op) bool { return op.Mode == ModeLeader || op.Own }

// PhaseFinal is the phase from which on reads must show the acknowledged set. The
// harness begins it when all faults are healed, each shard has one leader that its
// replicas follow, and the clients have returned from their last push.
const PhaseFinal = "final"

// ref is one row of one op: ops[op].Rows[at].
type ref struct{ op, at int32 }

// index groups the sound pushes and pulls of a history by row.
type index struct {
	ops   []history.Op
	final []bool  // per op: a read of a final phase
	rows  []int   // ascending
	start []int32 // refs[start[i]:start[i+1]] are of rows[i], in the order of ops
	refs  []ref
}

// newIndex groups ops, and reports those whose shape makes no sense. It leaves
// those out, and pulls that returned no values. Deletes count as pushes.
func newIndex(ops []history.Op, clients int, f *findings) *index {
	x := &index{ops: ops, final: finalReads(ops)}
	use := make([]bool, len(ops))
	count := make(map[int]int32)
	for i := range ops {
		op := &ops[i]
		if op.Kind != history.Push && op.Kind != history.Pull && op.Kind != history.Delete {
			continue
		}
		if why := malformed(op, clients); why != "" {
			f.add(RuleHistory, -1, func() string {
				return fmt.Sprintf("op %d, a %s of client %d: %s", i, op.Kind, op.Client,
					why)
			}, i)
			continue
		}
		if op.Kind == history.Pull && op.Outcome != history.OK {
			continue
		}
		if op.Mode == ModeBounded && (op.Age < 0 || op.Age > op.MaxAge || op.MaxLag > 0 && op.Lag > op.MaxLag) {
			f.add(RuleBound, -1, func() string {
				return fmt.Sprintf(
					"op %d, a bounded read of client %d, allowed an age of %s and a lag of %d, and was answered with %s and %d", i,
					op.Client, at(op.MaxAge), op.MaxLag, at(op.Age), op.Lag)
			}, i)
		}
		use[i] = true
		for _, row := range op.Rows {
			count[row]++
		}
	}
	for row := range count {
		x.rows = append(x.rows, row)
	}
	slices.Sort(x.rows)
	x.start = make([]int32, len(x.rows)+1)
	next := make(map[int]int32, len(x.rows)) // where the next ref of a row goes
	for i, row := range x.rows {
		next[row] = x.start[i]
		x.start[i+1] = x.start[i] + count[row]
	}
	x.refs = make([]ref, x.start[len(x.rows)])
	for i := range ops {
		if !use[i] {
			continue
		}
		for j, row := range ops[i].Rows {
			x.refs[next[row]] = ref{int32(i), int32(j)}
			next[row]++
		}
	}
	return x
}

// of returns the refs of rows[i].
func (x *index) of(i int) []ref { return x.refs[x.start[i]:x.start[i+1]] }

// malformed says what is wrong with the shape of a push or pull, "" if nothing.
func malformed(op *history.Op, clients int) string {
	if op.Return < op.Call {
		return fmt.Sprintf("returned at %s, before its call at %s", at(op.Return), at(op.Call))
	}
	for i := 1; i < len(op.Rows); i++ {
		if op.Rows[i] <= op.Rows[i-1] {
			return fmt.Sprintf("rows %d and %d are not ascending", op.Rows[i-1], op.Rows[i])
		}
	}
	switch op.Outcome {
	case history.OK, history.Refused, history.Unknown:
	default:
		return fmt.Sprintf("outcome %q", op.Outcome)
	}
	if op.Kind != history.Pull {
		if op.Client < 0 || op.Client >= clients {
			return fmt.Sprintf("only clients 0 to %d have a dimension", clients-1)
		}
		return ""
	}
	if op.Outcome != history.OK {
		return ""
	}
	switch op.Mode {
	case ModeLinearizable, ModeLeader, ModeBounded:
	default:
		return fmt.Sprintf("mode %q", op.Mode)
	}
	if len(op.Values) != len(op.Rows) {
		return fmt.Sprintf("%d rows, values of %d", len(op.Rows), len(op.Values))
	}
	for i, v := range op.Values {
		if len(v) < clients {
			return fmt.Sprintf("row %d has %d dimensions for %d clients", op.Rows[i], len(v), clients)
		}
	}
	return ""
}

// finalReads marks the pulls that lie in a final phase.
func finalReads(ops []history.Op) []bool {
	type span struct{ from, to int64 }
	var phases []*history.Op
	for i := range ops {
		if ops[i].Kind == history.Phase {
			phases = append(phases, &ops[i])
		}
	}
	slices.SortStableFunc(phases, func(a, b *history.Op) int { return cmp.Compare(a.Call, b.Call) })
	var spans []span
	for i, p := range phases {
		if p.Fault != PhaseFinal {
			continue
		}
		s := span{p.Return, math.MaxInt64}
		if i+1 < len(phases) {
			s.to = phases[i+1].Call
		}
		spans = append(spans, s)
	}
	out := make([]bool, len(ops))
	if len(spans) == 0 {
		return out
	}
	for i := range ops {
		op := &ops[i]
		if op.Kind != history.Pull {
			continue
		}
		// The last span that begins no later than the call.
		j, _ := slices.BinarySearchFunc(spans, op.Call, func(s span, t int64) int {
			if s.from <= t {
				return -1
			}
			return 1
		})
		out[i] = j > 0 && op.Return <= spans[j-1].to && op.Mode != ModeBounded
	}
	return out
}

// sequential reports clients that made two calls at a time.
func sequential(ops []history.Op, f *findings) {
	byClient := make(map[int][]int32)
	var clients []int
	for i := range ops {
		op := &ops[i]
		if op.Client < 0 || op.Kind != history.Push && op.Kind != history.Pull {
			continue
		}
		if _, ok := byClient[op.Client]; !ok {
			clients = append(clients, op.Client)
		}
		byClient[op.Client] = append(byClient[op.Client], int32(i))
	}
	byCall := func(a, b int32) int {
		return cmp.Or(cmp.Compare(ops[a].Call, ops[b].Call), cmp.Compare(ops[a].Return, ops[b].Return))
	}
	for _, c := range clients {
		list := byClient[c]
		if !slices.IsSortedFunc(list, byCall) {
			slices.SortStableFunc(list, byCall)
		}
		for k := 1; k < len(list); k++ {
			a, b := int(list[k-1]), int(list[k])
			if ops[b].Call < ops[a].Return {
				f.add(RuleHistory, -1, func() string {
					return fmt.Sprintf("client %d called op %d at %s while op %d was under way until %s; the rules need clients "+
						"that make one call at a time",
						c, b, at(ops[b].Call), a, at(ops[a].Return))
				}, a, b)
			}
		}
	}
}
