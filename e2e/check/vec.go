package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/rowraft/rowraft/e2e/history"
)

// Vec checks every push and pull of a history against the rules of the package
// comment. Dimensions 0 to clients−1 of a row belong to the clients that push;
// readers may have any number. ops may come in any order.
//
// Listed is the first violation of each rule and row, with a count of the others;
// none means that the history is one that the promise allows.
func Vec(ops []history.Op, clients int) []Violation {
	var f findings
	ops = counted(ops, &f)
	sequential(ops, &f)
	x := newIndex(ops, clients, &f)
	r := rowCheck{
		x: x, f: &f, clients: clients,
		issued: make([][]event, clients), acked: make([][]event, clients),
		floor: make([]int64, clients), floorOp: make([]int32, clients),
	}
	for i := range x.rows {
		r.load(i)
		for j := range r.reads {
			r.bounds(&r.reads[j])
		}
		r.monotonic()
		r.chain()
	}
	return f.sorted()
}

// event is the call or the return of a push.
type event struct {
	time int64
	op   int32
}

// read is what one pull returned of the row.
type read struct {
	op           int32
	call, ret    int64
	since        int64 // what was acknowledged before is promised
	own          bool  // and what its client was told of its own pushes
	linearizable bool
	final        bool
	client       int
	v            []int64 // ≥ clients long
	sum          int64
}

// rowCheck checks one row after the other; its slices are used again.
type rowCheck struct {
	x       *index
	f       *findings
	clients int

	row    int
	issued [][]event // per client: calls of its OK and Unknown pushes, ascending
	acked  [][]event // per client: returns of its OK pushes, ascending
	reads  []read

	byCall, byReturn []int32 // places in reads
	floor            []int64 // per dimension: the most that was read so far,
	floorOp          []int32 // and the op that read it
}

func byTime(a, b event) int { return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.op, b.op)) }

// load fills the lists of rows[i].
func (r *rowCheck) load(i int) {
	r.row, r.reads = r.x.rows[i], r.reads[:0]
	for c := range r.clients {
		r.issued[c], r.acked[c] = r.issued[c][:0], r.acked[c][:0]
	}
	for _, ref := range r.x.of(i) {
		op := &r.x.ops[ref.op]
		if op.Kind == history.Pull {
			v := op.Values[ref.at]
			rd := read{op: ref.op, call: op.Call, ret: op.Return, since: since(op), own: hasOwn(op),
				linearizable: op.Mode == ModeLinearizable,
				final:        r.x.final[ref.op], client: op.Client, v: v}
			for _, n := range v[:r.clients] {
				rd.sum += n
			}
			r.reads = append(r.reads, rd)
			continue
		}
		if op.Outcome != history.Refused {
			r.issued[op.Client] = append(r.issued[op.Client], event{op.Call, ref.op})
		}
		if op.Outcome == history.OK {
			r.acked[op.Client] = append(r.acked[op.Client], event{op.Return, ref.op})
		}
	}
	for c := range r.clients {
		for _, list := range [][]event{r.issued[c], r.acked[c]} {
			if !slices.IsSortedFunc(list, byTime) {
				slices.SortFunc(list, byTime)
			}
		}
	}
}

// bounds checks rules (c), (d) and the final one for a read.
func (r *rowCheck) bounds(rd *read) {
	// last is the contained push that was called last, the strongest for (d).
	last := event{time: math.MinInt64}
	for c, n := range rd.v[:r.clients] {
		issued := r.issued[c]
		switch {
		case n < 0 || n > int64(len(issued)):
			r.tooMany(rd, c)
		case n > 0:
			if e := issued[n-1]; e.time > rd.ret {
				r.tooMany(rd, c)
			} else if e.time > last.time {
				last = e
			}
		}
	}
	for c, n := range rd.v[r.clients:] {
		if n != 0 {
			r.f.add(RuleIssued, r.row, func() string {
				return fmt.Sprintf("%s shows %d in dimension %d, which no client pushes to", r.name(rd), n, c+r.clients)
			}, int(rd.op))
		}
	}
	for c, n := range rd.v[:r.clients] {
		acked := r.acked[c]
		if n < 0 || n >= int64(len(acked)) {
			continue
		}
		first := acked[n] // that the read must lack
		if first.time < rd.since || first.time < rd.call && (rd.final || rd.own && rd.client == c) {
			r.tooFew(rd, c, first)
		} else if first.time < last.time {
			r.f.add(RuleOrder, r.row, func() string {
				return fmt.Sprintf("%s contains the push of op %d, called at %s, but not the push of client %d in op %d, "+
					"acknowledged at %s: it shows %d of that client",
					r.name(rd), last.op, at(last.time), c, first.op, at(first.time), n)
			}, int(first.op), int(last.op), int(rd.op))
		}
	}
}

// tooMany reports a read that shows more of client c than was called.
func (r *rowCheck) tooMany(rd *read, c int) {
	rule := RuleIssued
	if rd.final {
		rule = RuleFinal
	}
	r.f.add(rule, r.row, func() string {
		if rd.v[c] < 0 {
			return fmt.Sprintf("%s shows %d pushes of client %d", r.name(rd), rd.v[c], c)
		}
		called, _ := slices.BinarySearchFunc(r.issued[c], rd.ret, func(e event, t int64) int {
			if e.time <= t {
				return -1
			}
			return 1
		})
		s := fmt.Sprintf("%s shows %d pushes of client %d, which had called %d", r.name(rd), rd.v[c], c, called)
		if n := r.refused(c, rd.ret); n > 0 {
			s += fmt.Sprintf(" and %d that were refused", n)
		}
		return s + ": one was applied twice, or though it was refused, or before it was sent"
	}, int(rd.op))
}

// refused counts the refused pushes of client c called until t.
func (r *rowCheck) refused(c int, t int64) (n int) {
	i, _ := slices.BinarySearch(r.x.rows, r.row)
	for _, ref := range r.x.of(i) {
		if op := &r.x.ops[ref.op]; op.Kind == history.Push && op.Client == c && op.Outcome == history.Refused &&
			op.Call <= t {
			n++
		}
	}
	return n
}

// tooFew reports a read that lacks pushes of client c, of which first is one.
func (r *rowCheck) tooFew(rd *read, c int, first event) {
	rule := RuleAcked
	if rd.final {
		rule = RuleFinal
	}
	r.f.add(rule, r.row, func() string {
		acked, _ := slices.BinarySearchFunc(r.acked[c], rd.call, func(e event, t int64) int {
			return cmp.Compare(e.time, t)
		})
		s := fmt.Sprintf("%s shows %d pushes of client %d, of which %d had been acknowledged, op %d at %s",
			r.name(rd), rd.v[c], c, acked, first.op, at(first.time))
		if op := &r.x.ops[rd.op]; op.Mode == ModeBounded {
			s += fmt.Sprintf(", and claims an age of %s", at(op.Age))
		}
		return s
	}, int(first.op), int(rd.op))
}

// monotonic checks rule (b).
func (r *rowCheck) monotonic() {
	r.byCall, r.byReturn = r.byCall[:0], r.byReturn[:0]
	for i := range r.reads {
		r.byCall, r.byReturn = append(r.byCall, int32(i)), append(r.byReturn, int32(i))
	}
	slices.SortFunc(r.byCall, func(a, b int32) int { return cmp.Compare(r.reads[a].call, r.reads[b].call) })
	slices.SortFunc(r.byReturn, func(a, b int32) int { return cmp.Compare(r.reads[a].ret, r.reads[b].ret) })
	clear(r.floor)
	returned := r.byReturn
	for _, i := range r.byCall {
		rd := &r.reads[i]
		for len(returned) > 0 && r.reads[returned[0]].ret < rd.call {
			before := &r.reads[returned[0]]
			returned = returned[1:]
			for c, n := range before.v[:r.clients] {
				if n > r.floor[c] {
					r.floor[c], r.floorOp[c] = n, before.op
				}
			}
		}
		if !rd.linearizable {
			continue
		}
		for c, n := range rd.v[:r.clients] {
			if n < r.floor[c] {
				r.f.add(RuleMonotonic, r.row, func() string {
					before := &r.x.ops[r.floorOp[c]]
					return fmt.Sprintf(
						"%s shows %d pushes of client %d, but op %d, a %s read of client %d that returned at %s, had shown %d",
						r.name(rd), n, c, r.floorOp[c], before.Mode, before.Client, at(before.Return), r.floor[c])
				}, int(r.floorOp[c]), int(rd.op))
			}
		}
	}
}

// chain checks rule (a): neighbours in the order of sums are comparable, so all are.
func (r *rowCheck) chain() {
	order := r.byCall // of no more use as such
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(r.reads[a].sum, r.reads[b].sum), cmp.Compare(r.reads[a].op, r.reads[b].op))
	})
	for i := 1; i < len(order); i++ {
		lo, hi := &r.reads[order[i-1]], &r.reads[order[i]]
		for c := range r.clients {
			if lo.v[c] <= hi.v[c] {
				continue
			}
			d := c // the dimension that is the other way around; there is one, as lo.sum ≤ hi.sum
			for e := range r.clients {
				if lo.v[e] < hi.v[e] {
					d = e
					break
				}
			}
			r.f.add(RuleChain, r.row, func() string {
				return fmt.Sprintf(
					"%s shows %d of client %d and %d of client %d, %s shows %d and %d: no one order of the pushes has both states",
					r.name(lo), lo.v[c], c, lo.v[d], d, r.name(hi), hi.v[c], hi.v[d])
			}, int(lo.op), int(hi.op))
			break
		}
	}
}

// name says which read is meant.
func (r *rowCheck) name(rd *read) string {
	mode := r.x.ops[rd.op].Mode
	if rd.final {
		mode = "final " + mode
	}
	return fmt.Sprintf("row %d: the %s read of client %d (op %d, %s to %s)", r.row, mode, rd.client, rd.op, at(rd.call),
		at(rd.ret))
}
