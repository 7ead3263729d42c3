package view

import (
	"fmt"
	"io"
	"strconv"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/rowraft/rowraft/internal/cli"
)

// Operation is an operation, or the move of a replica, in JSON.
type Operation struct {
	Schema     string  `json:"schema,omitempty"`
	ID         string  `json:"id"`
	Kind       string  `json:"kind"` // drain, decommission, replace, move
	Node       string  `json:"node"` // for a move: the node that the replica leaves
	NodeID     string  `json:"node_id"`
	State      string  `json:"state"`  // running, done, cancelled
	Detail     string  `json:"detail"` // for people
	Total      uint64  `json:"total"`  // shards to hand over for a drain, otherwise replicas
	Left       uint64  `json:"left"`
	WaitingFor string  `json:"waiting_for"`
	Shard      *uint32 `json:"shard,omitempty"` // of a move
	Reason     string  `json:"reason,omitempty"`
}

// OperationList is the contract of `operation list -o json`.
type OperationList struct {
	Schema     string      `json:"schema"`
	Operations []Operation `json:"operations"`
}

// NewOperation describes a drain, decommission or replacement.
func NewOperation(o *rowraftv1.Operation) Operation {
	v := Operation{
		ID: strconv.FormatUint(o.GetId(), 10), Kind: Word(o.GetKind().String(), "OPERATION_KIND_"),
		Node: NameOr(o.GetName(), o.GetNode()), NodeID: o.GetNode(),
		State: Word(o.GetState().String(), "OPERATION_STATE_"), Total: o.GetTotal(), Left: o.GetLeft(),
		WaitingFor: o.GetWaitingFor(),
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
	v := Operation{ID: strconv.FormatUint(m.ID, 10), Kind: "move", Node: m.From, State: m.Phase, Detail: m.Line(),
		Total: 1, WaitingFor: m.WaitingFor, Shard: &m.Shard, Reason: m.Reason}
	if m.Running {
		v.State, v.Left = "running", 1
	}
	return v
}

// NewOperationList returns the operations of a status: the ended ones, if requested, then the running ones.
func NewOperationList(r *rowraftv1.StatusReply, ended bool) *OperationList {
	v := &OperationList{Schema: cli.JSONSchema, Operations: []Operation{}}
	for _, running := range []bool{false, true} {
		if !running && !ended {
			continue
		}
		for _, o := range r.GetOperations() {
			if (o.GetState() == rowraftv1.OperationState_OPERATION_STATE_RUNNING) == running {
				v.Operations = append(v.Operations, NewOperation(o))
			}
		}
		for _, m := range Moves(r, true) {
			if m.Running == running {
				v.Operations = append(v.Operations, moveOperation(m))
			}
		}
	}
	return v
}

// Print writes a table.
func (v *OperationList) Print(w io.Writer, _ bool) error {
	if len(v.Operations) == 0 {
		_, err := fmt.Fprintln(w, "No operation runs.")
		return err
	}
	t := cli.NewTable(w, []string{"OPERATION", "KIND", "NODE", "STATE", "LEFT", "DETAIL", "WAITS FOR"}, "OPERATION",
		"LEFT")
	for _, o := range v.Operations {
		if o.Kind == "move" { // its detail says so
			o.WaitingFor = ""
		}
		t.AppendRow(table.Row{o.ID, o.Kind, Dash(o.Node), o.State, fmt.Sprintf("%d/%d", o.Left, o.Total), o.Detail,
			Dash(o.WaitingFor)})
	}
	t.Render()
	return nil
}
