package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// NewOperationCmd returns the command `rowraft operation`.
func NewOperationCmd(g *remote.Flags) *cobra.Command {
	cmd := &cobra.Command{Use: "operation", Short: "Long work on servers and replicas: list it, follow it, cancel it"}
	cmd.AddCommand(newOperationListCmd(g), newOperationWatchCmd(g), newOperationCancelCmd(g))
	return cmd
}

func newOperationListCmd(g *remote.Flags) *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the operations that run",
		Example: `  rowraft operation list --all
  rowraft operation list -o json | jq '.operations[].id'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := g.Status(cmd.Context())
			if err != nil {
				return fmt.Errorf("operation list: %w", err)
			}
			v := view.NewOperationList(reply, all)
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.Print)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "the last ones that have ended, too")
	return cmd
}

func operationArg(s string) (uint64, error) {
	id, err := strconv.ParseUint(s, 10, 64)
	if err != nil || id == 0 {
		return 0, cli.Usagef("operation %q: want a number from `rowraft operation list`", s)
	}
	return id, nil
}

func newOperationWatchCmd(g *remote.Flags) *cobra.Command {
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
			if err := watchOperation(g, cmd, id); err != nil {
				return fmt.Errorf("operation watch: %w", err)
			}
			return nil
		},
	}
}

// findOperation returns operation id from the cluster's status.
func findOperation(g *remote.Flags, cmd *cobra.Command, id uint64) (*view.Operation, error) {
	reply, err := g.Status(cmd.Context())
	if err != nil {
		return nil, err
	}
	for _, o := range view.NewOperationList(reply, true).Operations {
		if o.ID == strconv.FormatUint(id, 10) {
			o.Schema = cli.JSONSchema
			return &o, nil
		}
	}
	return nil, cli.Hint(rowraft.Errorf(rowraft.CodeNotFound, "there is no operation %d", id),
		"`rowraft operation list --all` shows those that are remembered")
}

// watchOperation prints an operation at each change until it ends.
func watchOperation(g *remote.Flags, cmd *cobra.Command, id uint64) error {
	said := ""
	for {
		o, err := findOperation(g, cmd, id)
		switch {
		case cmd.Context().Err() != nil:
			return leftOperation(id, cmd.Context().Err())
		case err != nil && route.On(route.Control, err) == route.Return:
			return err
		case o != nil:
			if err := sayOperation(g, cmd.OutOrStdout(), o, &said); err != nil {
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
		case <-time.After(remote.PollInterval):
		}
	}
}

// leftOperation prints that the watch has ended and the operation continues.
func leftOperation(id uint64, err error) error {
	return fmt.Errorf(
		"operation %d continues; `rowraft operation watch %d` follows it, `rowraft operation cancel %d` cancels it: %w", id,
		id, id, err)
}

// sayOperation prints o, unless the text equals the last one.
func sayOperation(g *remote.Flags, w io.Writer, o *view.Operation, said *string) error {
	line := fmt.Sprintf("operation %s: %s %s: %s, %s", o.ID, o.Kind, o.Server, o.State, o.Detail)
	if o.WaitingFor != "" && o.Kind != "move" { // a move's detail says so
		line += "; waits for " + o.WaitingFor
	}
	if line == *said {
		return nil
	}
	*said = line
	switch g.Output {
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

func newOperationCancelCmd(g *remote.Flags) *cobra.Command {
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
			v, err := cancelOperation(g, cmd, id)
			if err != nil {
				return fmt.Errorf("operation cancel: %w", err)
			}
			said := ""
			return sayOperation(g, cmd.OutOrStdout(), v, &said)
		},
	}
}

func cancelOperation(g *remote.Flags, cmd *cobra.Command, id uint64) (*view.Operation, error) {
	o, err := findOperation(g, cmd, id)
	switch {
	case err != nil:
		return nil, err
	case o.State != "running":
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "operation %d has ended: it is %s", id, o.State)
	case o.Kind == "replace":
		return nil, errors.New("the replacement of a dead server ends when the server is back")
	}
	if o.Kind == "move" {
		_, err = remote.Call(cmd.Context(), g, route.Control, rowraftv1.NewClusterClient, rowraftv1.ClusterClient.CancelMove,
			&rowraftv1.CancelMoveRequest{Shard: *o.Shard, MoveId: id})
	} else {
		_, err = callChange(g, cmd, &rowraftv1.ChangeNodeRequest{Node: o.ServerID, ExpectAny: true, Operation: id})
	}
	if err != nil {
		return nil, err
	}
	return findOperation(g, cmd, id)
}
