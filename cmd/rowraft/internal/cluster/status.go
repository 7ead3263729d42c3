package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/diagnosis"
)

// Status returns the status of the cluster. If the scheduler has no leader, it combines the reports of the servers.
func Status(ctx context.Context, g *remote.Flags) (*rowraftv1.StatusReply, error) {
	reply, err := completeStatus(ctx, g)
	if err == nil || route.Refused(err) || route.On(route.Control, err) == route.Return {
		return reply, err
	}
	pieces, perr := statusOfEach(ctx, g)
	if perr != nil {
		return nil, err // err says more
	}
	return pieces, nil
}

// completeStatus asks the scheduler's leader. One that has just been elected knows little, until the heartbeats of the
// servers arrive or are overdue, so it is asked again.
func completeStatus(ctx context.Context, g *remote.Flags) (*rowraftv1.StatusReply, error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, min(g.Timeout/2, g.LeaderLimit))
		reply, err := g.Status(attempt)
		cancel()
		if err != nil || !slices.ContainsFunc(reply.GetNodes(), func(n *rowraftv1.NodeStatus) bool {
			return n.GetUnheard() && n.GetState() == diagnosis.Up
		}) {
			return reply, err
		}
		select {
		case <-ctx.Done():
			return reply, nil
		case <-time.After(remote.PollInterval):
		}
	}
}

// statusOfEach asks every server of the newest map that one of them has.
func statusOfEach(ctx context.Context, g *remote.Flags) (reply *rowraftv1.StatusReply, err error) {
	c, err := g.Connect()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	m, err := c.Map(ctx)
	if err != nil {
		return nil, err
	}
	reply = &rowraftv1.StatusReply{Map: m.GetMap(), ExpectedServers: uint32(view.ServersIn(m.GetMap())),
		Nodes: make([]*rowraftv1.NodeStatus, len(m.GetMap().GetNodes()))}
	var wg sync.WaitGroup
	denied := make([]error, len(reply.Nodes))
	for i, n := range m.GetMap().GetNodes() {
		conn, err := c.Pool.Get(n.GetAddr())
		if err != nil {
			return nil, err
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, g.AskLimit)
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
	reply.Findings = append(slices.DeleteFunc(diagnosis.Of(reply, time.Now()), func(p *rowraftv1.Problem) bool {
		return p.GetKind() == "scheduler-member-down" // leaderless reports it
	}), leaderless(reply))
	diagnosis.Sort(reply.Findings)
	return reply, nil
}

// leaderless describes the effects of a scheduler without a leader.
func leaderless(r *rowraftv1.StatusReply) *rowraftv1.Problem {
	var down []string
	for _, n := range r.GetNodes() {
		if n.GetNode().GetScheduler() && n.GetState() != "up" {
			down = append(down, view.NameOr(n.GetNode().GetName(), n.GetNode().GetId()))
		}
	}
	next := "an election takes a second or two; if it does not end, look at the logs of its members"
	if len(down) > 0 {
		next = "start its members again that are down (" + strings.Join(down, ", ") + "): a majority of them elects a leader"
	}
	return &rowraftv1.Problem{
		Severity: rowraftv1.Severity_SEVERITY_CRITICAL, Kind: "scheduler-no-leader", Subject: "scheduler", Next: next,
		Text: "The scheduler has no leader: no replica moves, no table is made and no worker enters a job; pulls and " +
			"pushes do not need it. All that is said here was asked of each server itself.",
	}
}

// nodeItself converts a server's report of itself to the form in which the scheduler reports it.
func nodeItself(n *rowraftv1.Node, st *rowraftv1.NodeStatusReply, err error) *rowraftv1.NodeStatus {
	if err != nil {
		return &rowraftv1.NodeStatus{Node: n, State: "down"}
	}
	return &rowraftv1.NodeStatus{
		Node: n, State: "up", Replicas: st.GetReplicas(), Version: st.GetVersion(), UptimeNs: st.GetUptimeNs(),
		Disk: st.GetDisk(), CertificateEnds: st.GetCertificateEnds(), Profile: st.GetProfile(), Slowness: st.GetSlowness(),
	}
}
