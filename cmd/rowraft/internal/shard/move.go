package shard

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newMoveCmd(g *remote.Flags) *cobra.Command {
	from, to, detach := "", "", false
	cmd := &cobra.Command{
		Use:   "move SHARD --from SERVER [--to SERVER]",
		Short: "Move a replica of a shard to another server",
		Long: `Move a replica of a shard to another server, while pushes and pulls continue.

Without --to the scheduler chooses the server, as it does for moves of its own: in a zone with the fewest
other replicas of the shard, then the one with the fewest replicas.

The new replica joins without a vote and catches up, then it votes, then the old one hands over the
lead if it has it, leaves, and is deleted. The scheduler drives the move: it continues when this command
ends, and when the scheduler itself fails over. Until the old replica begins to leave it can be undone with
` + "`rowraft shard cancel-move`" + `.`,
		Example: `  rowraft shard move 2 --from n1 --to n4
  rowraft shard move 2 --from n1 --detach; rowraft shard moves`,
		Args: cli.OneArg("the SHARD, a number from `rowraft shard list`"),
		RunE: func(cmd *cobra.Command, args []string) error {
			shard, err := shardArg(args[0])
			if err != nil {
				return err
			}
			if from == "" {
				return cli.Usagef("%s: give --from, the server that the replica leaves", cmd.CommandPath())
			}
			v, err := moveReplica(g, cmd, shard, from, to, detach)
			if err != nil {
				return fmt.Errorf("shard move: %w", err)
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.Print)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "name or id of the server whose replica moves")
	cmd.Flags().StringVar(&to, "to", "",
		"name or id of the server it moves to, which has none of the shard; by default the scheduler chooses")
	cmd.Flags().BoolVar(&detach, "detach", false, "return at once; 'rowraft shard moves' shows how far it is")
	return cmd
}

func newMovesCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:   "moves",
		Short: "List the replicas that move, and the last that did",
		Example: `  rowraft shard moves
  rowraft shard moves -o json | jq '.moves[] | select(.running)'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := g.Status(cmd.Context())
			if err != nil {
				return fmt.Errorf("shard moves: %w", err)
			}
			v := &view.MoveList{Schema: cli.JSONSchema, Moves: view.Moves(reply, true)}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.Print)
		},
	}
}

func newCancelMoveCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel-move SHARD",
		Short: "Undo the move of a shard's replica, until the old one begins to leave",
		Long: `Undo the move of a shard's replica, until the old one begins to leave: the new one leaves again and is deleted.
After that the move cannot be undone: wait for its end, then move the replica back.`,
		Example: "  rowraft shard cancel-move 2",
		Args:    cli.OneArg("the SHARD, a number from `rowraft shard moves`"),
		RunE: func(cmd *cobra.Command, args []string) error {
			shard, err := shardArg(args[0])
			if err != nil {
				return err
			}
			v, err := cancelMove(g, cmd, shard)
			if err != nil {
				return fmt.Errorf("shard cancel-move: %w", err)
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.Print)
		},
	}
}

func moveReplica(g *remote.Flags, cmd *cobra.Command, shard uint32, from, to string, detach bool) (*view.Move, error) {
	reply, err := remote.Call(cmd.Context(), g, route.Once, rowraftv1.NewClusterClient,
		rowraftv1.ClusterClient.MoveReplica, &rowraftv1.MoveReplicaRequest{Shard: shard, FromNode: from, ToNode: to})
	started := reply.GetMove()
	if rowraft.CodeOf(err) == rowraft.CodeAlreadyExists {
		return nil, cli.Hint(err, "`rowraft shard moves` shows what moves, `rowraft shard list` shows the replicas")
	}
	if err != nil {
		return nil, err
	}
	said := ""
	for {
		v, err := findMove(g, cmd, started.GetId())
		if err != nil && (cmd.Context().Err() != nil || route.On(route.Control, err) == route.Return) {
			return nil, detached(cmd, started, err)
		}
		if v != nil {
			if line := v.Line(); line != said && v.Running && !detach && g.Output != cli.FormatJSON &&
				g.Output != cli.FormatYAML {
				said = line
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			if v.Phase == "cancelled" {
				return nil, rowraft.Errorf(rowraft.CodePrecondition, "move %d of shard %d was cancelled", v.ID, v.Shard)
			}
			if !v.Running || detach {
				return v, nil
			}
		}
		select {
		case <-cmd.Context().Done():
			return nil, detached(cmd, started, cmd.Context().Err())
		case <-time.After(remote.PollInterval):
		}
	}
}

// detached returns the error of a command that stops waiting for a move, which continues.
func detached(cmd *cobra.Command, m *rowraftv1.Move, err error) error {
	hint := fmt.Sprintf(
		"the move continues; `rowraft shard moves` shows it, `rowraft shard cancel-move %d` undoes it while it can",
		m.GetShard())
	if cmd.Context().Err() != nil {
		return cli.Hint(fmt.Errorf("detached from move %d: %w", m.GetId(), err), hint)
	}
	return cli.Hint(fmt.Errorf("move %d has started, but cannot be followed: %w", m.GetId(), err), hint)
}

// findMove returns the state of a move.
func findMove(g *remote.Flags, cmd *cobra.Command, id uint64) (*view.Move, error) {
	reply, err := g.Status(cmd.Context())
	if err != nil {
		return nil, err
	}
	for _, m := range view.Moves(reply, true) {
		if m.ID == id {
			m.Schema = cli.JSONSchema
			return &m, nil
		}
	}
	return nil,
		rowraft.Errorf(rowraft.CodeNotFound,
			"move %d is not in the list: it ended, and so many moves ended after it that the scheduler forgot it", id)
}

func cancelMove(g *remote.Flags, cmd *cobra.Command, shard uint32) (*view.Move, error) {
	reply, err := remote.Call(cmd.Context(), g, route.Control, rowraftv1.NewClusterClient,
		rowraftv1.ClusterClient.CancelMove, &rowraftv1.CancelMoveRequest{Shard: shard})
	if err != nil {
		return nil, err
	}
	return findMove(g, cmd, reply.GetMove().GetId())
}
