package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/diagnosis"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/placement"
)

// changeNode logs the intent of a server. Placement then does the work.
func (pl *placeLoop) changeNode(ctx context.Context,
	req *rowraftv1.ChangeNodeRequest) (*rowraftv1.ChangeNodeReply, error) {
	if _, err := pl.leadingInSync(ctx); err != nil {
		return nil, err
	}
	m := pl.view.Map()
	if m == nil {
		return nil, rowraft.Errorf(rowraft.CodeStarting, "the scheduler has no map yet")
	}
	n, err := m.FindNode(req.GetNode())
	if err != nil {
		return nil, err
	}
	to := clustermap.Intent(req.GetIntent())
	if !meta.KnownIntent(req.GetIntent()) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "intent %d is unknown", req.GetIntent())
	}
	if n.NoShards && to == clustermap.Drain {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%s is a scheduler and holds no replicas", m.NameOf(n.ID))
	}
	runs := pl.runningOn(n.ID)
	if id := req.GetOperation(); id != 0 && (runs == nil || runs.ID != id) {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "operation %d does not run on %s", id, m.NameOf(n.ID))
	}
	if !req.GetExpectAny() && n.Intent != clustermap.Intent(req.GetExpect()) && n.Intent != to {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "%s is %s", m.NameOf(n.ID), meta.IntentName(n.Intent))
	}
	reply := &rowraftv1.ChangeNodeReply{Plan: pl.planFor(m, &n, to), Risks: pl.risksOf(m, &n, to), Accepted: true}
	switch {
	case len(reply.Risks) > 0 && !req.GetForce():
		reply.Accepted = false
	case req.GetDryRun() || n.Intent == to:
	default:
		kind := map[clustermap.Intent]rowraftv1.OperationKind{clustermap.Drain: meta.OpDrain,
			clustermap.Decommission: meta.OpDecommission}[to]
		o, err := pl.setIntent(ctx, m, n.ID, n.Intent, to, kind)
		if err != nil {
			return nil, fmt.Errorf("server %s: %w", m.NameOf(n.ID), err)
		}
		if runs = nil; o.ID != 0 {
			runs = &o
		}
		pl.logger.Info("a server was told what to do", "server", m.NameOf(n.ID), "intent", meta.IntentName(to), "before",
			meta.IntentName(n.Intent), "operation", o.ID)
		n.Intent = to
	}
	reply.Node, reply.MapVersion = rpc.NodeToProto(n), pl.mapVersion()
	if runs != nil {
		reply.Operation = pl.tell(m, runs)
	}
	return reply, nil
}

// planFor describes what follows when n gets intent to, one sentence each.
func (pl *placeLoop) planFor(m *clustermap.Map, n *clustermap.Node, to clustermap.Intent) []string {
	name := m.NameOf(n.ID)
	leads, replicas := pl.leadsOf(m, n.ID), m.ShardsOn(n.ID)
	if n.Intent == to {
		return []string{fmt.Sprintf("%s is %s already.", name, meta.IntentName(to))}
	}
	var plan []string
	if to == clustermap.Serve {
		plan = append(plan, fmt.Sprintf("%s may lead shards and get replicas again.", name))
		if n.Intent == clustermap.Decommission {
			plan = append(plan, "What has moved away comes back as the servers are evened out.")
		}
		return plan
	}
	if len(leads) > 0 {
		plan = append(plan,
			fmt.Sprintf("Other replicas take the lead of %s; pushes to it wait for some milliseconds.", list(leads)))
	}
	if to == clustermap.Drain {
		return append(plan, fmt.Sprintf("%s keeps its %d replicas, leads none of them and gets no new ones.", name,
			len(replicas)))
	}
	if len(replicas) > 0 {
		plan = append(plan, fmt.Sprintf("The replicas of %s move to other servers, %d at a time.", list(replicas),
			placement.MaxMoves))
	}
	if n.Scheduler {
		return append(plan, fmt.Sprintf("%s stays a member of the scheduler until its process has ended and a standby, a "+
			"server started with --with-scheduler, takes its seat.", name))
	}
	return append(plan, fmt.Sprintf("%s is empty then; once its process has ended the cluster forgets it.", name))
}

// list formats shard ids as "shard 1" or "shards 1, 3".
func list(shards []rowraft.ShardID) string {
	words := make([]string, len(shards))
	for i, sh := range shards {
		words[i] = fmt.Sprint(sh)
	}
	if len(words) == 1 {
		return "shard " + words[0]
	}
	return "shards " + strings.Join(words, ", ")
}

// risksOf describes what could be lost when n gets intent to, one sentence each: shards that would have no majority if
// its process ended now, and replicas for which no other server exists.
func (pl *placeLoop) risksOf(m *clustermap.Map, n *clustermap.Node, to clustermap.Intent) (risks []string) {
	if n.Intent == to || to == clustermap.Serve {
		return nil
	}
	p := newPlaceMemory(0)
	for _, r := range placement.Risks(pl.world(m, &p), n.ID, to) {
		if r.NoTarget {
			risks = append(risks, fmt.Sprintf("The replica of shard %d cannot move: every other server that is up has one "+
				"already, or is to leave. It stays until another server joins.", r.Shard))
			continue
		}
		risks = append(risks,
			fmt.Sprintf("Shard %d would have no majority without %s: %d of its %d other replicas are up and not drained.",
				r.Shard, m.NameOf(n.ID), r.Good, r.Others))
	}
	return risks
}

// addOperations adds the operations to a status.
func (pl *placeLoop) addOperations(m *clustermap.Map, reply *rowraftv1.StatusReply) {
	for _, o := range pl.machine.Operations() {
		reply.Operations = append(reply.Operations, pl.tell(m, &o))
	}
}

// tell describes an operation for the user.
func (pl *placeLoop) tell(m *clustermap.Map, o *meta.Operation) *rowraftv1.Operation {
	p := o.ToProto()
	if o.State != meta.OpRunning {
		return p
	}
	left := pl.left(m, o)
	p.Left, p.Total = uint64(left), max(p.Total, uint64(left))
	running, _ := pl.machine.Moves()
	moving := 0
	for _, mv := range running {
		if mv.From.Node != o.Node {
			continue
		}
		moving++
		if n := pl.driver.noteOf(mv.ID); p.WaitingFor == "" && n.waitingFor != "" {
			p.WaitingFor = fmt.Sprintf("shard %d: %s", mv.Shard, n.waitingFor)
		}
	}
	if p.WaitingFor == "" && left > 0 && moving == 0 {
		if p.WaitingFor = "a replica that can take the lead"; o.Kind != meta.OpDrain {
			p.WaitingFor = "a server that can take a replica"
		}
	}
	return p
}

// reasonName returns the name of a move's reason for messages.
func reasonName(r rowraftv1.MoveReason) string {
	if r == 0 {
		return "asked"
	}
	return strings.ToLower(strings.TrimPrefix(r.String(), "MOVE_REASON_"))
}

// takeName gives a server with an empty data directory the name of the server that it replaces. The old server must be
// down, and must have had the same address or be dead. takeName decommissions the old one: its data are lost, and its
// id must not return.
func (pl *placeLoop) takeName(ctx context.Context, n *rowraftv1.Node) (taken bool, err error) {
	if _, err := pl.leadingInSync(ctx); err != nil {
		return false, err
	}
	m := pl.view.Map()
	i := slices.IndexFunc(m.Nodes, func(old clustermap.Node) bool {
		return old.Name == n.GetName() && string(old.ID) != n.GetId()
	})
	if i < 0 {
		return false, nil
	}
	old := m.Nodes[i]
	l := pl.liveness(old.ID)
	if l.state != diagnosis.Down || old.Addr != n.GetAddr() && !pl.isDead(&l) {
		return false, nil
	}
	pl.logger.Warn("a server comes in the place of one that is silent, whose data is taken for lost", "name", old.Name,
		"new", n.GetId(), "old", string(old.ID), "silent", l.silence.Round(time.Second).String())
	if old.Intent != clustermap.Decommission {
		if _, err := pl.setIntent(ctx, m, old.ID, old.Intent, clustermap.Decommission, meta.OpReplace); err != nil {
			return false, err
		}
	}
	// Until the cluster forgets it.
	old.Name = old.Name[:min(len(old.Name), 64)] + "-" + string(old.ID[:min(len(old.ID), 8)])
	_, err = pl.propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_PutNode{
		PutNode: &rowraftv1.MetaPutNode{Node: rpc.NodeToProto(old)}}})
	return true, err
}
