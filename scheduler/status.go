package scheduler

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Roles of a replica and states of a node, as they travel.
const (
	roleLeader  = "leader"
	roleStopped = "stopped"

	stateUp      = "up"
	stateSuspect = "suspect"
	stateDown    = "down"
)

// maxLag is how many entries a replica may trail its leader without being
// called a problem.
const maxLag = 1000

// Status is the whole cluster at a glance.
func (s *Scheduler) Status(ctx context.Context, _ *rowraftv1.StatusRequest) (*rowraftv1.StatusReply, error) {
	l, err := s.leadingInSync(ctx)
	if err != nil {
		return nil, err
	}
	m := s.view.Map()
	if m == nil {
		return nil, rowraft.Errorf(rowraft.CodeStarting, "the scheduler has no map yet")
	}
	leader, _, _ := l.Leader()
	reply := &rowraftv1.StatusReply{Map: rpc.MapToProto(m), Jobs: s.machine.jobStatuses(), ExpectedServers: uint32(s.opts.Servers)}
	for _, n := range m.Nodes {
		alive := s.liveness(n.ID)
		reply.Nodes = append(reply.Nodes, &rowraftv1.NodeStatus{
			Node: rpc.NodeToProto(n), State: alive.state, SinceHeartbeatNs: uint64(alive.silence), InStateNs: uint64(alive.inState),
			Replicas: alive.beat.replicas, MetadataLeader: n.ID == leader,
			Stopping: alive.beat.stopping, Version: alive.beat.version, UptimeNs: uint64(alive.beat.uptime),
		})
	}
	reply.ReplaceAfterNs = uint64(max(s.opts.ReplaceAfter, 0))
	reply.Problems = append(s.problems(m, reply.Nodes), s.policyProblems()...)
	s.addMoves(reply)
	s.addOperations(m, reply)
	s.addTrainers(reply)
	return reply, nil
}

func stateAfter(silence time.Duration) string {
	switch {
	case silence >= DownAfter:
		return stateDown
	case silence >= SuspectAfter:
		return stateSuspect
	}
	return stateUp
}

// waitingFor says what a cluster without shards waits for.
func (s *Scheduler) waitingFor() string {
	n := 0
	if m := s.view.Map(); m != nil {
		n = len(m.Servers())
	}
	if n < s.opts.Servers {
		return fmt.Sprintf("%d of %d servers have registered", n, s.opts.Servers)
	}
	return "they are being made"
}

// problems lists what is wrong, one sentence each.
func (s *Scheduler) problems(m *clustermap.Map, nodes []*rowraftv1.NodeStatus) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if len(m.Shards) == 0 {
		add("The cluster has no shards yet: %s.", s.waitingFor())
	}
	byNode := make(map[rowraft.NodeID]*rowraftv1.NodeStatus, len(nodes))
	for _, n := range nodes {
		byNode[rowraft.NodeID(n.Node.Id)] = n
		if n.State != stateUp {
			add("Server %s at %s is %s, with %s: its last heartbeat came %v ago.", nodeLabel(n.Node), n.Node.Addr, n.State,
				held(m, n.Node.Id), time.Duration(n.SinceHeartbeatNs).Round(100*time.Millisecond))
		}
	}
	for _, sh := range m.Shards {
		out = append(out, shardProblems(sh, byNode)...)
	}
	if n := len(m.Shards); n > 0 {
		if r := len(m.Shards[0].Replicas); r < ReplicasPerShard {
			add("Data is not safe: %d replica(s) per shard, because the cluster was made with fewer than %d servers.", r, ReplicasPerShard)
		}
		for _, t := range m.Tables {
			if missing := s.shardsWithout(m, t); len(missing) > 0 {
				add("Table %s is not yet known to be in shard(s) %s; the scheduler is driving it there.", t.Name, strings.Join(missing, ", "))
			}
		}
	}
	return out
}

func (s *Scheduler) shardsWithout(m *clustermap.Map, t rowraft.Schema) []string {
	var missing []string
	for _, sh := range m.Shards {
		if len(s.notEnsured(sh.ID, []rowraft.Schema{t})) > 0 {
			missing = append(missing, fmt.Sprint(sh.ID))
		}
	}
	return missing
}

// shardProblems looks at one shard through the last heartbeats of its nodes.
func shardProblems(sh clustermap.Shard, nodes map[rowraft.NodeID]*rowraftv1.NodeStatus) []string {
	var out []string
	add := func(format string, args ...any) {
		out = append(out, fmt.Sprintf("Shard %d: ", sh.ID)+fmt.Sprintf(format, args...))
	}
	var leader *rowraftv1.ReplicaStatus
	for _, r := range sh.Replicas {
		n := nodes[r.Node]
		if st := replicaOf(n, r.ID); st.GetRole() == roleLeader && n.State == stateUp && (leader == nil || st.Term > leader.Term) {
			leader = st
		}
	}
	if leader == nil {
		add("no leader has reported; its rows cannot be pulled or pushed until there is one.")
	}
	for _, r := range sh.Replicas {
		n := nodes[r.Node]
		if n == nil {
			add("the replica on %s is unreachable.", r.Node)
			continue
		}
		if n.State != stateUp {
			continue // said of the server, once for all its replicas
		}
		st := replicaOf(n, r.ID)
		switch {
		case st == nil:
			add("the replica on %s has not reported yet.", nodeLabel(n.Node))
		case st.Fenced != "":
			add("replica hash mismatch (critical): the replica on %s is fenced, it serves nothing and has no vote: %s.", nodeLabel(n.Node), strings.TrimSuffix(st.Fenced, "."))
		case st.DividedIndex != 0:
			add("replica hash mismatch (critical): no majority of its replicas has the same rows at index %d, so nobody serves it (seen by %s).", st.DividedIndex, nodeLabel(n.Node))
		case st.Error != "" || st.Role == roleStopped:
			add("the replica on %s has stopped: %s.", nodeLabel(n.Node), strings.TrimSuffix(st.Error, "."))
		case leader != nil && leader.CommitIndex > st.AppliedIndex+maxLag:
			add("the replica on %s trails the leader by %d entries.", nodeLabel(n.Node), leader.CommitIndex-st.AppliedIndex)
		}
	}
	return out
}

func replicaOf(n *rowraftv1.NodeStatus, id rowraft.ReplicaID) *rowraftv1.ReplicaStatus {
	for _, r := range n.GetReplicas() {
		if r.GetReplicaId() == string(id) {
			return r
		}
	}
	return nil
}

// held says how many replicas the map gives a node.
func held(m *clustermap.Map, node string) string {
	n := 0
	for _, sh := range m.Shards {
		for _, r := range sh.Replicas {
			if string(r.Node) == node {
				n++
			}
		}
	}
	if n == 1 {
		return "the replica it holds"
	}
	return fmt.Sprintf("the %d replicas it holds", n)
}

// nodeLabel is what people call a node: its name, or its id if it has none.
func nodeLabel(n *rowraftv1.Node) string {
	if n.GetName() != "" {
		return n.GetName()
	}
	return n.GetId()
}
