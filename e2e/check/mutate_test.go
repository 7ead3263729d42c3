package check

import (
	"math/rand/v2"
	"slices"

	"github.com/rowraft/rowraft/e2e/history"
)

// mutation makes a good history wrong by changing one op.
type mutation struct {
	name string
	rule Rule // that must find it; others may, too; "" where that depends
	make func(*mutator) bool
}

// mutator changes ops in place. Its counts are naive scans: nothing of Vec.
type mutator struct {
	rng     *rand.Rand
	ops     []history.Op
	clients int
}

// target is one row of a read.
type target struct {
	op  *history.Op
	row int
	v   []int64
	end bool // in the final phase
}

func (t target) linearizable() bool { return t.op.Mode == ModeLinearizable }

// reads returns the rows read, in random order.
func (m *mutator) reads() []target {
	var out []target
	end := false
	for i := range m.ops {
		op := &m.ops[i]
		end = end || op.Kind == history.Phase
		if op.Kind != history.Pull || op.Outcome != history.OK {
			continue
		}
		for j, row := range op.Rows {
			out = append(out, target{op, row, op.Values[j], end})
		}
	}
	m.rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// pushes returns the pushes of an outcome, in random order.
func (m *mutator) pushes(outcome history.Outcome) []*history.Op {
	var out []*history.Op
	for i := range m.ops {
		if op := &m.ops[i]; op.Kind == history.Push && op.Outcome == outcome {
			out = append(out, op)
		}
	}
	m.rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// acked counts the pushes of c acknowledged before t.
func (m *mutator) acked(row, c int, t int64) (n int64) {
	for i := range m.ops {
		op := &m.ops[i]
		if op.Kind == history.Push && op.Client == c && op.Outcome == history.OK && op.Return < t &&
			slices.Contains(op.Rows, row) {
			n++
		}
	}
	return n
}

// issued counts the pushes of c called until t that may have an effect.
func (m *mutator) issued(row, c int, t int64) (n int64) {
	for i := range m.ops {
		op := &m.ops[i]
		if op.Kind == history.Push && op.Client == c && op.Outcome != history.Refused && op.Call <= t &&
			slices.Contains(op.Rows, row) {
			n++
		}
	}
	return n
}

// nth returns the n-th push of c to row in the order of calls.
func (m *mutator) nth(row, c int, n int64) *history.Op {
	var found []*history.Op
	for i := range m.ops {
		op := &m.ops[i]
		if op.Kind == history.Push && op.Client == c && op.Outcome != history.Refused && slices.Contains(op.Rows, row) {
			found = append(found, op)
		}
	}
	slices.SortFunc(found, func(a, b *history.Op) int { return int(a.Call - b.Call) })
	return found[n-1]
}

// outside reports whether a read breaks the bounds of rule (c).
func (m *mutator) outside(t target) bool {
	for c, n := range t.v {
		if n > m.issued(t.row, c, t.op.Return) {
			return true
		}
		if n < m.acked(t.row, c, since(t.op)) || n < m.acked(t.row, c, t.op.Call) &&
			(t.end || hasOwn(t.op) && t.op.Client == c) {
			return true
		}
	}
	return false
}

// each calls try for every read and dimension, in random order, until it has
// made its mutation.
func (m *mutator) each(try func(t target, c int) bool) bool {
	for _, t := range m.reads() {
		for _, c := range m.rng.Perm(m.clients) {
			if try(t, c) {
				return true
			}
		}
	}
	return false
}

// pairs calls try for pairs of reads of one row, the first returned before the
// second was called.
func (m *mutator) pairs(try func(a, b target) bool) bool {
	all := m.reads()
	for _, a := range all {
		for _, b := range all {
			if a.row == b.row && a.op.Return < b.op.Call && try(a, b) {
				return true
			}
		}
	}
	return false
}

const elsewhere = 1000 // a client's number that no generated client has

var mutations = []mutation{
	{"a read drops an acknowledged push", RuleAcked, func(m *mutator) bool {
		return m.each(func(t target, c int) bool {
			a := m.acked(t.row, c, t.op.Call)
			if !t.linearizable() || t.end || a == 0 {
				return false
			}
			t.v[c] = a - 1
			return true
		})
	}},
	{"a read doubles a push", RuleIssued, func(m *mutator) bool {
		return m.each(func(t target, c int) bool {
			n := m.issued(t.row, c, t.op.Return)
			if n == 0 || t.end {
				return false
			}
			t.v[c] = n + 1
			return true
		})
	}},
	{"a read shows a push that is called later", RuleIssued, func(m *mutator) bool {
		return m.each(func(t target, c int) bool {
			n := m.issued(t.row, c, t.op.Return)
			if m.issued(t.row, c, never) == n {
				return false
			}
			t.v[c] = n + 1
			return true
		})
	}},
	{"a read is older than one before it, within its bounds", RuleMonotonic, func(m *mutator) bool {
		return m.pairs(func(a, b target) bool {
			if !b.linearizable() || b.end {
				return false
			}
			for _, c := range m.rng.Perm(m.clients) {
				if a.v[c] > m.acked(b.row, c, b.op.Call) {
					b.v[c] = a.v[c] - 1
					return true
				}
			}
			return false
		})
	}},
	{"two reads swap their answers", RuleMonotonic, func(m *mutator) bool {
		return m.pairs(func(a, b target) bool {
			if !b.linearizable() || slices.Equal(a.v, b.v) || older(b.v, a.v) {
				return false
			}
			for c := range a.v {
				a.v[c], b.v[c] = b.v[c], a.v[c]
			}
			return true
		})
	}},
	{"a read returns the answer of an older one", "", func(m *mutator) bool {
		return m.pairs(func(a, b target) bool {
			old := slices.Clone(b.v)
			copy(b.v, a.v)
			if b.linearizable() && m.outside(b) {
				return true
			}
			copy(b.v, old)
			return false
		})
	}},
	{"a leader read lacks its own client's push", RuleAcked, func(m *mutator) bool {
		return m.each(func(t target, c int) bool {
			a := m.acked(t.row, c, t.op.Call)
			if t.op.Client != c || !hasOwn(t.op) || a == 0 {
				return false
			}
			t.v[c] = a - 1
			return true
		})
	}},
	{"two leaders serve states of which none is a prefix of the other", RuleChain, func(m *mutator) bool {
		for _, strict := range []bool{true, false} {
			all := m.reads()
			for _, a := range all {
				for _, b := range all {
					if a.op == b.op || a.row != b.row || a.end || b.end {
						continue
					}
					p := m.rng.Perm(m.clients)
					if len(p) < 2 || b.v[p[0]] == 0 {
						continue
					}
					old := slices.Clone(a.v)
					copy(a.v, b.v)
					a.v[p[0]]--
					a.v[p[1]]++
					if !strict || !m.outside(a) {
						return true
					}
					copy(a.v, old)
				}
			}
		}
		return false
	}},
	{"a read shows a push without one acknowledged before its call", RuleOrder, func(m *mutator) bool {
		return m.each(func(t target, c int) bool {
			if t.op.Mode != ModeLeader || t.end || t.op.Client == c {
				return false
			}
			for d, n := range t.v {
				if d == c || n == 0 {
					continue
				}
				if a := m.acked(t.row, c, m.nth(t.row, d, n).Call); a > 0 {
					t.v[c] = a - 1
					return true
				}
			}
			return false
		})
	}},
	{"the end lacks an acknowledged push", RuleFinal, func(m *mutator) bool {
		return m.each(func(t target, c int) bool {
			a := m.acked(t.row, c, t.op.Call)
			if !t.end || a == 0 {
				return false
			}
			t.v[c] = a - 1
			return true
		})
	}},
	{"the end has a push twice", RuleFinal, func(m *mutator) bool {
		return m.each(func(t target, c int) bool {
			if !t.end {
				return false
			}
			t.v[c] = m.issued(t.row, c, t.op.Return) + 1
			return true
		})
	}},
	{"a refused push was applied", RuleFinal, func(m *mutator) bool {
		for _, p := range m.pushes(history.OK) {
			p.Outcome = history.Refused
			if m.end(func(t target) bool { return t.v[p.Client] > m.issued(t.row, p.Client, never) }) {
				return true
			}
			p.Outcome = history.OK
		}
		return false
	}},
	{"an applied push was never sent", RuleFinal, func(m *mutator) bool {
		for _, p := range m.pushes(history.OK) {
			p.Kind = history.Fault
			if m.end(func(t target) bool { return t.v[p.Client] > m.issued(t.row, p.Client, never) }) {
				return true
			}
			p.Kind = history.Push
		}
		return false
	}},
	{"a push was acknowledged and not applied", RuleFinal, func(m *mutator) bool {
		for _, p := range append(m.pushes(history.Refused), m.pushes(history.Unknown)...) {
			was := p.Outcome
			p.Outcome = history.OK
			if m.end(func(t target) bool { return t.v[p.Client] < m.acked(t.row, p.Client, never) }) {
				return true
			}
			p.Outcome = was
		}
		return false
	}},
	{"a read is later than it was", RuleAcked, func(m *mutator) bool {
		return m.each(func(t target, c int) bool {
			if !t.linearizable() || t.end || t.v[c] >= m.acked(t.row, c, never) {
				return false
			}
			long := t.op.Return - t.op.Call
			for _, p := range m.pushes(history.OK) {
				if p.Client == c && p.Return >= t.op.Call && t.v[c] < m.acked(t.row, c, p.Return+1) {
					t.op.Client, t.op.Call, t.op.Return = elsewhere, p.Return+1, p.Return+1+long
					return true
				}
			}
			return false
		})
	}},
	{"a read is earlier than it was", RuleIssued, func(m *mutator) bool {
		return m.each(func(t target, c int) bool {
			if t.v[c] == 0 || t.end {
				return false
			}
			long := t.op.Return - t.op.Call
			ret := m.nth(t.row, c, t.v[c]).Call - 1
			t.op.Client, t.op.Call, t.op.Return = elsewhere, ret-long, ret
			return true
		})
	}},
	{"a push was acknowledged earlier", RuleAcked, func(m *mutator) bool {
		return m.each(func(t target, c int) bool {
			if !t.linearizable() || t.v[c] >= m.issued(t.row, c, t.op.Call-1) {
				return false
			}
			p := m.nth(t.row, c, t.v[c]+1)
			if p.Outcome != history.OK || p.Call >= t.op.Call || m.acked(t.row, c, t.op.Call) < t.v[c] {
				return false
			}
			p.Return = t.op.Call - 1
			return m.acked(t.row, c, t.op.Call) > t.v[c]
		})
	}},
	{"a push was called later", RuleIssued, func(m *mutator) bool {
		return m.each(func(t target, c int) bool {
			if t.v[c] == 0 {
				return false
			}
			p := m.nth(t.row, c, t.v[c])
			if p.Return <= t.op.Return {
				return false
			}
			p.Call = t.op.Return + 1
			return m.issued(t.row, c, t.op.Return) < t.v[c]
		})
	}},
	{"a count is negative", "", func(m *mutator) bool {
		return m.each(func(t target, c int) bool { t.v[c] = -1; return true })
	}},
	{"a dimension of no client counts", RuleIssued, func(m *mutator) bool {
		for _, t := range m.reads() {
			i := slices.Index(t.op.Rows, t.row)
			t.op.Values[i] = append(t.op.Values[i], 0, 1)
			return true
		}
		return false
	}},
	{"a stale leader read is called linearizable", "", func(m *mutator) bool {
		for _, t := range m.reads() {
			if t.op.Mode != ModeLeader || t.end {
				continue
			}
			t.op.Mode = ModeLinearizable
			if m.outside(t) {
				return true
			}
			t.op.Mode = ModeLeader
		}
		return false
	}},
	{"a bounded read claims to be younger than it is", RuleAcked, func(m *mutator) bool {
		for _, t := range m.reads() {
			if t.op.Mode != ModeBounded || t.op.Age == 0 {
				continue
			}
			old := t.op.Age
			t.op.Age = m.rng.Int64N(old)
			if m.outside(t) {
				return true
			}
			t.op.Age = old
		}
		return false
	}},
	{"a bounded read is older than it may be", RuleBound, func(m *mutator) bool {
		for _, t := range m.reads() {
			if t.op.Mode == ModeBounded {
				t.op.MaxAge = t.op.Age - 1
				return true
			}
		}
		return false
	}},
	{"a row is empty again", "", func(m *mutator) bool {
		for _, t := range m.reads() {
			old := slices.Clone(t.v)
			clear(t.v)
			if m.outside(t) {
				return true
			}
			copy(t.v, old)
		}
		return false
	}},
	{"two dimensions are exchanged", "", func(m *mutator) bool {
		return m.each(func(t target, c int) bool {
			d := m.rng.IntN(m.clients)
			t.v[c], t.v[d] = t.v[d], t.v[c]
			if m.outside(t) {
				return true
			}
			t.v[c], t.v[d] = t.v[d], t.v[c]
			return false
		})
	}},
	{"a read returns another row", "", func(m *mutator) bool {
		all := m.reads()
		for _, a := range all {
			for _, b := range all {
				if a.row == b.row {
					continue
				}
				old := slices.Clone(a.v)
				copy(a.v, b.v)
				if m.outside(a) {
					return true
				}
				copy(a.v, old)
			}
		}
		return false
	}},
	{"the end is a deposed leader's", RuleFinal, func(m *mutator) bool {
		all := m.reads()
		for _, a := range all {
			for _, b := range all {
				if a.row != b.row || !a.end || b.end {
					continue
				}
				old := slices.Clone(a.v)
				copy(a.v, b.v)
				if a.op.Mode = ModeLeader; m.outside(a) {
					return true
				}
				copy(a.v, old)
			}
		}
		return false
	}},
}

// end reports whether some read of the final phase has a property.
func (m *mutator) end(has func(target) bool) bool {
	return slices.ContainsFunc(m.reads(), func(t target) bool { return t.end && has(t) })
}
