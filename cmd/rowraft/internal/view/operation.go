package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/rowraft/rowraft/internal/cli"
)

// Operation is an operation, or the move of a replica, in JSON.
type Operation struct {
	Schema     string  `json:"schema,omitempty"`
	ID         string  `json:"id"`
	Kind       string  `json:"kind"`   // drain, decommission, replace, move
	Server     string  `json:"server"` // for a move: the server that the replica leaves
	ServerID   string  `json:"server_id"`
	State      string  `json:"state"`  // running, done, cancelled
	Detail     string  `json:"detail"` // for people
	Total      uint64  `json:"total"`  // shards to hand over for a drain, otherwise replicas
	Left       uint64  `json:"left"`
	WaitingFor string  `json:"waiting_for"`
	Shard      *uint32 `json:"shard,omitempty"` // of a move
	Reason     string  `json:"reason,omitempty"`
	Started    string  `json:"started"` // RFC 3339; "" if unknown
	Ended      string  `json:"ended"`   // and while it runs

	started, ended uint64 // Unix times in nanoseconds; 0: as above
}

// OperationList is the contract of `operation list -o json`.
type OperationList struct {
	Schema     string      `json:"schema"`
	Operations []Operation `json:"operations"`

	ended bool // also those that have ended
}

// NewOperation describes a drain, decommission or replacement.
func NewOperation(o *rowraftv1.Operation) Operation {
	v := Operation{
		ID: strconv.FormatUint(o.GetId(), 10), Kind: Word(o.GetKind().String(), "OPERATION_KIND_"),
		Server: NameOr(o.GetName(), o.GetNode()), ServerID: o.GetNode(),
		State: Word(o.GetState().String(), "OPERATION_STATE_"), Total: o.GetTotal(), Left: o.GetLeft(),
		WaitingFor: o.GetWaitingFor(), Started: Time(o.GetBegunNs()), Ended: Time(o.GetEndedNs()),
		started: o.GetBegunNs(), ended: o.GetEndedNs(),
	}
	what := "replica"
	if o.GetKind() == rowraftv1.OperationKind_OPERATION_KIND_DRAIN {
		what = "lead"
	}
	v.Detail = fmt.Sprintf("%d of %s gone", v.Total-min(v.Left, v.Total), cli.Plural(int(v.Total), what))
	if v.State != "running" {
		v.Detail = cli.Plural(int(v.Total), what)
	}
	return v
}

// moveOperation converts a move to an operation.
func moveOperation(m Move) Operation {
	v := Operation{ID: strconv.FormatUint(m.ID, 10), Kind: "move", Server: m.From, ServerID: m.fromID,
		State: m.Phase, Detail: m.Line(), Total: 1, WaitingFor: m.WaitingFor, Shard: &m.Shard, Reason: m.Reason,
		Started: m.Started, Ended: m.Ended, started: m.started, ended: m.ended}
	if m.Running {
		v.State, v.Left = "running", 1
	}
	v.Detail = strings.TrimSuffix(v.Detail, ": "+v.State+".") // an ended move repeats its state there
	return v
}

// NewOperationList returns the running operations of a status, and the ended ones, if requested, in the order in which
// they started.
func NewOperationList(r *rowraftv1.StatusReply, ended bool) *OperationList {
	v := &OperationList{Schema: cli.JSONSchema, Operations: []Operation{}, ended: ended}
	for _, o := range r.GetOperations() {
		v.Operations = append(v.Operations, NewOperation(o))
	}
	for _, m := range Moves(r, true) {
		v.Operations = append(v.Operations, moveOperation(m))
	}
	v.Operations = slices.DeleteFunc(v.Operations, func(o Operation) bool { return o.State != "running" && !ended })
	slices.SortFunc(v.Operations, func(a, b Operation) int { // ids are of one count; no leading zeros
		return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
	return v
}

// took returns how long o took, or has taken until now; "" if that is unknown.
func (o *Operation) took(now time.Time) string {
	end := o.ended
	if o.State == "running" {
		end = uint64(now.UnixNano())
	}
	if o.started == 0 || end == 0 {
		return ""
	}
	// The times come from the clocks of several machines.
	return time.Duration(max(0, int64(end-o.started))).Round(time.Second).String()
}

// Print writes a table.
func (v *OperationList) Print(w io.Writer, wide bool) error {
	if len(v.Operations) == 0 {
		none := "No operation runs."
		if v.ended {
			none = "No operation runs or has run."
		}
		_, err := fmt.Fprintln(w, none)
		return err
	}
	header := []string{"ID", "KIND", "SERVER", "STATE", "STARTED (UTC)", "TOOK"}
	if wide {
		header = append(header, "LEFT")
	}
	t := cli.NewTable(w, wide, append(header, "DETAIL"), "ID", "TOOK", "LEFT")
	now := time.Now()
	for _, o := range v.Operations {
		started := ""
		if o.started != 0 {
			started = time.Unix(0, int64(o.started)).UTC().Format("01-02 15:04:05")
		}
		row := table.Row{o.ID, o.Kind, Dash(o.Server), o.State, Dash(started), Dash(o.took(now))}
		if wide {
			row = append(row, fmt.Sprintf("%d/%d", o.Left, o.Total))
		}
		if o.WaitingFor != "" && o.Kind != "move" { // a move's detail says so
			o.Detail += "; waits for " + o.WaitingFor
		}
		t.AppendRow(append(row, o.Detail))
	}
	t.Render()
	return nil
}
