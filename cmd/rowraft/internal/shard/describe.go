package shard

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/cluster"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newShardDescribeCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:   "describe SHARD",
		Short: "Show one shard: its replicas, how far each is, whether they are proved equal, its tables, its moves",
		Long: `Show one shard: its replicas, how far each is, whether they are proved equal, its tables, its moves.

APPLIED is the last entry that the rows of a replica have, LAG how far that is behind what is committed. With -o wide,
MATCH is the last entry that the leader knows to be in the replica's log, and PROVED the last index at which the replica
was seen to have the rows of the majority; ` + "`rowraft shard digest`" + ` compares them now.`,
		Example: `  rowraft shard describe 2
  rowraft shard describe 2 -o json | jq '.replicas[] | {server, role, lag_entries}'`,
		Args: cli.OneArg("the SHARD, a number from `rowraft shard list`"),
		RunE: func(cmd *cobra.Command, args []string) error {
			shard, err := shardArg(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := g.WithTimeout(cmd)
			defer cancel()
			reply, err := cluster.Status(ctx, g)
			if err != nil {
				return fmt.Errorf("shard describe: %w", err)
			}
			v, err := newShardDescription(reply, shard)
			if err != nil {
				return fmt.Errorf("shard describe: %w", err)
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.print)
		},
	}
}

// shardDescription is the contract of `shard describe -o json`.
type shardDescription struct {
	Schema     string `json:"schema"`
	MapVersion uint64 `json:"map_version"`
	view.ShardState
	Members  []shardMemberJSON `json:"members"` // members of the Raft group, from its leader; empty without one
	Tables   []shardTableJSON  `json:"tables"`  // from the leader
	Moves    []view.Move       `json:"moves"`   // running and last finished
	Findings []view.Finding    `json:"findings"`
}

type shardMemberJSON struct {
	ReplicaID  string `json:"replica_id"`
	Server     string `json:"server"`
	Voter      bool   `json:"voter"`
	MatchIndex uint64 `json:"match_index"`
	LagEntries uint64 `json:"lag_entries"` // of its log
	CaughtUp   bool   `json:"caught_up"`
}

type shardTableJSON struct {
	Table       string `json:"table"`
	Rows        uint64 `json:"rows"`
	MemoryBytes uint64 `json:"memory_bytes"`
}

func newShardDescription(r *rowraftv1.StatusReply, shard uint32) (*shardDescription, error) {
	all, err := view.NewShardList(r, "")
	if err != nil {
		return nil, err
	}
	v := &shardDescription{Schema: cli.JSONSchema, MapVersion: all.MapVersion, Members: []shardMemberJSON{},
		Tables: []shardTableJSON{}, Moves: []view.Move{}, Findings: []view.Finding{}}
	found := false
	for _, s := range all.Shards {
		if s.Shard == shard {
			v.ShardState, found = s, true
		}
	}
	if !found {
		return nil, cli.Hint(cli.Usagef("shard %d does not exist: the cluster has %s", shard,
			cli.Plural(len(all.Shards), "shard")), "`rowraft shard list` shows them")
	}
	for i := range v.Learners {
		if l := &v.Learners[i]; l.Reported {
			l.Lag = max(v.CommitIndex, l.Applied) - l.Applied
		}
	}
	if lead := reportOfLeader(r, shard); lead != nil {
		for _, m := range lead.GetMembers() {
			v.Members = append(v.Members, shardMemberJSON{m.GetReplicaId(), view.NodeName(r.GetMap(), m.GetNode()), m.GetVoter(),
				m.GetMatchIndex(), m.GetLagEntries(), m.GetCaughtUp()})
		}
		for _, t := range lead.GetTables() {
			v.Tables = append(v.Tables, shardTableJSON{tableName(r.GetMap(), t.GetTable()), t.GetRows(), t.GetMemoryBytes()})
		}
	}
	for _, m := range view.Moves(r, true) {
		if m.Shard == shard {
			v.Moves = append(v.Moves, m)
		}
	}
	subject := fmt.Sprintf("shard %d", shard)
	for _, f := range view.Findings(r) {
		if f.Subject == subject {
			v.Findings = append(v.Findings, f)
		}
	}
	return v, nil
}

// reportOfLeader returns the last report of a shard's leader, nil if there is none.
func reportOfLeader(r *rowraftv1.StatusReply, shard uint32) *rowraftv1.ReplicaStatus {
	leader := rpc.Leaders(r)[shard].Node
	for _, n := range r.GetNodes() {
		for _, rep := range n.GetReplicas() {
			if n.GetNode().GetId() == leader && rep.GetShard() == shard && rep.GetRole() == view.RoleLeader {
				return rep
			}
		}
	}
	return nil
}

// tableName returns the name of a table, or its id if the map does not have it.
func tableName(m *rowraftv1.Map, id uint64) string {
	for _, t := range m.GetTables() {
		if t.GetId() == id {
			return t.GetName()
		}
	}
	return fmt.Sprintf("%#x", id)
}

func (v *shardDescription) print(w io.Writer, wide bool) error {
	leader, committed, holds := "none", "unknown", "unknown: a leader reports it"
	if v.Leader != "" {
		leader, committed = fmt.Sprintf("%s, in term %d", v.Leader, v.Term), cli.Count(v.CommitIndex)
		holds = fmt.Sprintf("%s, %s of memory", cli.Rows(v.Rows), cli.Size(v.MemoryBytes))
	}
	if err := cli.Facts(w,
		"SHARD", fmt.Sprintf("%d, with %s", v.Shard, cli.Plural(v.Slots, "slot")),
		"STATE", v.State,
		"LEADER", leader,
		"COMMITTED", committed,
		"HOLDS", holds,
	); err != nil {
		return err
	}
	fmt.Fprintln(w)
	v.printReplicas(w, wide)
	if len(v.Tables) > 0 {
		fmt.Fprintln(w)
		t := cli.NewTable(w, wide, []string{"TABLE", "ROWS", "MEMORY"}, "ROWS", "MEMORY")
		for _, s := range v.Tables {
			t.AppendRow(table.Row{s.Table, cli.Count(s.Rows), cli.Size(s.MemoryBytes)})
		}
		t.Render()
	}
	var lines []string
	if len(v.Moves) > 0 {
		lines = append(lines, "", "MOVES")
		for _, m := range v.Moves {
			lines = append(lines, "  "+m.Line())
		}
	}
	if len(v.Findings) > 0 {
		lines = append(lines, "", "FINDINGS")
		for _, f := range v.Findings {
			lines = append(lines, "  "+f.Line())
		}
	}
	if len(lines) == 0 {
		return nil
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

func (v *shardDescription) printReplicas(w io.Writer, wide bool) {
	match := make(map[string]string)
	for _, m := range v.Members {
		match[m.ReplicaID] = cli.Count(m.MatchIndex)
	}
	if rep := v.leads(); rep != nil {
		match[rep.ID] = "-" // it was not asked
	}
	header := []string{"SERVER", "IS", "ROLE", "TERM", "MATCH", "APPLIED", "LAG", "PROVED", "ROWS", "MEMORY", "LOG"}
	if wide {
		header = append(header, "REPLICA", "ERROR")
	}
	right := []string{"TERM", "MATCH", "APPLIED", "LAG", "PROVED", "ROWS", "MEMORY", "LOG"}
	t := cli.NewTable(w, wide, header, right...).OnlyWide("MATCH", "PROVED", "MEMORY", "LOG")
	for i, r := range append(v.Replicas[:len(v.Replicas):len(v.Replicas)], v.Learners...) {
		role := view.Dash(r.Role)
		switch {
		case r.Fenced:
			role = "fenced"
		case r.Role != "" && r.Divided > 0:
			role += " (divided)"
		case i >= len(v.Replicas):
			role = "learner"
		}
		row := table.Row{r.Server, r.ServerState, role, r.Term, view.Dash(match[r.ID]), cli.Count(r.Applied),
			cli.Count(r.Lag), cli.Count(r.Proved), cli.Count(r.Rows), cli.Size(r.MemoryBytes), cli.Size(r.LogBytes)}
		if !r.Reported {
			row = table.Row{r.Server, r.ServerState, role, "-", view.Dash(match[r.ID]), "-", "-", "-", "-", "-", "-"}
		}
		if wide {
			row = append(row, r.ID, view.Dash(r.Error))
		}
		t.AppendRow(row)
	}
	t.Render()
}

func (v *shardDescription) leads() *view.Replica {
	for i := range v.Replicas {
		if r := &v.Replicas[i]; r.Role == view.RoleLeader && r.Server == v.Leader {
			return r
		}
	}
	return nil
}
