package view

import (
	"fmt"
	"io"
	"slices"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/rowraft/rowraft/internal/cli"
)

// Move is the contract of `shard move -o json`, and of each line of `shard
// moves -o json`.
type Move struct {
	Schema     string `json:"schema,omitempty"`
	ID         uint64 `json:"id"`
	Shard      uint32 `json:"shard"`
	From       string `json:"from"`
	To         string `json:"to"`
	OldReplica string `json:"old_replica"`
	NewReplica string `json:"new_replica"`
	Phase      string `json:"phase"` // learn, promote, remove, cancel; done, cancelled
	Running    bool   `json:"running"`
	WaitingFor string `json:"waiting_for"`
	LagEntries uint64 `json:"lag_entries"`
	Reason     string `json:"reason"`  // asked, dead, decommission, missing, zone, balance, fenced
	Started    string `json:"started"` // RFC 3339; "" if unknown
	Ended      string `json:"ended"`   // and while it runs

	started, ended uint64 // Unix times in nanoseconds; 0: as above
	fromID         string // id of the server From
}

// MoveList is the contract of `shard moves -o json`.
type MoveList struct {
	Schema string `json:"schema"`
	Moves  []Move `json:"moves"`
}

// phaseText describes the phases of a move, for people (scheduler/meta/moves.go).
var phaseText = map[string]string{
	"learn":     "the new replica joins and catches up",
	"promote":   "the new replica becomes a voter",
	"remove":    "the old replica leaves",
	"cancel":    "the new replica leaves again",
	"done":      "done",
	"cancelled": "cancelled",
}

// NewMove describes a move of a status; st is nil for a move that has ended.
func NewMove(r *rowraftv1.StatusReply, p *rowraftv1.Move, st *rowraftv1.MoveStatus) Move {
	phase := Word(p.GetPhase().String(), "MOVE_PHASE_")
	v := Move{
		ID: p.GetId(), Shard: p.GetShard(), fromID: p.GetFrom().GetNode(), From: nameInHistory(r, p.GetFrom().GetNode()),
		To:         nameInHistory(r, p.GetTo().GetNode()),
		OldReplica: p.GetFrom().GetId(), NewReplica: p.GetTo().GetId(), Phase: phase, Running: phase != "done" &&
			phase != "cancelled",
		WaitingFor: st.GetWaitingFor(), LagEntries: st.GetLagEntries(), Reason: "asked",
		Started: Time(p.GetBegunNs()), Ended: Time(p.GetEndedNs()), started: p.GetBegunNs(), ended: p.GetEndedNs(),
	}
	if p.GetReason() != 0 {
		v.Reason = Word(p.GetReason().String(), "MOVE_REASON_")
	}
	if p.GetFrom() == nil {
		v.From = ""
	}
	if p.GetTo() == nil {
		v.To = ""
	}
	return v
}

// nameInHistory returns the name of a server that may have left the cluster: the operation that emptied it has its
// name.
func nameInHistory(r *rowraftv1.StatusReply, node string) string {
	if slices.ContainsFunc(r.GetMap().GetNodes(), func(n *rowraftv1.Node) bool { return n.GetId() == node }) {
		return NodeName(r.GetMap(), node)
	}
	name := ""
	for _, o := range r.GetOperations() {
		if o.GetNode() == node {
			name = o.GetName() // the newest is last
		}
	}
	return NameOr(name, node)
}

// Moves lists the moves of a status: those that ended, if ended is set, then those that run.
func Moves(r *rowraftv1.StatusReply, ended bool) []Move {
	out := []Move{}
	if ended {
		for _, m := range r.GetFinishedMoves() {
			out = append(out, NewMove(r, m, nil))
		}
	}
	for _, m := range r.GetMoves() {
		out = append(out, NewMove(r, m.GetMove(), m))
	}
	return out
}

// Line describes one move in a sentence.
func (v *Move) Line() string {
	way := v.From + " to " + v.To
	switch {
	case v.From == "":
		way = "new on " + v.To
	case v.To == "":
		way = "off " + v.From
	}
	s := fmt.Sprintf("Shard %d, %s: %s", v.Shard, way, phaseText[v.Phase])
	if v.WaitingFor != "" {
		s += " (" + v.WaitingFor + ")"
	}
	return s + "."
}

// Print writes one line.
func (v *Move) Print(w io.Writer, _ bool) error {
	_, err := fmt.Fprintln(w, v.Line())
	return err
}

// Print writes a table.
func (v *MoveList) Print(w io.Writer, wide bool) error {
	if len(v.Moves) == 0 {
		_, err := fmt.Fprintln(w, "No replica moves, or has moved.")
		return err
	}
	header := []string{"MOVE", "SHARD", "FROM", "TO", "PHASE", "REASON", "LAG", "WAITS FOR"}
	if wide {
		header = append(header, "OLD REPLICA", "NEW REPLICA")
	}
	t := cli.NewTable(w, wide, header, "MOVE", "SHARD", "LAG")
	for _, m := range v.Moves {
		row := table.Row{m.ID, m.Shard, Dash(m.From), Dash(m.To), m.Phase, m.Reason, cli.Count(m.LagEntries),
			Dash(m.WaitingFor)}
		if wide {
			row = append(row, m.OldReplica, m.NewReplica)
		}
		t.AppendRow(row)
	}
	t.Render()
	return nil
}
