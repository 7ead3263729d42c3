package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/diagnosis"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// Hello returns the identity, the addresses and the founders of this server. It needs no member of the Raft group, so a
// server can call it before the cluster exists. It refuses a caller of another cluster.
func (s *Scheduler) Hello(_ context.Context, req *rowraftv1.HelloRequest) (*rowraftv1.HelloReply, error) {
	id := s.opts.Identity.Identity()
	if err := identity.CheckCluster(id.Cluster, rowraft.ClusterID(req.GetClusterId())); err != nil {
		return nil, fmt.Errorf("server %s at %s: %w", id.Node, s.opts.Self.Addr, err)
	}
	self := s.opts.Self
	reply := &rowraftv1.HelloReply{
		ClusterId: string(id.Cluster), NodeId: string(id.Node), Addr: self.Addr, PeerAddr: self.PeerAddr,
		NodeName:  cmp.Or(self.Name, id.Name),
		Scheduler: self.Scheduler, Version: s.opts.Version, Join: sortedCopy(s.opts.Join),
	}
	for _, f := range id.Founders {
		reply.Founders = append(reply.Founders, &rowraftv1.Node{Id: string(f.Node), Name: f.Name, Addr: f.Addr,
			PeerAddr: f.PeerAddr, Scheduler: true})
	}
	if m := s.view.Map(); m != nil {
		for _, n := range m.Nodes {
			if n.Scheduler {
				reply.Schedulers = append(reply.Schedulers, n.Addr)
			}
		}
	}
	if l := s.log.Load(); l != nil {
		if node, _, _ := (*l).Leader(); node != "" {
			reply.SchedulerLeader = s.addrOf(node)
		}
	}
	return reply, nil
}

func sortedCopy(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return out
}

// GetMap returns the newest map of this server. If the request names a known version, GetMap waits for a newer one, for
// at most WaitNs and maxMapWait.
func (s *Scheduler) GetMap(ctx context.Context, req *rowraftv1.GetMapRequest) (*rowraftv1.GetMapReply, error) {
	known := rowraft.MapVersion(req.GetKnownVersion())
	if m := s.view.Map(); m != nil && req.GetClusterId() != "" && req.GetClusterId() != string(m.Cluster) {
		known = 0
	}
	ctx, cancel := context.WithTimeout(ctx, min(time.Duration(min(req.GetWaitNs(), uint64(maxMapWait))), maxMapWait))
	defer cancel()
	reply := &rowraftv1.GetMapReply{}
	if m := s.view.Wait(ctx, known); m != nil {
		reply.Map = rpc.MapToProto(m)
	}
	for _, h := range s.hints() {
		reply.Leaders = append(reply.Leaders, &rowraftv1.LeaderHint{Shard: uint32(h.Shard), Node: string(h.Node),
			Term: uint64(h.Term)})
	}
	return reply, nil
}

// RegisterNode adds a server to the map or updates its addresses. A server without a name keeps the one that it has in
// the map, or gets a free one.
func (s *Scheduler) RegisterNode(ctx context.Context,
	req *rowraftv1.RegisterNodeRequest) (*rowraftv1.RegisterNodeReply, error) {
	if err := s.checkMember(req.GetClusterId(), req.GetNode().GetId()); err != nil {
		return nil, err
	}
	l, _, err := s.leading()
	if err != nil {
		return nil, err
	}
	if err := s.hear(rowraft.NodeID(req.GetNode().GetId()), diagnosis.NodeLabel(req.GetNode()),
		announced(req.GetFormatVersion())); err != nil {
		return nil, err
	}
	if !req.GetNode().GetNoShards() { // the group decides whether the node is a member, not the request
		now, err := l.Members()
		if err != nil {
			return nil, fmt.Errorf("register server %s: %w", req.GetNode().GetId(), err)
		}
		req = proto.CloneOf(req)
		req.Node.Scheduler = now.HasVoter(rowraft.NodeID(req.Node.Id))
	}
	if req.GetNode().GetName() == "" {
		return s.registerUnnamed(ctx, req.GetNode())
	}
	err = s.putNode(ctx, req.GetNode())
	if rowraft.CodeOf(err) == rowraft.CodeAlreadyExists {
		taken, terr := s.placeLoop.takeName(ctx, req.GetNode())
		if err = errors.Join(err, terr); taken && terr == nil {
			err = s.putNode(ctx, req.GetNode())
		}
	}
	return s.endRegister(req.GetNode(), err)
}

// registerUnnamed registers a server under the name that the map has for it, or under a free one.
func (s *Scheduler) registerUnnamed(ctx context.Context, n *rowraftv1.Node) (*rowraftv1.RegisterNodeReply, error) {
	n = proto.CloneOf(n)
	for tries := 0; ; tries++ {
		n.Name = freeName(s.view.Map(), n)
		err := s.putNode(ctx, n)
		if rowraft.CodeOf(err) == rowraft.CodeAlreadyExists && tries < meta.MaxNodes {
			continue // another server that registered at this moment has got the name
		}
		return s.endRegister(n, err)
	}
}

// endRegister returns the reply to a registration that ended with err.
func (s *Scheduler) endRegister(n *rowraftv1.Node, err error) (*rowraftv1.RegisterNodeReply, error) {
	if err != nil {
		return nil, fmt.Errorf("register server %s at %s: %w", diagnosis.NodeLabel(n), n.GetAddr(), err)
	}
	s.tellConnected()
	s.wake()
	return &rowraftv1.RegisterNodeReply{MapVersion: s.mapVersion(), Name: n.GetName()}, nil
}

// freeName returns the name of n in the map. If it has none there, freeName returns n1, n2 … or, for a scheduler in a
// process of its own, s1, s2 …: the number after the highest one in use.
func freeName(m *clustermap.Map, n *rowraftv1.Node) string {
	if m == nil {
		m = &clustermap.Map{}
	}
	if known, ok := m.Node(rowraft.NodeID(n.GetId())); ok && known.Name != "" {
		return known.Name
	}
	prefix, highest := "n", 0
	if n.GetNoShards() {
		prefix = "s"
	}
	for _, other := range m.Nodes {
		if digits, ok := strings.CutPrefix(other.Name, prefix); ok {
			if k, err := strconv.Atoi(digits); err == nil && k < 1<<30 {
				highest = max(highest, k)
			}
		}
	}
	return prefix + strconv.Itoa(highest+1)
}

// Heartbeat stores the state of a server's replicas in the leader's memory.
func (s *Scheduler) Heartbeat(_ context.Context, req *rowraftv1.HeartbeatRequest) (*rowraftv1.HeartbeatReply, error) {
	if err := s.checkMember(req.GetClusterId(), req.GetNodeId()); err != nil {
		return nil, err
	}
	id := rowraft.NodeID(req.GetNodeId())
	if _, _, err := s.leading(); err != nil {
		return nil, err
	}
	m := s.view.Map()
	if m == nil {
		return nil, rowraft.Errorf(rowraft.CodeStarting, "the scheduler has no map yet")
	}
	n, known := m.Node(id)
	if !known {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "server %s is not registered", id)
	}
	if err := s.hear(id, diagnosis.NodeLabel(&rowraftv1.Node{Id: string(id), Name: n.Name}),
		announced(req.GetFormatVersion())); err != nil {
		return nil, err
	}
	s.soft.heard(id, req)
	s.soft.mu.Lock()
	reply := &rowraftv1.HeartbeatReply{MapVersion: uint64(m.Version), OldestServer: s.soft.oldest}
	s.soft.mu.Unlock()
	return reply, nil
}

// heard stores a heartbeat. A gap of SuspectAfter or more starts a new series.
func (s *soft) heard(id rowraft.NodeID, req *rowraftv1.HeartbeatRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := beat{
		at: s.now(), mapVersion: rowraft.MapVersion(req.GetMapVersion()), replicas: req.GetReplicas(),
		stopping: req.GetStopping(), version: req.GetVersion(), uptime: time.Duration(req.GetUptimeNs()),
		disk: req.GetDisk(), certEnds: req.GetCertificateEnds(), profile: req.GetProfile(), slowness: req.GetSlowness(),
		metaReplica:    req.GetMetadataReplica(),
		metaRolledBack: req.GetMetadataRolledBack(),
	}
	b.since = b.at
	if last, ok := s.beats[id]; ok && b.at.Sub(last.at) < SuspectAfter {
		b.since = last.since
	}
	s.beats[id] = b
}

// checkMember refuses a server of another cluster, and a server without a cluster.
func (s *Scheduler) checkMember(cluster, node string) error {
	mine := s.opts.Identity.Identity().Cluster
	switch {
	case mine == "":
		return rowraft.Errorf(rowraft.CodeStarting, "the cluster is not formed yet")
	case cluster == "" || node == "":
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "cluster id %q, server id %q: a server must say both", cluster,
			node)
	}
	if err := identity.CheckCluster(mine, rowraft.ClusterID(cluster)); err != nil {
		return fmt.Errorf("server %s: scheduler: %w", node, err)
	}
	return nil
}

// IssueIncarnation returns a number greater than every number issued before. It refuses a caller that names a job but
// is no longer a member of it (CodeSessionExpired).
func (s *Scheduler) IssueIncarnation(ctx context.Context,
	req *rowraftv1.IssueIncarnationRequest) (*rowraftv1.IssueIncarnationReply, error) {
	if n := len(req.GetClientId()); n != len(rowraft.ClientID{}) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "client id of %d bytes, want %d", n, len(rowraft.ClientID{}))
	}
	issue := &rowraftv1.MetaIssueIncarnation{}
	if req.GetJob() != "" {
		issue.Member = &rowraftv1.JobIdentity{Job: req.GetJob(), Run: req.GetRun(), Rank: req.GetRank(),
			Incarnation: req.GetIncarnation()}
	}
	c := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_IssueIncarnation{IssueIncarnation: issue}}
	inc, err := proposeResult[rowraft.Incarnation](ctx, s.group, c)
	if err != nil {
		return nil, fmt.Errorf("issue an incarnation: %w", err)
	}
	return &rowraftv1.IssueIncarnationReply{Incarnation: uint64(inc)}, nil
}

// CreateTable creates a table in all shards.
func (s *Scheduler) CreateTable(ctx context.Context,
	req *rowraftv1.CreateTableRequest) (*rowraftv1.CreateTableReply, error) {
	return s.tables.create(ctx, req)
}

// DropTable drops a table from all shards.
func (s *Scheduler) DropTable(ctx context.Context, req *rowraftv1.DropTableRequest) (*rowraftv1.DropTableReply, error) {
	return s.tables.drop(ctx, req)
}

// ChangeNode changes the intent of a server.
func (s *Scheduler) ChangeNode(ctx context.Context,
	req *rowraftv1.ChangeNodeRequest) (*rowraftv1.ChangeNodeReply, error) {
	return s.placeLoop.changeNode(ctx, req)
}
