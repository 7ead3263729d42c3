package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newOperationCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "operation", Short: "Long work on servers and replicas: list it, follow it, cancel it"}
	cmd.AddCommand(newOperationListCmd(g), newOperationWatchCmd(g), newOperationCancelCmd(g))
	return cmd
}

// operationJSON is an operation, or the move of a replica, in JSON.
type operationJSON struct {
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

type operationsJSON struct {
	Schema     string          `json:"schema"`
	Operations []operationJSON `json:"operations"`
}

func newOperationJSON(o *rowraftv1.Operation) operationJSON {
	v := operationJSON{
		ID: strconv.FormatUint(o.GetId(), 10), Kind: word(o.GetKind().String(), "OPERATION_KIND_"), Node: nameOr(o.GetName(), o.GetNode()), NodeID: o.GetNode(),
		State: word(o.GetState().String(), "OPERATION_STATE_"), Total: o.GetTotal(), Left: o.GetLeft(), WaitingFor: o.GetWaitingFor(),
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
func moveOperation(m moveJSON) operationJSON {
	v := operationJSON{ID: strconv.FormatUint(m.ID, 10), Kind: "move", Node: m.From, State: m.Phase, Detail: m.line(), Total: 1, WaitingFor: m.WaitingFor, Shard: &m.Shard, Reason: m.Reason}
	if m.Running {
		v.State, v.Left = "running", 1
	}
	return v
}

// newOperationsJSON returns the operations of a status: the ended ones, if requested, then the running ones.
func newOperationsJSON(r *rowraftv1.StatusReply, ended bool) *operationsJSON {
	v := &operationsJSON{Schema: cli.JSONSchema, Operations: []operationJSON{}}
	for _, running := range []bool{false, true} {
		if !running && !ended {
			continue
		}
		for _, o := range r.GetOperations() {
			if (o.GetState() == rowraftv1.OperationState_OPERATION_STATE_RUNNING) == running {
				v.Operations = append(v.Operations, newOperationJSON(o))
			}
		}
		for _, m := range movesJSON(r, true) {
			if m.Running == running {
				v.Operations = append(v.Operations, moveOperation(m))
			}
		}
	}
	return v
}

func newOperationListCmd(g *globals) *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the operations that run",
		Example: `  rowraft operation list --all
  rowraft operation list -o json | jq '.operations[].id'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := g.statusInTime(cmd)
			if err != nil {
				return fmt.Errorf("operation list: %w", err)
			}
			v := newOperationsJSON(reply, all)
			return cli.Show(cmd.OutOrStdout(), g.output, v, v.print)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "the last ones that have ended, too")
	return cmd
}

func (v *operationsJSON) print(w io.Writer, _ bool) error {
	if len(v.Operations) == 0 {
		_, err := fmt.Fprintln(w, "No operation runs.")
		return err
	}
	t := cli.NewTable(w, []string{"OPERATION", "KIND", "NODE", "STATE", "LEFT", "DETAIL", "WAITS FOR"}, "OPERATION", "LEFT")
	for _, o := range v.Operations {
		if o.Kind == "move" { // its detail says so
			o.WaitingFor = ""
		}
		t.AppendRow(table.Row{o.ID, o.Kind, dash(o.Node), o.State, fmt.Sprintf("%d/%d", o.Left, o.Total), o.Detail, dash(o.WaitingFor)})
	}
	t.Render()
	return nil
}

func operationArg(s string) (uint64, error) {
	id, err := strconv.ParseUint(s, 10, 64)
	if err != nil || id == 0 {
		return 0, cli.Usagef("operation %q: want a number from `rowraft operation list`", s)
	}
	return id, nil
}

func newOperationWatchCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "watch ID",
		Short: "Follow an operation until it ends",
		Long: `Follow an operation until it ends. Ctrl-C ends the watching, not the operation. The exit code is 0 if it is done, 1 if it
was cancelled.`,
		Example: "  rowraft operation watch 17",
		Args:    cli.OneArg("the ID, a number from `rowraft operation list`"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := operationArg(args[0])
			if err != nil {
				return err
			}
			if err := g.watchOperation(cmd, id); err != nil {
				return fmt.Errorf("operation watch: %w", err)
			}
			return nil
		},
	}
}

// findOperation returns operation id from the cluster's status.
func (g *globals) findOperation(cmd *cobra.Command, id uint64) (*operationJSON, error) {
	reply, err := g.statusInTime(cmd)
	if err != nil {
		return nil, err
	}
	for _, o := range newOperationsJSON(reply, true).Operations {
		if o.ID == strconv.FormatUint(id, 10) {
			o.Schema = cli.JSONSchema
			return &o, nil
		}
	}
	return nil, cli.Hint(rowraft.Errorf(rowraft.CodeNotFound, "there is no operation %d", id), "`rowraft operation list --all` shows those that are remembered")
}

// watchOperation prints an operation at each change until it ends.
func (g *globals) watchOperation(cmd *cobra.Command, id uint64) error {
	said := ""
	for {
		o, err := g.findOperation(cmd, id)
		switch {
		case cmd.Context().Err() != nil:
			return leftOperation(id, cmd.Context().Err())
		case err != nil && route.On(route.Control, err) == route.Return:
			return err
		case o != nil:
			if err := g.sayOperation(cmd.OutOrStdout(), o, &said); err != nil {
				return err
			}
			if o.State == "cancelled" {
				return rowraft.Errorf(rowraft.CodePrecondition, "operation %d was cancelled", id)
			}
			if o.State != "running" {
				return nil
			}
		}
		select {
		case <-cmd.Context().Done():
			return leftOperation(id, cmd.Context().Err())
		case <-time.After(movePoll):
		}
	}
}

// leftOperation prints that the watch has ended and the operation continues.
func leftOperation(id uint64, err error) error {
	return fmt.Errorf("operation %d continues; `rowraft operation watch %d` follows it, `rowraft operation cancel %d` cancels it: %w", id, id, id, err)
}

// sayOperation prints o, unless the text equals the last one.
func (g *globals) sayOperation(w io.Writer, o *operationJSON, said *string) error {
	line := fmt.Sprintf("operation %s: %s %s: %s, %s", o.ID, o.Kind, o.Node, o.State, o.Detail)
	if o.WaitingFor != "" && o.Kind != "move" { // a move's detail says so
		line += "; waits for " + o.WaitingFor
	}
	if line == *said {
		return nil
	}
	*said = line
	switch g.output {
	case cli.FormatJSON:
		return json.NewEncoder(w).Encode(o)
	case cli.FormatYAML:
		if _, err := fmt.Fprintln(w, "---"); err != nil {
			return err
		}
		return cli.WriteYAML(w, o)
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

func newOperationCancelCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel ID",
		Short: "Cancel an operation",
		Long: `Cancel an operation. A server that was to be drained or decommissioned serves again; what has moved away comes back as
the servers are evened out. The move of a replica is undone until the old one begins to leave. The replacement of a dead server cannot be
cancelled: it ends when the server is back.`,
		Example: "  rowraft operation cancel 17",
		Args:    cli.OneArg("the ID, a number from `rowraft operation list`"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := operationArg(args[0])
			if err != nil {
				return err
			}
			v, err := g.cancelOperation(cmd, id)
			if err != nil {
				return fmt.Errorf("operation cancel: %w", err)
			}
			said := ""
			return g.sayOperation(cmd.OutOrStdout(), v, &said)
		},
	}
}

func (g *globals) cancelOperation(cmd *cobra.Command, id uint64) (*operationJSON, error) {
	o, err := g.findOperation(cmd, id)
	switch {
	case err != nil:
		return nil, err
	case o.State != "running":
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "operation %d has ended: it is %s", id, o.State)
	case o.Kind == "replace":
		return nil, errors.New("the replacement of a dead server ends when the server is back")
	}
	if o.Kind == "move" {
		err = g.onScheduler(cmd, route.Control, func(ctx context.Context, client rowraftv1.ClusterClient) error {
			_, err := client.CancelMove(ctx, &rowraftv1.CancelMoveRequest{Shard: *o.Shard, MoveId: id})
			return err
		})
	} else {
		_, err = g.callChange(cmd, &rowraftv1.ChangeNodeRequest{Node: o.NodeID, ExpectAny: true, Operation: id})
	}
	if err != nil {
		return nil, err
	}
	return g.findOperation(cmd, id)
}
