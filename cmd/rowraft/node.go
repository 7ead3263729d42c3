package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newNodeCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Look at the servers, empty them for a while or for good, and take them back"}
	cmd.AddCommand(newNodeListCmd(g), newNodeStatusCmd(g))
	for _, c := range nodeChanges {
		cmd.AddCommand(newNodeChangeCmd(g, c))
	}
	return cmd
}

// nodeJSON is one server in the JSON of `node list` and `node status`.
type nodeJSON struct {
	Schema           string   `json:"schema,omitempty"`
	ID               string   `json:"id"`
	Name             string   `json:"name"`
	Addr             string   `json:"addr"`
	PeerAddr         string   `json:"peer_addr"`
	Labels           string   `json:"labels"`
	State            string   `json:"state"` // up, suspect, down
	StateSeconds     float64  `json:"state_seconds"`
	HeartbeatSeconds float64  `json:"seconds_since_heartbeat"`
	Intent           string   `json:"intent"` // serve, drain, decommission
	Doing            string   `json:"doing"`  // serving, draining, drained, decommissioning, decommissioned, stopping, replacing, scheduling
	Operation        uint64   `json:"operation,string,omitempty"`
	Scheduler        bool     `json:"scheduler"`
	SchedulerLeader  bool     `json:"scheduler_leader"`
	SchedulerOnly    bool     `json:"scheduler_only"`
	SchedulerStandby bool     `json:"scheduler_standby"` // it can replace a lost member of the scheduler
	Profile          string   `json:"profile"`           // profile of Raft timers: fast, default, dense; "": unknown
	Replicas         int      `json:"replicas"`
	Leads            int      `json:"leads"`
	Rows             uint64   `json:"rows"`
	MemoryBytes      uint64   `json:"memory_bytes"`
	LogBytes         uint64   `json:"log_bytes"`
	Version          string   `json:"version"`
	UptimeSeconds    float64  `json:"uptime_seconds"`
	Shards           []uint32 `json:"shards"`       // of its replicas
	LeadsShards      []uint32 `json:"leads_shards"` // shards that it leads

	waitingFor string
}

type nodesJSON struct {
	Schema string     `json:"schema"`
	Nodes  []nodeJSON `json:"nodes"`
}

// newNodesJSON returns the servers of a status, ordered by name.
func newNodesJSON(r *rowraftv1.StatusReply) *nodesJSON {
	v := &nodesJSON{Schema: cli.JSONSchema, Nodes: []nodeJSON{}}
	leaders := leaderOfEach(r)
	for _, n := range r.GetNodes() {
		node := nodeJSON{
			ID: n.GetNode().GetId(), Name: n.GetNode().GetName(), Addr: n.GetNode().GetAddr(), PeerAddr: n.GetNode().GetPeerAddr(), Labels: n.GetNode().GetLabels(),
			State: n.GetState(), StateSeconds: inSeconds(n.GetInStateNs()), HeartbeatSeconds: inSeconds(n.GetSinceHeartbeatNs()),
			Intent: intentWord(n.GetNode().GetIntent()), Scheduler: n.GetNode().GetScheduler(), SchedulerLeader: n.GetMetadataLeader(), SchedulerOnly: n.GetNode().GetNoShards(), SchedulerStandby: n.GetMetadataStandby(), Profile: n.GetProfile(),
			Version: n.GetVersion(), UptimeSeconds: inSeconds(n.GetUptimeNs()), Shards: []uint32{}, LeadsShards: []uint32{},
		}
		for _, sh := range r.GetMap().GetShards() {
			on := func(rep *rowraftv1.Replica) bool { return rep.GetNode() == node.ID }
			if slices.ContainsFunc(sh.GetReplicas(), on) {
				node.Shards = append(node.Shards, sh.GetId())
			}
			if leaders[sh.GetId()] == node.ID {
				node.LeadsShards = append(node.LeadsShards, sh.GetId())
			}
		}
		node.Replicas, node.Leads = len(node.Shards), len(node.LeadsShards)
		for _, rep := range n.GetReplicas() {
			node.Rows += rep.GetRows()
			node.MemoryBytes += rep.GetMemoryBytes()
			node.LogBytes += rep.GetLogBytes()
		}
		node.describe(r, n)
		v.Nodes = append(v.Nodes, node)
	}
	slices.SortFunc(v.Nodes, func(a, b nodeJSON) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return v
}

func inSeconds(ns uint64) float64 { return float64(ns/1e6) / 1e3 }

func intentWord(i rowraftv1.NodeIntent) string {
	if i == rowraftv1.NodeIntent_NODE_INTENT_UNSPECIFIED {
		return "serve"
	}
	return word(i.String(), "NODE_INTENT_")
}

// describe sets Doing, and the running operation.
func (v *nodeJSON) describe(r *rowraftv1.StatusReply, n *rowraftv1.NodeStatus) {
	v.Doing = map[string]string{"serve": "serving", "drain": "drained", "decommission": "decommissioned"}[v.Intent]
	if v.SchedulerOnly {
		v.Doing = "scheduling"
	}
	if n.GetStopping() {
		v.Doing = "stopping"
	}
	for _, o := range r.GetOperations() {
		if o.GetNode() == v.ID && o.GetState() == rowraftv1.OperationState_OPERATION_STATE_RUNNING {
			v.Operation, v.waitingFor = o.GetId(), o.GetWaitingFor()
			v.Doing = map[rowraftv1.OperationKind]string{
				rowraftv1.OperationKind_OPERATION_KIND_DRAIN: "draining", rowraftv1.OperationKind_OPERATION_KIND_DECOMMISSION: "decommissioning", rowraftv1.OperationKind_OPERATION_KIND_REPLACE: "replacing",
			}[o.GetKind()]
		}
	}
}

func newNodeListCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the servers: whether they are up, since when, and what they hold",
		Example: `  rowraft node list -o wide
  rowraft node list -o json | jq -r '.nodes[] | select(.state != "up") | .name'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := g.statusInTime(cmd)
			if err != nil {
				return fmt.Errorf("node list: %w", err)
			}
			v := newNodesJSON(reply)
			return cli.Show(cmd.OutOrStdout(), g.output, v, v.print)
		},
	}
}

func (v *nodesJSON) print(w io.Writer, wide bool) error {
	header := []string{"NODE", "ADDRESS", "LABELS", "STATE", "FOR", "DOES", "SCHEDULER", "REPLICAS", "LEADS", "ROWS", "MEMORY"}
	if wide {
		header = append(header, "LOG", "TIMERS", "VERSION", "UPTIME", "PEER ADDRESS", "ID")
	}
	t := cli.NewTable(w, header, "REPLICAS", "LEADS", "ROWS", "MEMORY", "LOG")
	for i := range v.Nodes {
		n := &v.Nodes[i]
		row := table.Row{
			nameOr(n.Name, n.ID), n.Addr, dash(n.Labels), n.State, briefly(n.StateSeconds), n.Doing, n.schedulerRole(), n.Replicas, n.Leads, cli.Count(n.Rows), cli.Size(n.MemoryBytes),
		}
		if wide {
			row = append(row, cli.Size(n.LogBytes), dash(n.Profile), dash(n.Version), briefly(n.UptimeSeconds), n.PeerAddr, n.ID)
		}
		t.AppendRow(row)
	}
	t.Render()
	return nil
}

func (v *nodeJSON) schedulerRole() string {
	switch {
	case v.SchedulerLeader:
		return "leader"
	case v.SchedulerStandby:
		return "standby"
	case v.Scheduler:
		return "member"
	}
	return "-"
}

// briefly formats a duration for text output: 4.2s, 3m20s, 5h0m0s.
func briefly(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func newNodeStatusCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "status NODE",
		Short:   "Show one server with its replicas and what is done with it",
		Example: "  rowraft node status n2 -o yaml",
		Args:    cli.OneArg("the NODE, a name or id from `rowraft node list`"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := g.withTimeout(cmd)
			defer cancel()
			v, err := g.nodeStatus(ctx, args[0])
			if err != nil {
				return fmt.Errorf("node status: %w", err)
			}
			return cli.Show(cmd.OutOrStdout(), g.output, v, v.print)
		},
	}
}

// nodeStatusJSON is the contract of `node status -o json`.
type nodeStatusJSON struct {
	nodeJSON
	Held  []heldJSON `json:"held"`
	Moves []moveJSON `json:"moves"` // running moves to or from the server
}

type heldJSON struct {
	Shard uint32 `json:"shard"`
	replicaJSON
}

func (g *globals) nodeStatus(ctx context.Context, name string) (*nodeStatusJSON, error) {
	reply, err := g.status(ctx)
	if err != nil {
		return nil, err
	}
	n, err := nodeNamed(reply, name)
	if err != nil {
		return nil, err
	}
	v := &nodeStatusJSON{nodeJSON: *n, Held: []heldJSON{}, Moves: []moveJSON{}}
	v.Schema = cli.JSONSchema
	for _, sh := range reply.GetMap().GetShards() {
		for _, rep := range slices.Concat(sh.GetReplicas(), sh.GetLearners()) {
			if rep.GetNode() == n.ID {
				v.Held = append(v.Held, heldJSON{sh.GetId(), newReplicaJSON(reply, rep, 0)})
			}
		}
	}
	for _, m := range reply.GetMoves() {
		if m.GetMove().GetFrom().GetNode() == n.ID || m.GetMove().GetTo().GetNode() == n.ID {
			v.Moves = append(v.Moves, newMoveJSON(reply.GetMap(), m.GetMove(), m))
		}
	}
	return v, nil
}

// nodeNamed returns the server with this name or id.
func nodeNamed(r *rowraftv1.StatusReply, what string) (*nodeJSON, error) {
	nodes := newNodesJSON(r).Nodes
	var names []string
	var found []*nodeJSON
	for i := range nodes {
		n := &nodes[i]
		if what != "" && (n.Name == what || n.ID == what) {
			return n, nil
		}
		if names = append(names, nameOr(n.Name, n.ID)); len(what) >= 4 && len(n.ID) > len(what) && n.ID[:len(what)] == what {
			found = append(found, n)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	return nil, cli.Hint(cli.Usagef("there is no server %q%s", what, cli.DidYouMean("", what, names)), "`rowraft node list` shows the servers")
}

func (v *nodeStatusJSON) print(w io.Writer, _ bool) error {
	n := &v.nodeJSON
	doing := n.Doing
	if n.Operation != 0 {
		doing += fmt.Sprintf(" (operation %d)", n.Operation)
	}
	if n.waitingFor != "" {
		doing += ", waits for " + n.waitingFor
	}
	if err := cli.Facts(w,
		"NODE", nameOr(n.Name, n.ID),
		"ID", n.ID,
		"ADDRESS", n.Addr+", peers "+n.PeerAddr,
		"LABELS", dash(n.Labels),
		"STATE", fmt.Sprintf("%s for %s, last heartbeat %s", n.State, briefly(n.StateSeconds), cli.Ago(time.Duration(n.HeartbeatSeconds*float64(time.Second)))),
		"DOES", doing,
		"SCHEDULER", n.schedulerRole(),
		"TIMERS", dash(n.Profile),
		"VERSION", fmt.Sprintf("%s, up for %s", dash(n.Version), briefly(n.UptimeSeconds)),
		"HOLDS", fmt.Sprintf("%s, leads %d; %s rows, %s of memory, %s of log", cli.Plural(n.Replicas, "replica"), n.Leads, cli.Count(n.Rows), cli.Size(n.MemoryBytes), cli.Size(n.LogBytes)),
	); err != nil {
		return err
	}
	if len(v.Held) > 0 {
		fmt.Fprintln(w)
		t := cli.NewTable(w, []string{"SHARD", "ROLE", "TERM", "APPLIED", "ROWS", "MEMORY", "REPLICA", "ERROR"}, "SHARD", "TERM", "APPLIED", "ROWS", "MEMORY")
		for _, h := range v.Held {
			t.AppendRow(table.Row{h.Shard, dash(h.Role), h.Term, cli.Count(h.Applied), cli.Count(h.Rows), cli.Size(h.MemoryBytes), nameOr("", h.ID), dash(h.Error)})
		}
		t.Render()
	}
	if len(v.Moves) > 0 {
		fmt.Fprintln(w, "\nMOVES")
		for _, m := range v.Moves {
			fmt.Fprintln(w, "  "+m.line())
		}
	}
	return nil
}
