package check

import (
	"fmt"

	"github.com/rowraft/rowraft/e2e/history"
)

// Tally is what a history came to. A push to k rows is k additions.
type Tally struct {
	Pushes  int `json:"pushes"`  // calls, of any outcome, those that delete included
	Deletes int `json:"deletes"` // of those
	Acked   int `json:"acked"`
	Refused int `json:"refused"`
	Unknown int `json:"unknown"`
	Pulls   int `json:"pulls"`   // that returned values
	Bounded int `json:"bounded"` // of those, on any replica
	TooOld  int `json:"too_old"` // bounded pulls that no replica could answer
	Faults  int `json:"faults"`  // acts of the nemesis

	AckedAdditions int64 `json:"acked_additions"`
	FinalReads     int   `json:"final_reads"` // rows read in final phases, again and again
	UnreadRows     int   `json:"unread_rows"` // rows with acked additions that no final read shows

	// Lost additions were acknowledged, and a final read lacks them. Doubled ones are
	// beyond all that were acknowledged or unknown: applied twice, or though refused.
	// Of several final reads of a row the worst counts. Within one row and client a
	// lost addition and a doubled one make up for each other: see Vec.
	Lost    int64 `json:"lost"`
	Doubled int64 `json:"doubled"`
}

func (t Tally) String() string {
	return fmt.Sprintf("%d pushes acknowledged, %d refused, %d unknown, %d of them deletes; %d pulls, %d of them "+
		"bounded, and %d for which no replica was new enough; %d faults; %d additions lost, %d doubled, %d rows unread at "+
		"the end",
		t.Acked, t.Refused, t.Unknown, t.Deletes, t.Pulls, t.Bounded, t.TooOld, t.Faults, t.Lost, t.Doubled, t.UnreadRows)
}

// Count counts the ops of a history, and compares what was acknowledged with what
// reads of the final phases show.
func Count(ops []history.Op) Tally {
	var t Tally
	clients, dims := 0, 0
	for i := range ops {
		op := &ops[i]
		switch op.Kind {
		case history.Fault:
			t.Faults++
		case history.Pull:
			if op.Outcome == history.OK {
				t.Pulls++
			}
			if op.Mode == ModeBounded && op.Outcome == history.OK {
				t.Bounded++
			} else if op.Mode == ModeBounded {
				t.TooOld++
			}
			for _, v := range op.Values {
				dims = max(dims, len(v))
			}
		case history.Push, history.Delete:
			clients = max(clients, op.Client+1)
			t.Pushes++
			if op.Kind == history.Delete {
				t.Deletes++
			}
			switch op.Outcome {
			case history.OK:
				t.Acked++
				t.AckedAdditions += int64(len(op.Rows))
			case history.Refused:
				t.Refused++
			case history.Unknown:
				t.Unknown++
			}
		}
	}
	var ignored findings
	x := newIndex(counted(ops, &ignored), clients, &ignored)
	dims = max(dims, clients)
	lost, doubled := make([]int64, dims), make([]int64, dims)
	for i := range x.rows {
		if !t.addFinal(x, i, lost, doubled) {
			t.UnreadRows++
		}
	}
	return t
}

// addFinal adds what the final reads of a row show, and says whether there were
// any or nothing was to be read. lost and doubled are scratch, a number per dimension.
func (t *Tally) addFinal(x *index, row int, lost, doubled []int64) bool {
	refs := x.of(row)
	clear(lost)
	clear(doubled)
	acked, issued := make([]int64, len(lost)), make([]int64, len(lost))
	pushed, read := false, false
	for _, r := range refs {
		rd := &x.ops[r.op]
		pushed = pushed || rd.Kind == history.Push && rd.Outcome == history.OK
		if !x.final[r.op] {
			continue
		}
		read = true
		t.FinalReads++
		clear(acked)
		clear(issued)
		for _, r := range refs {
			op := &x.ops[r.op]
			if op.Kind != history.Push || op.Outcome == history.Refused {
				continue
			}
			if op.Call <= rd.Return {
				issued[op.Client]++
			}
			if op.Outcome == history.OK && op.Return < rd.Call {
				acked[op.Client]++
			}
		}
		for c, have := range rd.Values[r.at] {
			lost[c] = max(lost[c], acked[c]-have)
			doubled[c] = max(doubled[c], have-issued[c])
		}
	}
	for c := range lost {
		t.Lost += lost[c]
		t.Doubled += doubled[c]
	}
	return read || !pushed
}
