package node

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
)

// NewCmds returns the commands below `rowraft server` that show and change the servers of a running cluster.
func NewCmds(g *remote.Flags) []*cobra.Command {
	cmds := []*cobra.Command{newNodeListCmd(g), newNodeStatusCmd(g)}
	for _, c := range nodeChanges {
		cmds = append(cmds, newNodeChangeCmd(g, c))
	}
	return cmds
}

func newNodeListCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the servers: whether they are up and what is done with them; wide: since when, and what they hold",
		Example: `  rowraft server list -o wide
  rowraft server list -o json | jq -r '.servers[] | select(.state != "up") | .name'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := g.Status(cmd.Context())
			if err != nil {
				return fmt.Errorf("server list: %w", err)
			}
			v := view.NewNodeList(reply)
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.Print)
		},
	}
}

func newNodeStatusCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:     "status SERVER",
		Short:   "Show one server with its replicas and what is done with it",
		Example: "  rowraft server status n2 -o yaml",
		Args:    cli.OneArg("the SERVER, a name or id from `rowraft server list`"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := g.WithTimeout(cmd)
			defer cancel()
			v, err := nodeStatus(ctx, g, args[0])
			if err != nil {
				return fmt.Errorf("server status: %w", err)
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.print)
		},
	}
}

// nodeStatusJSON is the contract of `server status -o json`.
type nodeStatusJSON struct {
	view.Node
	Held  []heldJSON  `json:"held"`
	Moves []view.Move `json:"moves"` // running moves to or from the server
}

type heldJSON struct {
	Shard uint32 `json:"shard"`
	view.Replica
}

func nodeStatus(ctx context.Context, g *remote.Flags, name string) (*nodeStatusJSON, error) {
	reply, err := g.Status(ctx)
	if err != nil {
		return nil, err
	}
	n, err := view.FindNode(reply, name)
	if err != nil {
		return nil, err
	}
	v := &nodeStatusJSON{Node: *n, Held: []heldJSON{}, Moves: []view.Move{}}
	v.Schema = cli.JSONSchema
	for _, sh := range reply.GetMap().GetShards() {
		for _, rep := range slices.Concat(sh.GetReplicas(), sh.GetLearners()) {
			if rep.GetNode() == n.ID {
				v.Held = append(v.Held, heldJSON{sh.GetId(), view.NewReplica(reply, rep, 0)})
			}
		}
	}
	for _, m := range reply.GetMoves() {
		if m.GetMove().GetFrom().GetNode() == n.ID || m.GetMove().GetTo().GetNode() == n.ID {
			v.Moves = append(v.Moves, view.NewMove(reply, m.GetMove(), m))
		}
	}
	return v, nil
}

func (v *nodeStatusJSON) print(w io.Writer, wide bool) error {
	n := &v.Node
	doing := view.Dash(n.Doing)
	if n.Operation != 0 {
		doing += fmt.Sprintf(" (operation %d)", n.Operation)
	}
	if n.WaitingFor != "" {
		doing += ", waits for " + n.WaitingFor
	}
	if err := cli.Facts(w,
		"SERVER", view.NameOr(n.Name, n.ID),
		"ID", n.ID,
		"ADDRESS", n.Addr+", peers "+n.PeerAddr,
		"LABELS", view.Dash(n.Labels),
		"STATE", fmt.Sprintf("%s for %s, last heartbeat %s", n.State, view.Seconds(n.StateSeconds),
			cli.Ago(time.Duration(n.HeartbeatSeconds*float64(time.Second)))),
		"DOES", doing,
		"SCHEDULER", n.SchedulerRole(),
		"TIMERS", view.Dash(n.Profile),
		"VERSION", fmt.Sprintf("%s, up for %s", view.Dash(n.Version), view.Seconds(n.UptimeSeconds)),
		"HOLDS", fmt.Sprintf("%s, leads %d; %s, %s of memory, %s of log", cli.Plural(n.Replicas, "replica"), n.Leads,
			cli.Rows(n.Rows), cli.Size(n.MemoryBytes), cli.Size(n.LogBytes)),
	); err != nil {
		return err
	}
	if len(v.Held) > 0 {
		fmt.Fprintln(w)
		t := cli.NewTable(w, wide, []string{"SHARD", "ROLE", "TERM", "APPLIED", "ROWS", "MEMORY", "REPLICA", "ERROR"},
			"SHARD",
			"TERM", "APPLIED", "ROWS", "MEMORY").OnlyWide("MEMORY", "REPLICA")
		for _, h := range v.Held {
			t.AppendRow(table.Row{h.Shard, view.Dash(h.Role), h.Term, cli.Count(h.Applied), cli.Count(h.Rows),
				cli.Size(h.MemoryBytes), view.NameOr("", h.ID), view.Dash(h.Error)})
		}
		t.Render()
	}
	if len(v.Moves) > 0 {
		fmt.Fprintln(w, "\nMOVES")
		for _, m := range v.Moves {
			fmt.Fprintln(w, "  "+m.Line())
		}
	}
	return nil
}
