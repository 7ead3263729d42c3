package view

import (
	"cmp"
	"io"
	"slices"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
)

// Node is one server in the JSON of `server list` and `server status`.
type Node struct {
	Schema           string  `json:"schema,omitempty"`
	ID               string  `json:"id"`
	Name             string  `json:"name"`
	Addr             string  `json:"addr"`
	PeerAddr         string  `json:"peer_addr"`
	Labels           string  `json:"labels"`
	State            string  `json:"state"` // up, suspect, down
	StateSeconds     float64 `json:"state_seconds"`
	HeartbeatSeconds float64 `json:"seconds_since_heartbeat"`
	Intent           string  `json:"intent"` // serve, drain, decommission
	// serving, draining, drained, decommissioning, decommissioned, stopping, replacing, scheduling; "": it is down, and
	// nothing is done with it
	Doing            string   `json:"doing"`
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

	WaitingFor string `json:"-"`
}

// NodeList is the contract of `server list -o json`.
type NodeList struct {
	Schema  string `json:"schema"`
	Servers []Node `json:"servers"`
}

// NewNodeList returns the servers of a status, ordered by name.
func NewNodeList(r *rowraftv1.StatusReply) *NodeList {
	v := &NodeList{Schema: cli.JSONSchema, Servers: []Node{}}
	leaders := rpc.Leaders(r)
	for _, n := range r.GetNodes() {
		node := Node{
			ID: n.GetNode().GetId(), Name: n.GetNode().GetName(), Addr: n.GetNode().GetAddr(),
			PeerAddr: n.GetNode().GetPeerAddr(), Labels: n.GetNode().GetLabels(),
			State: n.GetState(), StateSeconds: inSeconds(n.GetInStateNs()), HeartbeatSeconds: inSeconds(n.GetSinceHeartbeatNs()),
			Intent: Intent(n.GetNode().GetIntent()), Scheduler: n.GetNode().GetScheduler(),
			SchedulerLeader: n.GetMetadataLeader(), SchedulerOnly: n.GetNode().GetNoShards(),
			SchedulerStandby: n.GetMetadataStandby(), Profile: n.GetProfile(),
			Version: n.GetVersion(), UptimeSeconds: inSeconds(n.GetUptimeNs()), Shards: []uint32{}, LeadsShards: []uint32{},
		}
		for _, sh := range r.GetMap().GetShards() {
			on := func(rep *rowraftv1.Replica) bool { return rep.GetNode() == node.ID }
			if slices.ContainsFunc(sh.GetReplicas(), on) {
				node.Shards = append(node.Shards, sh.GetId())
			}
			if leaders[sh.GetId()].Node == node.ID {
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
		v.Servers = append(v.Servers, node)
	}
	slices.SortFunc(v.Servers, func(a, b Node) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return v
}

// Intent returns the word for an intent: serve, drain or decommission.
func Intent(i rowraftv1.NodeIntent) string {
	if i == rowraftv1.NodeIntent_NODE_INTENT_UNSPECIFIED {
		return "serve"
	}
	return Word(i.String(), "NODE_INTENT_")
}

// describe sets Doing, and the running operation.
func (v *Node) describe(r *rowraftv1.StatusReply, n *rowraftv1.NodeStatus) {
	v.Doing = map[string]string{"serve": "serving", "drain": "drained", "decommission": "decommissioned"}[v.Intent]
	if v.SchedulerOnly {
		v.Doing = "scheduling"
	}
	if n.GetStopping() {
		v.Doing = "stopping"
	}
	if v.State == "down" && (v.Intent == "serve" || n.GetStopping()) {
		v.Doing = ""
	}
	for _, o := range r.GetOperations() {
		if o.GetNode() == v.ID && o.GetState() == rowraftv1.OperationState_OPERATION_STATE_RUNNING {
			v.Operation, v.WaitingFor = o.GetId(), o.GetWaitingFor()
			v.Doing = map[rowraftv1.OperationKind]string{
				rowraftv1.OperationKind_OPERATION_KIND_DRAIN:        "draining",
				rowraftv1.OperationKind_OPERATION_KIND_DECOMMISSION: "decommissioning",
				rowraftv1.OperationKind_OPERATION_KIND_REPLACE:      "replacing",
			}[o.GetKind()]
		}
	}
}

// Print writes a table.
func (v *NodeList) Print(w io.Writer, wide bool) error {
	header := []string{"SERVER", "ADDRESS", "LABELS", "STATE", "FOR", "DOES", "SCHEDULER", "REPLICAS", "LEADS", "ROWS",
		"MEMORY"}
	if wide {
		header = append(header, "LOG", "TIMERS", "VERSION", "UPTIME", "PEER ADDRESS", "ID")
	}
	t := cli.NewTable(w, wide, header, "REPLICAS", "LEADS", "ROWS", "MEMORY", "LOG").OnlyWide("LABELS", "FOR",
		"REPLICAS", "LEADS", "ROWS", "MEMORY")
	for i := range v.Servers {
		n := &v.Servers[i]
		row := table.Row{
			NameOr(n.Name, n.ID), n.Addr, Dash(n.Labels), n.State, Seconds(n.StateSeconds), Dash(n.Doing), n.SchedulerRole(),
			n.Replicas, n.Leads, cli.Count(n.Rows), cli.Size(n.MemoryBytes),
		}
		if wide {
			row = append(row, cli.Size(n.LogBytes), Dash(n.Profile), Dash(n.Version), Seconds(n.UptimeSeconds), n.PeerAddr, n.ID)
		}
		t.AppendRow(row)
	}
	t.Render()
	return nil
}

// SchedulerRole returns leader, standby, member, or "-".
func (v *Node) SchedulerRole() string {
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

// FindNode returns the server with this name or id.
func FindNode(r *rowraftv1.StatusReply, what string) (*Node, error) {
	nodes := NewNodeList(r).Servers
	var names []string
	var found []*Node
	for i := range nodes {
		n := &nodes[i]
		if what != "" && (n.Name == what || n.ID == what) {
			return n, nil
		}
		if names = append(names, NameOr(n.Name, n.ID)); len(what) >= 4 && len(n.ID) > len(what) && n.ID[:len(what)] == what {
			found = append(found, n)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	return nil, cli.Hint(cli.Usagef("there is no server %q%s", what, cli.DidYouMean("", what, names)),
		"`rowraft server list` shows the servers")
}
