package main

import (
	"fmt"
	"slices"

	"github.com/rowraft/rowraft/e2e/history"
)

// counter follows, for one client and row, pushes called, acknowledged and unknown.
type counter struct{ called, acked int64 }

// event is a call or a return, in the order of time.
type event struct {
	at     int64
	ret    bool
	op     *history.Op
	number int // in the history
}

// checkBounds sweeps over calls and returns in order of time. A read must show at
// least what was acknowledged before it was called (of its own client's pushes, or,
// linearizable, of all), and at most what had been called before it returned.
func checkBounds(ops []history.Op) []string {
	var events []event
	for i := range ops {
		op := &ops[i]
		if op.Kind == history.Push || op.Kind == history.Pull && op.Outcome == history.OK {
			events = append(events, event{op.Call, false, op, i}, event{op.Return, true, op, i})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { return int(min(max(a.at-b.at, -1), 1)) })
	type cell struct{ row, client int }
	counts := make(map[cell]*counter)
	at := func(row, client int) *counter {
		c := counts[cell{row, client}]
		if c == nil {
			c = &counter{}
			counts[cell{row, client}] = c
		}
		return c
	}
	least := make(map[int][][]int64) // by op: what the read must show at least
	var problems []string
	for _, e := range events {
		switch {
		case e.op.Kind == history.Push && !e.ret:
			for _, r := range e.op.Rows {
				at(r, e.op.Client).called++
			}
		case e.op.Kind == history.Push:
			for _, r := range e.op.Rows {
				switch e.op.Outcome {
				case history.OK:
					at(r, e.op.Client).acked++
				case history.Refused:
					at(r, e.op.Client).called--
				}
			}
		case !e.ret:
			least[e.number] = floors(e.op, at)
		default:
			for i, r := range e.op.Rows {
				for c, got := range e.op.Values[i] {
					want := least[e.number][i][c]
					if most := at(r, c).called; got < want || got > most {
						problems = append(problems, fmt.Sprintf("op %d: client %d reads (%s) %d of client %d in row %d, want %d to %d", e.number, e.op.Client, e.op.Mode, got, c, r, want, most))
					}
				}
			}
			delete(least, e.number)
		}
	}
	return problems
}

func floors(op *history.Op, at func(row, client int) *counter) [][]int64 {
	out := make([][]int64, len(op.Rows))
	for i, r := range op.Rows {
		out[i] = make([]int64, len(op.Values[i]))
		for c := range out[i] {
			if op.Mode == "linearizable" || c == op.Client {
				out[i][c] = at(r, c).acked
			}
		}
	}
	return out
}
