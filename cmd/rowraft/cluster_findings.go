package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler"
)

// Verdicts on a cluster, and severities of findings.
const (
	healthy  = "healthy"
	degraded = "degraded"
	critical = "critical"

	aNote = "note"
)

// finding is one problem of the cluster, or a note for the operator.
type finding struct {
	Severity string `json:"severity"` // note, warning, critical
	Kind     string `json:"kind"`     // stable identifier of the kind
	Subject  string `json:"subject"`  // server n1, shard 3, job ctr; "" for the cluster
	Text     string `json:"text"`
	Next     string `json:"next"` // what to do
}

// findingsOf returns the findings of a status.
func findingsOf(r *rowraftv1.StatusReply) []finding {
	found := r.GetFindings()
	if len(found) == 0 { // a server that sends only texts
		for _, p := range r.GetProblems() {
			found = append(found, &rowraftv1.Problem{Severity: rowraftv1.Severity_SEVERITY_WARNING, Kind: "problem", Text: p})
		}
	}
	out := make([]finding, len(found))
	for i, p := range found {
		out[i] = finding{Severity: word(p.GetSeverity().String(), "SEVERITY_"), Kind: p.GetKind(), Subject: p.GetSubject(), Text: p.GetText(), Next: p.GetNext()}
	}
	return out
}

// judge sets the findings and the verdict.
func (v *clusterJSON) judge(r *rowraftv1.StatusReply) {
	v.Verdict, v.Problems, v.Findings = healthy, []string{}, findingsOf(r)
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

// headline describes the verdict in a few words.
func (v *clusterJSON) headline() string {
	words := v.Verdict
	if n := len(v.Problems); n > 0 {
		words += ": " + cli.Plural(n, "problem")
	}
	if n := len(v.Findings) - len(v.Problems); n > 0 {
		words += ", " + cli.Plural(n, "note")
	}
	return words
}

func (v *clusterJSON) printFindings(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintln(&b, v.headline())
	for _, f := range v.Findings {
		fmt.Fprintln(&b, "  "+f.line())
	}
	fmt.Fprintln(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// line formats a finding and what to do about it.
func (f *finding) line() string {
	line := fmt.Sprintf("%-8s  %s", f.Severity, f.Text)
	if f.Next != "" {
		line += " → " + f.Next
	}
	return line
}

// patience bounds how long `cluster status` waits for a leader of the scheduler before it asks each server.
var patience = 5 * time.Second

// anyStatus returns the status of the cluster. If the scheduler has no leader, it combines the reports of the servers.
func (g *globals) anyStatus(ctx context.Context) (*rowraftv1.StatusReply, error) {
	attempt, cancel := context.WithTimeout(ctx, min(g.timeout/2, patience))
	defer cancel()
	reply, err := g.status(attempt)
	if err == nil || route.Refused(err) || route.On(route.Control, err) == route.Return {
		return reply, err
	}
	pieces, perr := g.statusOfEach(ctx)
	if perr != nil {
		return nil, err // err says more
	}
	return pieces, nil
}

// statusOfEach asks every server of the newest map that one of them has.
func (g *globals) statusOfEach(ctx context.Context) (reply *rowraftv1.StatusReply, err error) {
	c, err := g.connect()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	m, err := c.Map(ctx)
	if err != nil {
		return nil, err
	}
	reply = &rowraftv1.StatusReply{Map: m.GetMap(), ExpectedServers: uint32(serversIn(m.GetMap())), Nodes: make([]*rowraftv1.NodeStatus, len(m.GetMap().GetNodes()))}
	var wg sync.WaitGroup
	denied := make([]error, len(reply.Nodes))
	for i, n := range m.GetMap().GetNodes() {
		conn, err := c.Pool.Get(n.GetAddr())
		if err != nil {
			return nil, err
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, askLimit)
			defer cancel()
			st, err := rowraftv1.NewReplicasClient(conn).NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
			if rowraft.CodeOf(err) == rowraft.CodeDenied {
				denied[i] = err
			}
			reply.Nodes[i] = nodeItself(n, st, err)
		})
	}
	wg.Wait()
	if err := errors.Join(denied...); err != nil {
		return nil, err
	}
	reply.Findings = append(slices.DeleteFunc(scheduler.Diagnose(reply, time.Now()), func(p *rowraftv1.Problem) bool {
		return p.GetKind() == "scheduler-member-down" // leaderless reports it
	}), leaderless(reply))
	scheduler.Worst(reply.Findings)
	return reply, nil
}

// leaderless describes the effects of a scheduler without a leader.
func leaderless(r *rowraftv1.StatusReply) *rowraftv1.Problem {
	var down []string
	for _, n := range r.GetNodes() {
		if n.GetNode().GetScheduler() && n.GetState() != "up" {
			down = append(down, nameOr(n.GetNode().GetName(), n.GetNode().GetId()))
		}
	}
	next := "an election takes a second or two; if it does not end, look at the logs of its members"
	if len(down) > 0 {
		next = "start its members again that are down (" + strings.Join(down, ", ") + "): a majority of them elects a leader"
	}
	return &rowraftv1.Problem{
		Severity: rowraftv1.Severity_SEVERITY_CRITICAL, Kind: "scheduler-no-leader", Subject: "scheduler", Next: next,
		Text: "The scheduler has no leader: no replica moves, no table is made and no worker enters a job; pulls and pushes do not need it. All that is said here was asked of each server itself.",
	}
}

// nodeItself converts a server's report of itself to the form in which the scheduler reports it.
func nodeItself(n *rowraftv1.Node, st *rowraftv1.NodeStatusReply, err error) *rowraftv1.NodeStatus {
	if err != nil {
		return &rowraftv1.NodeStatus{Node: n, State: "down"}
	}
	return &rowraftv1.NodeStatus{
		Node: n, State: "up", Replicas: st.GetReplicas(), Version: st.GetVersion(), UptimeNs: st.GetUptimeNs(), Disk: st.GetDisk(), CertificateEnds: st.GetCertificateEnds(), Profile: st.GetProfile(), Slowness: st.GetSlowness(),
	}
}
