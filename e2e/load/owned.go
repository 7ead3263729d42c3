package load

import (
	"context"
	"fmt"

	"github.com/rowraft/rowraft/e2e/history"
)

// ownedEach is how many rows each client of the load has for itself, to delete them, too.
const ownedEach = 2

// owned is a row that one client alone changes (package history).
type owned struct {
	row    int
	ops    int64 // pushes and deletes that were not refused
	holds  int64 // the number of the last op, 0 if that deleted the row
	unsure bool  // the last op may have had no effect: then the client ends
	held   int64 // before the last op
}

// changeOwned pushes to one or all of the client's own rows, or deletes them.
func (w *worker) changeOwned(ctx context.Context) error {
	kind := history.Push
	if w.rng.IntN(5) < 2 {
		kind = history.Delete
	}
	some := w.owned
	if w.rng.IntN(2) == 0 {
		at := w.rng.IntN(len(w.owned))
		some = w.owned[at : at+1]
	}
	var rows []int
	var amounts []int64
	for _, o := range some {
		rows = append(rows, o.row)
		amounts = append(amounts, o.ops+1-o.holds)
	}
	op, err := w.change(ctx, kind, rows, amounts)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range some {
		some[i].did(&op)
	}
	return err
}

// did notes what came of an op.
func (o *owned) did(op *history.Op) {
	if op.Outcome == history.Refused {
		return
	}
	o.ops++
	o.held, o.unsure = o.holds, op.Outcome == history.Unknown
	if o.holds = o.ops; op.Kind == history.Delete {
		o.holds = 0
	}
}

// addOwned compares what a row holds in the end with what its client did.
func (f *Final) addOwned(client int, o *owned, row []int64) {
	for c, got := range row {
		want := int64(0)
		if c == client {
			want = o.holds
		}
		switch {
		case got == want, c == client && o.unsure && got == o.held:
		case got < want:
			f.Lost++
			f.Details = append(f.Details, fmt.Sprintf("row %d of client %d holds %d in dimension %d, its op %d left %d: lost",
				o.row, client, got, c, o.ops, want))
		default:
			f.Doubled++
			f.Details = append(f.Details,
				fmt.Sprintf(
					"row %d of client %d holds %d in dimension %d, its op %d left %d: a delete was lost, or a push was doubled", o.row,
					client, got, c, o.ops, want))
		}
	}
}
