package check

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rowraft/rowraft/e2e/history"
)

// PorcupineOptions bound the search. Zero fields take the defaults.
type PorcupineOptions struct {
	Window  int           // most ops of one search, 5000 by default, which is also the most
	Timeout time.Duration // for all windows together, 30 s by default
	Rows    []int         // look at these only; nil: at all
}

// Opinion is what the search found.
type Opinion struct {
	Windows    int         `json:"windows"`
	OK         int         `json:"ok"`      // windows that have an explanation
	Illegal    []Violation `json:"illegal"` // windows that have none; Ops are all of the window
	Unknown    int         `json:"unknown"` // windows not decided in time: investigate, it is no pass
	UnknownRow int         `json:"unknown_row"`
	Skipped    int         `json:"skipped"` // reads that fit into no window, or precede theirs
}

func (o Opinion) String() string {
	s := fmt.Sprintf("%d windows explained, %d impossible", o.OK, len(o.Illegal))
	if o.Unknown > 0 {
		s += fmt.Sprintf(", %d not decided in time (the first in row %d)", o.Unknown, o.UnknownRow)
	}
	if o.Skipped > 0 {
		s += fmt.Sprintf(", %d reads left out", o.Skipped)
	}
	return s
}

const maxWindow = 5000

// Porcupine asks a general linearizability checker for an order of the ops that
// explains every read, row by row. It shares no rule with Vec: the model is a
// vector, a push adds one to it, a read must equal it. A leader read, or a bounded one, may stand
// anywhere before its return, that is, from the call of the last push that it
// contains to the return of the first that it lacks; so these become its bounds
// (with none, the search would not end). That it shows its client's own pushes is
// counted apart. Of the reads that returned one and the same state only the first to
// return and the last to be called are searched: a row has a state once, without a
// gap, so if it has it before the one returns and after the other is called, there
// is room for all. (Reads that commute make a search exponential that must fail.)
//
// A row that is deleted is a register, which its one client's n-th op sets to n or, a
// delete, to nothing. Of it the linearizable reads alone are looked at, all of them.
//
// A row with more ops than a window is looked at in windows that overlap by about
// half. A window has the reads called and returned within it, and every push that
// overlaps it. Pushes acknowledged before it began stand before all its reads, so
// they are the state that it starts from; leader reads that show less than that
// state are left out (Skipped). What only shows across windows is Vec's to find.
func Porcupine(ops []history.Op, clients int, o PorcupineOptions) Opinion {
	if o.Window <= 0 || o.Window > maxWindow {
		o.Window = maxWindow
	}
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	var f findings
	s := search{x: newIndex(ops, clients, &f), clients: clients, window: o.Window, until: time.Now().Add(o.Timeout)}
	s.out.Illegal = f.sorted()
	s.deleted = Sequences(ops)
	for i, row := range s.x.rows {
		if o.Rows == nil || slices.Contains(o.Rows, row) {
			s.row(i)
		}
	}
	return s.out
}

type search struct {
	x       *index
	clients int
	window  int
	until   time.Time
	out     Opinion

	calls, acks [][]int64 // of the row's pushes, per client, ascending

	deleted map[int]*Sequence // by row
	sets    map[int]int64     // what ops set the row to, if it is deleted; else nil
}

// row looks at all windows of a row.
func (s *search) row(i int) {
	row := s.x.rows[i]
	refs := slices.Clone(s.x.of(i))
	slices.SortFunc(refs, func(a, b ref) int {
		return cmp.Or(cmp.Compare(s.x.ops[a.op].Call, s.x.ops[b.op].Call), cmp.Compare(a.op, b.op))
	})
	refs = slices.DeleteFunc(refs, func(r ref) bool { return s.x.ops[r.op].Outcome == history.Refused })
	s.times(refs)
	s.sets = nil
	if q := s.deleted[row]; q != nil {
		s.sets = make(map[int]int64, len(q.Ops))
		for n, op := range q.Ops {
			s.sets[op] = q.After(n + 1)
		}
	}
	for _, r := range refs {
		if op := &s.x.ops[r.op]; op.Kind == history.Pull && hasOwn(op) && s.sets == nil {
			s.ownPushes(row, int(r.op), op.Values[r.at])
		}
	}
	for from := 0; from < len(refs); {
		w := s.cut(refs, from)
		s.judge(row, w)
		if w.to == len(refs) {
			return
		}
		from += max(1, (w.to-from)/2)
	}
}

// times lists when the pushes of each client were called and acknowledged.
func (s *search) times(refs []ref) {
	s.calls, s.acks = make([][]int64, s.clients), make([][]int64, s.clients)
	for _, r := range refs {
		op := &s.x.ops[r.op]
		if op.Kind == history.Pull {
			continue
		}
		s.calls[op.Client] = append(s.calls[op.Client], op.Call)
		if op.Outcome == history.OK {
			s.acks[op.Client] = append(s.acks[op.Client], op.Return)
		}
	}
	for c := range s.acks {
		slices.Sort(s.acks[c])
	}
}

// window is what is searched at once.
type window struct {
	to    int     // refs[to:] are called after it
	base  []int64 // the state it starts from
	ops   []int   // positions in the history
	cases []porcupine.Operation
	reads map[string]*extremes // by the packed state that they returned
}

// extremes are the bounds of the reads of one state: the last call and its return,
// the first return and its call.
type extremes struct{ lastCall, itsReturn, firstReturn, itsCall int64 }

// pull adds a read that may stand between call and ret.
func (w *window) pull(op int, state string, call, ret int64) {
	w.ops = append(w.ops, op)
	e, ok := w.reads[state]
	if !ok {
		w.reads[state] = &extremes{call, ret, ret, call}
		return
	}
	if call > e.lastCall {
		e.lastCall, e.itsReturn = call, ret
	}
	if ret < e.firstReturn {
		e.firstReturn, e.itsCall = ret, call
	}
}

// history returns what is to be searched.
func (w *window) history() []porcupine.Operation {
	for state, e := range w.reads {
		w.cases = append(w.cases, porcupine.Operation{Output: state, Call: e.lastCall, Return: e.itsReturn})
		if e.itsCall != e.lastCall || e.itsReturn != e.firstReturn {
			w.cases = append(w.cases, porcupine.Operation{Output: state, Call: e.itsCall, Return: e.firstReturn})
		}
	}
	return w.cases
}

// cut makes the window that begins with the call of refs[from].
func (s *search) cut(refs []ref, from int) window {
	w := window{to: from, base: make([]int64, s.clients), reads: make(map[string]*extremes)}
	begin := s.x.ops[refs[from].op].Call
	for _, r := range refs[:from] {
		op := &s.x.ops[r.op]
		switch {
		case op.Kind == history.Pull:
		case op.Outcome == history.OK && op.Return < begin:
			w.base[op.Client] = s.effect(int(r.op)).on(w.base[op.Client])
		default:
			w.push(op, int(r.op), s.effect(int(r.op)))
		}
	}
	w.to = min(len(refs), from+max(1, s.window-len(w.ops)))
	end := int64(math.MaxInt64)
	if w.to < len(refs) {
		end = s.x.ops[refs[w.to].op].Call
	}
	for _, r := range refs[from:w.to] {
		op := &s.x.ops[r.op]
		switch {
		case op.Kind != history.Pull:
			w.push(op, int(r.op), s.effect(int(r.op)))
		case op.Return >= end && end != math.MaxInt64:
			s.out.Skipped++
		default:
			v := op.Values[r.at][:s.clients]
			if s.sets != nil {
				s.register(&w, op, int(r.op), v)
				continue
			}
			if op.Mode != ModeLinearizable && older(v, w.base) {
				s.out.Skipped++
				continue
			}
			call, ret := op.Call, op.Return
			if op.Mode != ModeLinearizable {
				call, ret = s.bounds(v, op.Return)
			}
			w.pull(int(r.op), pack(v), call, ret)
		}
	}
	return w
}

// register adds a read of a row that is deleted: it has some states several times.
func (s *search) register(w *window, op *history.Op, at int, v []int64) {
	if op.Mode != ModeLinearizable {
		s.out.Skipped++
		return
	}
	w.ops = append(w.ops, at)
	w.cases = append(w.cases, porcupine.Operation{Output: pack(v), Call: op.Call, Return: op.Return})
}

// effect is what an op does to the row.
func (s *search) effect(op int) effect {
	to, sets := s.sets[op]
	return effect{client: s.x.ops[op].Client, sets: sets, to: to}
}

// effect changes one dimension of a row: it adds one, or sets it.
type effect struct {
	client int
	sets   bool
	to     int64
}

func (e effect) on(n int64) int64 {
	if e.sets {
		return e.to
	}
	return n + 1
}

// older reports whether v is a state, and smaller than base in some dimension.
func older(v, base []int64) bool {
	less := false
	for c := range base {
		if v[c] < 0 {
			return false
		}
		less = less || v[c] < base[c]
	}
	return less
}

// bounds returns between which times a leader read that returned v at ret may
// stand. If there are none, it keeps ret alone, where the search will not explain
// it either: a push that it contains is called later, or one that it lacks is
// acknowledged earlier than one that it contains is called.
func (s *search) bounds(v []int64, ret int64) (from, to int64) {
	from, to = math.MinInt64, ret
	for c, n := range v {
		if n > 0 && n <= int64(len(s.calls[c])) {
			from = max(from, s.calls[c][n-1])
		}
		if n >= 0 && n < int64(len(s.acks[c])) {
			to = min(to, s.acks[c][n])
		}
	}
	if from > to {
		return ret, ret
	}
	return from, to
}

func (w *window) push(op *history.Op, at int, e effect) {
	ret := op.Return
	if op.Outcome == history.Unknown {
		ret = math.MaxInt64
	}
	w.ops = append(w.ops, at)
	w.cases = append(w.cases, porcupine.Operation{Input: e, Call: op.Call, Return: ret})
}

// judge searches a window for an explanation.
func (s *search) judge(row int, w window) {
	s.out.Windows++
	result := porcupine.Unknown
	if left := time.Until(s.until); left > 0 { // Porcupine takes 0 as: no limit
		result = porcupine.CheckOperationsTimeout(model(w.base), w.history(), left)
	}
	switch result {
	case porcupine.Ok:
		s.out.OK++
	case porcupine.Illegal:
		s.out.Illegal = append(s.out.Illegal, Violation{
			Rule: RulePorcupine, Row: row, Ops: w.ops,
			Text: fmt.Sprintf("row %d: no order of the %d ops from op %d on explains what was read", row, len(w.ops), w.ops[0]),
		})
	default:
		if s.out.Unknown == 0 {
			s.out.UnknownRow = row
		}
		s.out.Unknown++
	}
}

// ownPushes checks that a leader read shows what its own client had been told is
// there; the model cannot, as it moves the read back in time.
func (s *search) ownPushes(row, i int, v []int64) {
	op := &s.x.ops[i]
	if op.Client < 0 || op.Client >= s.clients {
		return
	}
	own, _ := slices.BinarySearch(s.acks[op.Client], op.Call)
	if have := v[op.Client]; have < int64(own) {
		s.out.Illegal = append(s.out.Illegal, Violation{
			Rule: RulePorcupine, Row: row, Ops: []int{i},
			Text: fmt.Sprintf("row %d: op %d, a %s read of client %d, shows %d of its own pushes, %d were acknowledged", row, i,
				op.Mode, op.Client, have, own),
		})
	}
}

// pack turns a vector into a comparable value.
func pack(v []int64) string {
	b := make([]byte, 0, 8*len(v))
	for _, n := range v {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return string(b)
}

// model is a row: state and output are packed vectors; an input is an effect, or nil for a read.
func model(base []int64) porcupine.Model {
	seed := maphash.MakeSeed()
	return porcupine.Model{
		Init: func() any { return pack(base) },
		Step: func(state, input, output any) (bool, any) {
			e, changes := input.(effect)
			if !changes {
				return state.(string) == output.(string), state
			}
			v := []byte(state.(string))
			at := v[8*e.client:]
			binary.LittleEndian.PutUint64(at, uint64(e.on(int64(binary.LittleEndian.Uint64(at)))))
			return true, string(v)
		},
		Equal: func(a, b any) bool { return a.(string) == b.(string) },
		Hash:  func(a any) uint64 { return maphash.String(seed, a.(string)) },
	}
}
