package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newClusterCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Look at the cluster as a whole", Example: "  rowraft cluster status"}
	cmd.AddCommand(&cobra.Command{
		Use:   "status",
		Short: "Tell what is wrong with the cluster and what to do about it, and show its servers",
		Long: `Tell what is wrong with the cluster and what to do about it, and show its servers.

The first line is the verdict: healthy, degraded (all is served, with less to spare) or critical (something is not
served, or may be lost). Then comes each problem with what to do next, then notes of work that runs, then the servers.

Any server of the cluster can be asked; the scheduler's leader answers. Where the scheduler has none, each server is
asked for itself, and what they say is put together.

Exit codes: 0 healthy; 3 degraded or critical; 4 no server answers; 2 a wrong command line.`,
		Example: `  rowraft cluster status --endpoints 10.0.0.1:7070,10.0.0.2:7070
  rowraft cluster status -o json | jq -r '.findings[] | select(.severity != "note") | .text'
  rowraft cluster status >/dev/null || echo "exit code $?: somebody should look"`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := g.withTimeout(cmd)
			defer cancel()
			reply, err := g.anyStatus(ctx)
			if err != nil {
				return fmt.Errorf("cluster status: %w", err)
			}
			v := newClusterJSON(reply)
			if err := cli.Show(cmd.OutOrStdout(), g.output, v, v.print); err != nil {
				return err
			}
			if !v.Healthy {
				return cli.Verdict(fmt.Errorf("the cluster is %s", v.headline()))
			}
			return nil
		},
	})
	return cmd
}

// clusterJSON is the contract of `cluster status -o json`.
type clusterJSON struct {
	Schema          string       `json:"schema"`
	ClusterID       string       `json:"cluster_id"`
	MapVersion      uint64       `json:"map_version"`
	Shards          int          `json:"shards"`
	Tables          int          `json:"tables"`
	ExpectedServers uint32       `json:"expected_servers"`
	Verdict         string       `json:"verdict"` // healthy, degraded, critical
	Healthy         bool         `json:"healthy"`
	Problems        []string     `json:"problems"` // texts of the findings above a note
	Findings        []finding    `json:"findings"` // the worst first
	Servers         []serverJSON `json:"servers"`
	Jobs            []jobJSON    `json:"jobs"`
	Moves           []moveJSON   `json:"moves"` // running
}

type serverJSON struct {
	ID                    string  `json:"id"`
	Name                  string  `json:"name"`
	Addr                  string  `json:"addr"`
	PeerAddr              string  `json:"peer_addr"`
	State                 string  `json:"state"`
	SecondsSinceHeartbeat float64 `json:"seconds_since_heartbeat"`
	Scheduler             bool    `json:"scheduler"`
	SchedulerLeader       bool    `json:"scheduler_leader"`
	SchedulerOnly         bool    `json:"scheduler_only,omitempty"` // it holds no replicas
	SchedulerStandby      bool    `json:"scheduler_standby,omitempty"`
	Replicas              int     `json:"replicas"`
	Leads                 int     `json:"leads"`
	Rows                  uint64  `json:"rows"`
	MemoryBytes           uint64  `json:"memory_bytes"`
	LogBytes              uint64  `json:"log_bytes"`
	DiskFreeBytes         *uint64 `json:"disk_free_bytes"` // null: unknown
	Version               string  `json:"version"`
}

type jobJSON struct {
	Name    string   `json:"name"`
	Workers uint32   `json:"workers"`
	Members []string `json:"members"`
}

func newClusterJSON(r *rowraftv1.StatusReply) *clusterJSON {
	v := &clusterJSON{
		Schema: cli.JSONSchema, ClusterID: r.GetMap().GetClusterId(), MapVersion: r.GetMap().GetVersion(),
		Shards: len(r.GetMap().GetShards()), Tables: len(r.GetMap().GetTables()), ExpectedServers: r.GetExpectedServers(),
		Servers: []serverJSON{}, Jobs: []jobJSON{},
	}
	v.judge(r)
	held := make(map[string]int) // replicas by server, from the map
	for _, sh := range r.GetMap().GetShards() {
		for _, rep := range sh.GetReplicas() {
			held[rep.GetNode()]++
		}
	}
	leads := leadersOf(r)
	for _, n := range r.GetNodes() {
		s := serverJSON{
			ID: n.GetNode().GetId(), Name: n.GetNode().GetName(), Addr: n.GetNode().GetAddr(), PeerAddr: n.GetNode().GetPeerAddr(),
			State: n.GetState(), SecondsSinceHeartbeat: float64(n.GetSinceHeartbeatNs()/1e6) / 1e3,
			Scheduler: n.GetNode().GetScheduler(), SchedulerLeader: n.GetMetadataLeader(), SchedulerOnly: n.GetNode().GetNoShards(), SchedulerStandby: n.GetMetadataStandby(),
			Replicas: held[n.GetNode().GetId()], Leads: leads[n.GetNode().GetId()], Version: n.GetVersion(),
		}
		if n.GetDisk() != nil {
			s.DiskFreeBytes = &n.Disk.FreeBytes
		}
		for _, rep := range n.GetReplicas() {
			s.Rows += rep.GetRows()
			s.MemoryBytes += rep.GetMemoryBytes()
			s.LogBytes += rep.GetLogBytes()
		}
		v.Servers = append(v.Servers, s)
	}
	slices.SortFunc(v.Servers, func(a, b serverJSON) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	for _, j := range r.GetJobs() {
		v.Jobs = append(v.Jobs, jobJSON{j.GetJob(), j.GetWorkers(), append([]string{}, j.GetMembers()...)})
	}
	v.Moves = movesJSON(r, false)
	return v
}

func (v *clusterJSON) print(w io.Writer, wide bool) error {
	up, all := 0, 0
	for _, s := range v.Servers {
		if s.SchedulerOnly {
			continue
		}
		if all++; s.State == "up" {
			up++
		}
	}
	if err := v.printFindings(w); err != nil {
		return err
	}
	if err := cli.Facts(w,
		"CLUSTER", v.ClusterID,
		"SERVERS", fmt.Sprintf("%d up of %d, %d expected", up, all, v.ExpectedServers),
		"MAP", fmt.Sprintf("version %d, %s, %s", v.MapVersion, cli.Plural(v.Shards, "shard"), cli.Plural(v.Tables, "table")),
	); err != nil {
		return err
	}
	fmt.Fprintln(w)
	header := []string{"SERVER", "ADDRESS", "STATE", "HEARTBEAT", "SCHEDULER", "REPLICAS", "LEADS", "ROWS", "MEMORY", "DISK FREE"}
	if wide {
		header = append(header, "LOG", "VERSION", "PEER ADDRESS", "ID")
	}
	t := cli.NewTable(w, header, "REPLICAS", "LEADS", "ROWS", "MEMORY", "DISK FREE", "LOG")
	for _, s := range v.Servers {
		role := "-"
		switch {
		case s.SchedulerLeader:
			role = "leader"
		case s.SchedulerStandby:
			role = "standby"
		case s.Scheduler:
			role = "member"
		}
		row := table.Row{
			nameOr(s.Name, s.ID), s.Addr, s.State, cli.Ago(time.Duration(s.SecondsSinceHeartbeat * float64(time.Second))), role,
			s.Replicas, s.Leads, cli.Count(s.Rows), cli.Size(s.MemoryBytes), "-",
		}
		if s.SchedulerOnly {
			row = append(row[:5], "-", "-", "-", "-", "-")
		}
		if s.DiskFreeBytes != nil {
			row[len(row)-1] = cli.Size(*s.DiskFreeBytes)
		}
		if wide {
			row = append(row, cli.Size(s.LogBytes), dash(s.Version), s.PeerAddr, s.ID)
		}
		t.AppendRow(row)
	}
	t.Render()
	return nil
}

// serversIn returns the number of nodes that can hold replicas.
func serversIn(m *rowraftv1.Map) (n int) {
	for _, node := range m.GetNodes() {
		if !node.GetNoShards() {
			n++
		}
	}
	return n
}

// nameOr returns the name of a server for a table, or the start of its id.
func nameOr(name, id string) string {
	if name != "" {
		return name
	}
	return id[:min(len(id), 8)]
}

const roleLeader = "leader"

// leadersOf returns the number of shards that each server leads.
func leadersOf(r *rowraftv1.StatusReply) map[string]int {
	out := make(map[string]int)
	for _, id := range leaderOfEach(r) {
		out[id]++
	}
	return out
}

// leaderOfEach returns the leader of each shard. If two servers report to lead, the one with the higher term counts. A
// server that is down leads nothing, whatever it reported last, and neither does a replica that was removed.
func leaderOfEach(r *rowraftv1.StatusReply) map[uint32]string {
	leader, term := make(map[uint32]string), make(map[uint32]uint64)
	votes := make(map[string]bool)
	for _, sh := range r.GetMap().GetShards() {
		for _, rep := range sh.GetReplicas() {
			votes[rep.GetId()] = true
		}
	}
	for _, n := range r.GetNodes() {
		for _, rep := range n.GetReplicas() {
			if rep.GetRole() == roleLeader && votes[rep.GetReplicaId()] && n.GetState() == "up" && rep.GetTerm() >= term[rep.GetShard()] {
				leader[rep.GetShard()], term[rep.GetShard()] = n.GetNode().GetId(), rep.GetTerm()
			}
		}
	}
	return leader
}
