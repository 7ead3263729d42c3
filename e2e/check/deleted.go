package check

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rowraft/rowraft/e2e/history"
)

// Sequence is what one client did to a row that it also deletes, in the order of its
// calls; refused ops are left out.
type Sequence struct {
	Client int
	Ops    []int // positions in the history
	gone   []bool
	acked  int // the last of the acknowledged ones, from 1
}

// After returns what the row holds in its client's dimension after the first n ops: 0
// if the n-th was a delete, or there was none.
func (s *Sequence) After(n int) int64 {
	if n <= 0 || n > len(s.Ops) || s.gone[n-1] {
		return 0
	}
	return int64(n)
}

// Acked is how many ops there were up to the last one that was acknowledged.
func (s *Sequence) Acked() int { return s.acked }

// Sequences finds the rows that are deleted.
func Sequences(ops []history.Op) map[int]*Sequence {
	var f findings
	return sequences(ops, &f)
}

// sequences is Sequences; it reports rows that several clients change.
func sequences(ops []history.Op, f *findings) map[int]*Sequence {
	out := make(map[int]*Sequence)
	for i := range ops {
		if op := &ops[i]; op.Kind == history.Delete {
			for _, row := range op.Rows {
				if out[row] == nil {
					out[row] = &Sequence{Client: op.Client}
				}
			}
		}
	}
	if len(out) == 0 {
		return out
	}
	for i := range ops {
		op := &ops[i]
		if op.Kind != history.Push && op.Kind != history.Delete {
			continue
		}
		for _, row := range op.Rows {
			s := out[row]
			if s == nil {
				continue
			}
			if op.Client != s.Client {
				f.add(RuleHistory, row, func() string {
					return fmt.Sprintf("row %d is deleted, and changed by clients %d and %d: it must belong to one", row, s.Client,
						op.Client)
				}, i)
				continue
			}
			if op.Outcome != history.Refused {
				s.Ops = append(s.Ops, i)
			}
		}
	}
	for _, s := range out {
		slices.SortFunc(s.Ops, func(a, b int) int {
			return cmp.Or(cmp.Compare(ops[a].Call, ops[b].Call), cmp.Compare(ops[a].Return, ops[b].Return), cmp.Compare(a, b))
		})
		for n, i := range s.Ops {
			s.gone = append(s.gone, ops[i].Kind == history.Delete)
			if ops[i].Outcome == history.OK {
				s.acked = n + 1
			}
		}
	}
	return out
}

// counted returns a history in which every delete is a push, and every read of nothing
// shows how many ops it contains: the fewest that the promise allows, since fewer bind
// later reads less. If it allows none the most that there were before, which the
// rules then find to be too few.
func counted(ops []history.Op, f *findings) []history.Op {
	rows := sequences(ops, f)
	if len(rows) == 0 {
		return ops
	}
	out := slices.Clone(ops)
	reads := make(map[int][]ref) // by row
	final := finalReads(ops)
	for i := range out {
		op := &out[i]
		switch {
		case op.Kind == history.Delete:
			op.Kind = history.Push
		case op.Kind == history.Pull && op.Outcome == history.OK && len(op.Values) == len(op.Rows):
			copied := false
			for at, row := range op.Rows {
				if s := rows[row]; s == nil || s.Client >= len(op.Values[at]) {
					continue
				}
				if !copied {
					op.Values, copied = slices.Clone(op.Values), true
				}
				reads[row] = append(reads[row], ref{int32(i), int32(at)})
			}
		}
	}
	for row, s := range rows {
		c := counter{ops: out, final: final, row: row, s: s, f: f}
		c.count(reads[row])
	}
	return out
}

// counter resolves the reads of one row.
type counter struct {
	ops   []history.Op
	final []bool
	row   int
	s     *Sequence
	f     *findings
}

func (c *counter) count(reads []ref) {
	// A read that returned before another was called was called before it, too.
	slices.SortFunc(reads, func(a, b ref) int {
		return cmp.Or(cmp.Compare(c.ops[a.op].Call, c.ops[b.op].Call), cmp.Compare(a.op, b.op))
	})
	returned := slices.Clone(reads)
	slices.SortFunc(returned, func(a, b ref) int { return cmp.Compare(c.ops[a.op].Return, c.ops[b.op].Return) })
	floor := int64(0)
	for _, r := range reads {
		op := &c.ops[r.op]
		for ; c.ops[returned[0].op].Return < op.Call; returned = returned[1:] {
			was := &c.ops[returned[0].op]
			floor = max(floor, was.Values[returned[0].at][c.s.Client])
		}
		v := op.Values[r.at]
		n := v[c.s.Client]
		if n == 0 {
			v = slices.Clone(v)
			v[c.s.Client] = c.nothing(op, c.least(op, c.final[r.op], floor))
			op.Values[r.at] = v
		} else if n > 0 && n <= int64(len(c.s.Ops)) && c.s.After(int(n)) == 0 {
			c.f.add(RuleDeleted, c.row, func() string {
				i := c.s.Ops[n-1]
				return fmt.Sprintf("row %d: the %s read of client %d (op %d, %s to %s) shows the %d ops of client %d up to op "+
					"%d, which deleted the row",
					c.row, op.Mode, op.Client, r.op, at(op.Call), at(op.Return), n, c.s.Client, i)
			}, c.s.Ops[n-1], int(r.op))
		}
	}
}

// least is how many ops a read contains at least; floor is the most that was read before.
func (c *counter) least(op *history.Op, final bool, floor int64) int64 {
	promised := since(op)
	if final || hasOwn(op) && op.Client == c.s.Client {
		promised = max(promised, op.Call)
	}
	least := int64(0)
	if op.Mode == ModeLinearizable {
		least = floor
	}
	for n, i := range c.s.Ops {
		if p := &c.ops[i]; p.Outcome == history.OK && p.Return < promised {
			least = max(least, int64(n+1))
		}
	}
	return least
}

// nothing is how many ops a read contains that found no row.
func (c *counter) nothing(op *history.Op, least int64) int64 {
	most := int64(0)
	for n := 0; n <= len(c.s.Ops); n++ {
		if c.s.After(n) != 0 || n > 0 && c.ops[c.s.Ops[n-1]].Call > op.Return {
			continue
		}
		if most = int64(n); most >= least {
			break
		}
	}
	return most
}
