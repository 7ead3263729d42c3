package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// movePoll is how often the command that waits for a move asks for its state.
const movePoll = 200 * time.Millisecond

func newMoveCmd(g *globals) *cobra.Command {
	from, to, detach := "", "", false
	cmd := &cobra.Command{
		Use:   "move SHARD --from SERVER --to SERVER",
		Short: "Move a replica of a shard to another server",
		Long: `Move a replica of a shard to another server, while pushes and pulls go on.

The new replica joins without a vote and catches up, then it votes, then the old one hands over the
lead if it has it, leaves, and is deleted. The scheduler drives the move: it continues when this command
ends, and when the scheduler itself fails over. Until the old replica begins to leave it can be undone with
` + "`rowraft shard cancel-move`" + `.`,
		Example: `  rowraft shard move 2 --from n1 --to n4
  rowraft shard move 2 --from n1 --to n4 --detach; rowraft shard moves`,
		Args: cli.OneArg("the SHARD, a number from `rowraft shard list`"),
		RunE: func(cmd *cobra.Command, args []string) error {
			shard, err := shardArg(args[0])
			if err != nil {
				return err
			}
			if from == "" || to == "" {
				return cli.Usagef("%s: give --from and --to, the servers that the replica leaves and goes to", cmd.CommandPath())
			}
			v, err := g.move(cmd, shard, from, to, detach)
			if err != nil {
				return fmt.Errorf("shard move: %w", err)
			}
			return cli.Show(cmd.OutOrStdout(), g.output, v, v.print)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "name or id of the server whose replica moves")
	cmd.Flags().StringVar(&to, "to", "", "name or id of the server it moves to, which has none of the shard")
	cmd.Flags().BoolVar(&detach, "detach", false, "return at once; `rowraft shard moves` shows how far it is")
	return cmd
}

func newMovesCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "moves",
		Short: "List the replicas that move, and the last that did",
		Example: `  rowraft shard moves
  rowraft shard moves -o json | jq '.moves[] | select(.running)'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := g.statusInTime(cmd)
			if err != nil {
				return fmt.Errorf("shard moves: %w", err)
			}
			v := &movesListJSON{Schema: cli.JSONSchema, Moves: movesJSON(reply, true)}
			return cli.Show(cmd.OutOrStdout(), g.output, v, v.print)
		},
	}
}

func newCancelMoveCmd(g *globals) *cobra.Command {
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
			v, err := g.cancelMove(cmd, shard)
			if err != nil {
				return fmt.Errorf("shard cancel-move: %w", err)
			}
			return cli.Show(cmd.OutOrStdout(), g.output, v, v.print)
		},
	}
}

// moveJSON is the contract of `shard move -o json`, and of each line of `shard
// moves -o json`.
type moveJSON struct {
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
	Reason     string `json:"reason"` // asked, dead, decommission, missing, zone, balance, fenced
}

type movesListJSON struct {
	Schema string     `json:"schema"`
	Moves  []moveJSON `json:"moves"`
}

// phaseText describes the phases of a move, in scheduler/moves.go, for people.
var phaseText = map[string]string{
	"learn":     "the new replica joins and catches up",
	"promote":   "the new replica becomes a voter",
	"remove":    "the old replica leaves",
	"cancel":    "the new replica leaves again",
	"done":      "done",
	"cancelled": "cancelled",
}

func newMoveJSON(m *rowraftv1.Map, p *rowraftv1.Move, st *rowraftv1.MoveStatus) moveJSON {
	phase := word(p.GetPhase().String(), "MOVE_PHASE_")
	v := moveJSON{
		ID: p.GetId(), Shard: p.GetShard(), From: nameIn(m, p.GetFrom().GetNode()), To: nameIn(m, p.GetTo().GetNode()),
		OldReplica: p.GetFrom().GetId(), NewReplica: p.GetTo().GetId(), Phase: phase, Running: phase != "done" && phase != "cancelled",
		WaitingFor: st.GetWaitingFor(), LagEntries: st.GetLagEntries(), Reason: "asked",
	}
	if p.GetReason() != 0 {
		v.Reason = word(p.GetReason().String(), "MOVE_REASON_")
	}
	if p.GetFrom() == nil {
		v.From = ""
	}
	if p.GetTo() == nil {
		v.To = ""
	}
	return v
}

// movesJSON lists the moves of a status: those that ended, if ended is set, then those that run.
func movesJSON(r *rowraftv1.StatusReply, ended bool) []moveJSON {
	out := []moveJSON{}
	if ended {
		for _, m := range r.GetFinishedMoves() {
			out = append(out, newMoveJSON(r.GetMap(), m, nil))
		}
	}
	for _, m := range r.GetMoves() {
		out = append(out, newMoveJSON(r.GetMap(), m.GetMove(), m))
	}
	return out
}

// line describes one move in a sentence.
func (v *moveJSON) line() string {
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

func (v *moveJSON) print(w io.Writer, _ bool) error {
	_, err := fmt.Fprintln(w, v.line())
	return err
}

func (v *movesListJSON) print(w io.Writer, wide bool) error {
	if len(v.Moves) == 0 {
		_, err := fmt.Fprintln(w, "No replica moves, or has moved.")
		return err
	}
	header := []string{"MOVE", "SHARD", "FROM", "TO", "PHASE", "REASON", "LAG", "WAITS FOR"}
	if wide {
		header = append(header, "OLD REPLICA", "NEW REPLICA")
	}
	t := cli.NewTable(w, header, "MOVE", "SHARD", "LAG")
	for _, m := range v.Moves {
		row := table.Row{m.ID, m.Shard, dash(m.From), dash(m.To), m.Phase, m.Reason, cli.Count(m.LagEntries), dash(m.WaitingFor)}
		if wide {
			row = append(row, m.OldReplica, m.NewReplica)
		}
		t.AppendRow(row)
	}
	t.Render()
	return nil
}

// onScheduler calls the leader of the metadata group, with retries until --timeout.
func (g *globals) onScheduler(cmd *cobra.Command, layer route.Layer, fn func(context.Context, rowraftv1.ClusterClient) error) error {
	ctx, cancel := g.withTimeout(cmd)
	defer cancel()
	return g.callLeader(ctx, layer, func(ctx context.Context, conn *grpc.ClientConn) error {
		return fn(ctx, rowraftv1.NewClusterClient(conn))
	})
}

func (g *globals) move(cmd *cobra.Command, shard uint32, from, to string, detach bool) (*moveJSON, error) {
	var started *rowraftv1.Move
	err := g.onScheduler(cmd, route.Once, func(ctx context.Context, client rowraftv1.ClusterClient) error {
		reply, err := client.MoveReplica(ctx, &rowraftv1.MoveReplicaRequest{Shard: shard, FromNode: from, ToNode: to})
		started = reply.GetMove()
		return err
	})
	if rowraft.CodeOf(err) == rowraft.CodeAlreadyExists {
		return nil, cli.Hint(err, "`rowraft shard moves` shows what moves, `rowraft shard list` shows the replicas")
	}
	if err != nil {
		return nil, err
	}
	said := ""
	for {
		v, err := g.findMove(cmd, started.GetId())
		if err != nil && (cmd.Context().Err() != nil || route.On(route.Control, err) == route.Return) {
			return nil, detached(cmd, started, err)
		}
		if v != nil {
			if line := v.line(); line != said && v.Running && !detach && g.output != cli.FormatJSON && g.output != cli.FormatYAML {
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
		case <-time.After(movePoll):
		}
	}
}

// detached returns the error of a command that stops waiting for a move, which continues.
func detached(cmd *cobra.Command, m *rowraftv1.Move, err error) error {
	hint := fmt.Sprintf("the move continues; `rowraft shard moves` shows it, `rowraft shard cancel-move %d` undoes it while it can", m.GetShard())
	if cmd.Context().Err() != nil {
		return cli.Hint(fmt.Errorf("detached from move %d: %w", m.GetId(), err), hint)
	}
	return cli.Hint(fmt.Errorf("move %d has started, but cannot be followed: %w", m.GetId(), err), hint)
}

// findMove returns the state of a move.
func (g *globals) findMove(cmd *cobra.Command, id uint64) (*moveJSON, error) {
	reply, err := g.statusInTime(cmd)
	if err != nil {
		return nil, err
	}
	for _, m := range movesJSON(reply, true) {
		if m.ID == id {
			m.Schema = cli.JSONSchema
			return &m, nil
		}
	}
	return nil, rowraft.Errorf(rowraft.CodeNotFound, "move %d is not in the list: it ended, and so many moves ended after it that the scheduler forgot it", id)
}

func (g *globals) cancelMove(cmd *cobra.Command, shard uint32) (*moveJSON, error) {
	var m *rowraftv1.Move
	err := g.onScheduler(cmd, route.Control, func(ctx context.Context, client rowraftv1.ClusterClient) error {
		reply, err := client.CancelMove(ctx, &rowraftv1.CancelMoveRequest{Shard: shard})
		m = reply.GetMove()
		return err
	})
	if err != nil {
		return nil, err
	}
	return g.findMove(cmd, m.GetId())
}
