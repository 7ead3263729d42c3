package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/rowraft/rowraft/internal/cli"
)

// Cluster is the contract of `cluster status -o json`.
type Cluster struct {
	Schema          string    `json:"schema"`
	ClusterID       string    `json:"cluster_id"`
	MapVersion      uint64    `json:"map_version"`
	Shards          int       `json:"shards"`
	Slots           int       `json:"slots"` // 0 until the shards exist
	Tables          int       `json:"tables"`
	ExpectedServers uint32    `json:"expected_servers"`
	Verdict         string    `json:"verdict"` // healthy, degraded, critical
	Healthy         bool      `json:"healthy"`
	Problems        []string  `json:"problems"` // texts of the findings above a note
	Findings        []Finding `json:"findings"` // the worst first
	Servers         []Server  `json:"servers"`
	Jobs            []Job     `json:"jobs"`
	Moves           []Move    `json:"moves"` // running
}

// Server is one server in `cluster status`.
type Server struct {
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

// Job is one job in `cluster status`.
type Job struct {
	Name    string   `json:"name"`
	Workers uint32   `json:"workers"`
	Members []string `json:"members"`
}

// NewCluster returns the state of the cluster with the verdict on it.
func NewCluster(r *rowraftv1.StatusReply) *Cluster {
	v := &Cluster{
		Schema: cli.JSONSchema, ClusterID: r.GetMap().GetClusterId(), MapVersion: r.GetMap().GetVersion(),
		Shards: len(r.GetMap().GetShards()), Tables: len(r.GetMap().GetTables()), ExpectedServers: r.GetExpectedServers(),
		Servers: []Server{}, Jobs: []Job{},
	}
	v.judge(r)
	held := make(map[string]int) // replicas by server, from the map
	for _, sh := range r.GetMap().GetShards() {
		for _, rep := range sh.GetReplicas() {
			held[rep.GetNode()]++
		}
	}
	for _, s := range r.GetMap().GetSlots() {
		v.Slots += int(s.GetCount())
	}
	leads := leadersOf(r)
	for _, n := range r.GetNodes() {
		s := Server{
			ID: n.GetNode().GetId(), Name: n.GetNode().GetName(), Addr: n.GetNode().GetAddr(),
			PeerAddr: n.GetNode().GetPeerAddr(),
			State:    n.GetState(), SecondsSinceHeartbeat: float64(n.GetSinceHeartbeatNs()/1e6) / 1e3,
			Scheduler: n.GetNode().GetScheduler(), SchedulerLeader: n.GetMetadataLeader(),
			SchedulerOnly: n.GetNode().GetNoShards(), SchedulerStandby: n.GetMetadataStandby(),
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
	slices.SortFunc(v.Servers, func(a, b Server) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	for _, j := range r.GetJobs() {
		v.Jobs = append(v.Jobs, Job{j.GetJob(), j.GetWorkers(), append([]string{}, j.GetMembers()...)})
	}
	v.Moves = Moves(r, false)
	return v
}

// Print writes the verdict, the findings and the servers.
func (v *Cluster) Print(w io.Writer, wide bool) error {
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
	servers := fmt.Sprintf("%d up of %d", up, all)
	if missing := int(v.ExpectedServers) - all; missing > 0 && v.Shards == 0 {
		servers += fmt.Sprintf(", %d more are expected", missing)
	}
	if err := cli.Facts(w,
		"CLUSTER", v.ClusterID,
		"SERVERS", servers,
		"MAP", fmt.Sprintf("version %d, %s of %s, %s", v.MapVersion, cli.Plural(v.Shards, "shard"),
			cli.Plural(v.Slots, "slot"), cli.Plural(v.Tables, "table")),
	); err != nil {
		return err
	}
	fmt.Fprintln(w)
	header := []string{"SERVER", "ADDRESS", "STATE", "HEARTBEAT", "SCHEDULER", "REPLICAS", "LEADS", "ROWS", "MEMORY",
		"DISK FREE"}
	if wide {
		header = append(header, "LOG", "VERSION", "PEER ADDRESS", "ID")
	}
	t := cli.NewTable(w, wide, header, "REPLICAS", "LEADS", "ROWS", "MEMORY", "DISK FREE", "LOG").OnlyWide(
		"ADDRESS", "ROWS")
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
			NameOr(s.Name, s.ID), s.Addr, s.State, cli.Ago(time.Duration(s.SecondsSinceHeartbeat * float64(time.Second))), role,
			s.Replicas, s.Leads, cli.Count(s.Rows), cli.Size(s.MemoryBytes), "-",
		}
		if s.SchedulerOnly {
			row = append(row[:5], "-", "-", "-", "-", "-")
		}
		if s.DiskFreeBytes != nil {
			row[len(row)-1] = cli.Size(*s.DiskFreeBytes)
		}
		if wide {
			row = append(row, cli.Size(s.LogBytes), Dash(s.Version), s.PeerAddr, s.ID)
		}
		t.AppendRow(row)
	}
	t.Render()
	return nil
}

// Verdicts on a cluster, and severities of findings.
const (
	healthy  = "healthy"
	degraded = "degraded"
	critical = "critical"

	aNote = "note"
)

// Finding is one problem of the cluster, or a note for the operator.
type Finding struct {
	Severity string `json:"severity"` // note, warning, critical
	Kind     string `json:"kind"`     // stable identifier of the kind
	Subject  string `json:"subject"`  // server n1, shard 3, job ctr; "" for the cluster
	Text     string `json:"text"`
	Next     string `json:"next"` // what to do
}

// Findings returns the findings of a status.
func Findings(r *rowraftv1.StatusReply) []Finding {
	found := r.GetFindings()
	if len(found) == 0 { // a server that sends only texts
		for _, p := range r.GetProblems() {
			found = append(found, &rowraftv1.Problem{Severity: rowraftv1.Severity_SEVERITY_WARNING, Kind: "problem", Text: p})
		}
	}
	out := make([]Finding, len(found))
	for i, p := range found {
		out[i] = Finding{Severity: Word(p.GetSeverity().String(), "SEVERITY_"), Kind: p.GetKind(), Subject: p.GetSubject(),
			Text: p.GetText(), Next: p.GetNext()}
	}
	return out
}

// judge sets the findings and the verdict.
func (v *Cluster) judge(r *rowraftv1.StatusReply) {
	v.Verdict, v.Problems, v.Findings = healthy, []string{}, Findings(r)
	for _, f := range v.Findings {
		if f.Severity == aNote {
			continue
		}
		v.Problems = append(v.Problems, f.Text)
		if f.Severity == critical {
			v.Verdict = critical
		} else if v.Verdict == healthy {
			v.Verdict = degraded
		}
	}
	v.Healthy = v.Verdict == healthy
}

// Headline describes the verdict in a few words.
func (v *Cluster) Headline() string {
	words := v.Verdict
	if n := len(v.Problems); n > 0 {
		words += ": " + cli.Plural(n, "problem")
	}
	if n := len(v.Findings) - len(v.Problems); n > 0 {
		words += ", " + cli.Plural(n, "note")
	}
	return words
}

func (v *Cluster) printFindings(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintln(&b, v.Headline())
	for _, f := range v.Findings {
		fmt.Fprintln(&b, "  "+f.Line())
	}
	fmt.Fprintln(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// Line formats a finding and what to do about it.
func (f *Finding) Line() string {
	line := fmt.Sprintf("%-8s  %s", f.Severity, f.Text)
	if f.Next != "" {
		line += " → " + f.Next
	}
	return line
}
