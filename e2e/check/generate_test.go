package check

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/rowraft/rowraft/e2e/history"
)

// shape describes the histories that good generates.
type shape struct {
	clients, readers int // readers pull only; their numbers follow those of clients
	rows, perOp      int // rows in all, most rows of one op
	ops              int // of each client and reader
	push             float64
	leader           float64 // share of pulls in mode leader
	bounded          float64 // share of the others in mode bounded
	refused, unknown float64 // shares of pushes
	refusedPulls     float64
	grain            int64 // times are multiples of it, so that many are equal
	long             int64 // most of an op's duration; the pause before it is up to as long
	noFinal          bool
	leaderFinal      bool
	owned            float64 // share of rows of which one client changes each, and deletes it, too
}

// random draws a shape of small histories.
func random(rng *rand.Rand) shape {
	s := shape{
		clients: 1 + rng.IntN(5), readers: rng.IntN(4), rows: 1 + rng.IntN(4), ops: 5 + rng.IntN(25),
		push: 0.3 + 0.5*rng.Float64(), leader: []float64{0, 0.5, 1}[rng.IntN(3)], bounded: []float64{0, 0.5, 1}[rng.IntN(3)],
		refused:      0.1 * float64(rng.IntN(3)),
		refusedPulls: 0.05, grain: []int64{1, 10, 100}[rng.IntN(3)], long: 20 + rng.Int64N(500),
		leaderFinal: rng.IntN(3) == 0,
	}
	s.perOp = 1 + rng.IntN(s.rows)
	return s
}

// applied is one addition to a row, at its linearization point.
type applied struct {
	time, tie int64
	client    int
	acked     int64 // when its client was told, or never
	at        int   // its place among the row's additions, from 1
	deletes   bool
}

// look is one row of one pull.
type look struct {
	op, at int
	pos    int // it contains the row's first pos additions
}

const never = 1 << 62

// good returns a history that keeps the promise: additions and linearizable reads
// at a point within their call, leader reads of any older state that has their
// client's acknowledged pushes, and bounded reads of any older state, with the age that it
// takes.
func good(rng *rand.Rand, s shape) []history.Op {
	g := generator{rng: rng, shape: s, row: make([][]applied, s.rows)}
	for c := range s.clients + s.readers {
		t := int64(1000) + g.span()
		for range s.ops {
			if t += g.span(); s.owned > 0 {
				t++ // the order of a client's ops is known, even to who looks at times alone
			}
			t = g.call(c, t)
		}
	}
	if !s.noFinal {
		g.finish()
	}
	looks := make([][]look, s.rows)
	for i := range g.ops {
		for at := range g.ops[i].Values {
			r := g.ops[i].Rows[at]
			looks[r] = append(looks[r], look{op: i, at: at})
		}
	}
	for r := range g.row {
		g.fill(r, looks[r])
	}
	slices.SortStableFunc(g.ops, func(a, b history.Op) int { return cmp.Compare(a.Return, b.Return) })
	return g.ops
}

type generator struct {
	rng *rand.Rand
	shape
	ops []history.Op
	row [][]applied
	end int64
}

// owner is the client that alone changes row r, -1 if all do.
func (g *generator) owner(r int) int {
	if float64(r) < g.owned*float64(g.rows) {
		return r % g.clients
	}
	return -1
}

func (g *generator) span() int64 {
	return g.rng.Int64N(g.long/g.grain+1) * g.grain
}

func (g *generator) within(from, to int64) int64 { return from + g.rng.Int64N(to-from+1) }

// call makes client c's next call, and returns when it returned.
func (g *generator) call(c int, t int64) int64 {
	op := history.Op{Kind: history.Pull, Client: c, Call: t, Return: t + g.span(), Outcome: history.OK}
	for n := 1 + g.rng.IntN(g.perOp); len(op.Rows) < n; {
		if r := g.rng.IntN(g.rows); !slices.Contains(op.Rows, r) {
			op.Rows = append(op.Rows, r)
		}
	}
	slices.Sort(op.Rows)
	g.end = max(g.end, op.Return)
	switch {
	case c < g.clients && g.rng.Float64() < g.push && g.mayPush(&op):
		g.issue(&op)
	case g.rng.Float64() < g.refusedPulls:
		op.Outcome = history.Refused
	default:
		op.Mode = ModeLinearizable
		if g.rng.Float64() < g.leader {
			op.Mode = ModeLeader
		} else if g.rng.Float64() < g.bounded {
			op.Mode = ModeBounded
			op.Own = g.rng.IntN(2) == 0
		}
		op.Values = make([][]int64, len(op.Rows))
	}
	g.ops = append(g.ops, op)
	return op.Return
}

// mayPush leaves out rows that op's client does not change, and reports whether any is left.
// An op on rows that are deleted may be a delete.
func (g *generator) mayPush(op *history.Op) bool {
	op.Kind = history.Push
	if g.owned == 0 {
		return true
	}
	all := slices.Clone(op.Rows)
	deletes := g.rng.IntN(5) < 2
	op.Rows = slices.DeleteFunc(op.Rows, func(r int) bool {
		return g.owner(r) >= 0 && g.owner(r) != op.Client || deletes && g.owner(r) < 0
	})
	if len(op.Rows) == 0 {
		op.Kind, op.Rows = history.Pull, all
		return false
	}
	if deletes {
		op.Kind = history.Delete
	}
	return true
}

func (g *generator) issue(op *history.Op) {
	ack := op.Return
	switch p := g.rng.Float64(); {
	case p < g.refused:
		op.Outcome = history.Refused
		return
	case p < g.refused+g.unknown:
		op.Outcome, ack = history.Unknown, never
	}
	for _, r := range op.Rows {
		a := applied{time: g.within(op.Call, op.Return), tie: g.rng.Int64(), client: op.Client, acked: ack,
			deletes: op.Kind == history.Delete}
		if g.owner(r) >= 0 {
			a.tie = int64(len(g.row[r])) // in the order of its client's calls
		}
		if op.Outcome == history.Unknown {
			if g.rng.IntN(2) == 0 {
				continue
			}
			a.time = g.within(op.Call, op.Return+10*g.long)
			g.end = max(g.end, a.time)
		}
		g.row[r] = append(g.row[r], a)
	}
}

// finish adds the final phase.
func (g *generator) finish() {
	t := g.end + 10
	g.ops = append(g.ops, history.Op{Kind: history.Phase, Client: -1, Call: t, Return: t, Outcome: history.OK,
		Fault: PhaseFinal})
	for r := range g.row {
		mode := ModeLinearizable
		if g.leaderFinal {
			mode = ModeLeader
		}
		g.ops = append(g.ops, history.Op{Kind: history.Pull, Client: g.clients + g.readers, Call: t + 1, Return: t + 2,
			Outcome: history.OK, Mode: mode, Rows: []int{r}, Values: make([][]int64, 1)})
		t += 3
	}
}

// fill decides what the reads of row r return.
func (g *generator) fill(r int, looks []look) {
	row := g.row[r]
	slices.SortFunc(row, func(a, b applied) int { return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.tie, b.tie)) })
	own := make([][]applied, g.clients) // by acked
	for i := range row {
		row[i].at = i + 1
		own[row[i].client] = append(own[row[i].client], row[i])
	}
	for i := range looks {
		op := &g.ops[looks[i].op]
		point, tie := g.within(op.Call, op.Return), g.rng.Int64()
		pos, _ := slices.BinarySearchFunc(row, point, func(a applied, t int64) int {
			return cmp.Or(cmp.Compare(a.time, t), cmp.Compare(a.tie, tie))
		})
		if op.Mode != ModeLinearizable && op.Call <= g.end {
			least := 0
			if op.Client < g.clients && hasOwn(op) {
				mine := own[op.Client]
				n, _ := slices.BinarySearchFunc(mine, op.Call, func(a applied, t int64) int { return cmp.Compare(a.time, t) })
				for ; n > 0 && least == 0; n-- {
					if a := mine[n-1]; a.acked < op.Call {
						least = a.at
					}
				}
			}
			if g.rng.IntN(2) == 0 {
				pos -= g.rng.IntN(min(pos-least, 5) + 1)
			} else {
				pos -= g.rng.IntN(pos - least + 1)
			}
		}
		if op.Mode == ModeBounded {
			for _, a := range row[pos:] {
				op.Age = max(op.Age, op.Call-a.acked)
			}
			op.MaxAge = op.Age + g.rng.Int64N(10)
		}
		looks[i].pos = pos
	}
	slices.SortFunc(looks, func(a, b look) int { return cmp.Compare(a.pos, b.pos) })
	v := make([]int64, g.clients)
	have := 0
	for _, l := range looks {
		for ; have < l.pos; have++ {
			v[row[have].client]++
		}
		g.ops[l.op].Values[l.at] = slices.Clone(v)
		if have > 0 && row[have-1].deletes {
			clear(g.ops[l.op].Values[l.at])
		}
	}
}

// clone copies ops so deeply that a mutation leaves the original alone.
func clone(ops []history.Op) []history.Op {
	out := slices.Clone(ops)
	for i := range out {
		out[i].Rows = slices.Clone(out[i].Rows)
		out[i].Values = slices.Clone(out[i].Values)
		for j := range out[i].Values {
			out[i].Values[j] = slices.Clone(out[i].Values[j])
		}
	}
	return out
}
