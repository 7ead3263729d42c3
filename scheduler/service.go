package scheduler

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// Hello returns the identity, the addresses and the founders of this server. It needs no metadata group, so a server
// can call it before the cluster exists. It refuses a caller of another cluster.
func (s *Scheduler) Hello(_ context.Context, req *rowraftv1.HelloRequest) (*rowraftv1.HelloReply, error) {
	id := s.opts.Identity.Identity()
	if err := identity.CheckCluster(id.Cluster, rowraft.ClusterID(req.GetClusterId())); err != nil {
		return nil, fmt.Errorf("node %s at %s: %w", id.Node, s.opts.Self.Addr, err)
	}
	self := s.opts.Self
	reply := &rowraftv1.HelloReply{
		ClusterId: string(id.Cluster), NodeId: string(id.Node), Addr: self.Addr, PeerAddr: self.PeerAddr, NodeName: self.Name,
		Scheduler: self.Scheduler, Version: s.opts.Version, Join: sortedCopy(s.opts.Join),
	}
	for _, f := range id.Founders {
		reply.Founders = append(reply.Founders, &rowraftv1.Node{Id: string(f.Node), Name: f.Name, Addr: f.Addr, PeerAddr: f.PeerAddr, Scheduler: true})
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
		reply.Leaders = append(reply.Leaders, &rowraftv1.LeaderHint{Shard: uint32(h.Shard), Node: string(h.Node), Term: uint64(h.Term)})
	}
	return reply, nil
}

// RegisterNode adds a server to the map or updates its addresses.
func (s *Scheduler) RegisterNode(ctx context.Context, req *rowraftv1.RegisterNodeRequest) (*rowraftv1.RegisterNodeReply, error) {
	if err := s.checkMember(req.GetClusterId(), req.GetNode().GetId()); err != nil {
		return nil, err
	}
	l, _, err := s.leading()
	if err != nil {
		return nil, err
	}
	if err := s.hear(rowraft.NodeID(req.GetNode().GetId()), nodeLabel(req.GetNode()), announced(req.GetFormatVersion())); err != nil {
		return nil, err
	}
	if !req.GetNode().GetNoShards() { // the group decides whether the node is a member, not the request
		now, err := l.Members()
		if err != nil {
			return nil, fmt.Errorf("register node %s: %w", req.GetNode().GetId(), err)
		}
		req = proto.CloneOf(req)
		req.Node.Scheduler = now.HasVoter(rowraft.NodeID(req.Node.Id))
	}
	err = s.putNode(ctx, req.GetNode())
	if rowraft.CodeOf(err) == rowraft.CodeAlreadyExists {
		taken, terr := s.takeName(ctx, req.GetNode())
		if err = errors.Join(err, terr); taken && terr == nil {
			err = s.putNode(ctx, req.GetNode())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("register node %s: %w", req.GetNode().GetId(), err)
	}
	s.tellConnected()
	s.wake()
	return &rowraftv1.RegisterNodeReply{MapVersion: s.mapVersion()}, nil
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
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "node %s is not registered", id)
	}
	if err := s.hear(id, nodeLabel(&rowraftv1.Node{Id: string(id), Name: n.Name}), announced(req.GetFormatVersion())); err != nil {
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
		disk: req.GetDisk(), certEnds: req.GetCertificateEnds(), profile: req.GetProfile(), slowness: req.GetSlowness(), metaReplica: req.GetMetadataReplica(),
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
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "cluster id %q, node id %q: a server must say both", cluster, node)
	}
	if err := identity.CheckCluster(mine, rowraft.ClusterID(cluster)); err != nil {
		return fmt.Errorf("node %s: scheduler: %w", node, err)
	}
	return nil
}

func (s *Scheduler) mapVersion() uint64 {
	if m := s.view.Map(); m != nil {
		return uint64(m.Version)
	}
	return 0
}

// CreateTable logs a table and returns after every shard has created it. The scheduler continues after an error: the
// table is logged, and the control loop creates it in the remaining shards.
func (s *Scheduler) CreateTable(ctx context.Context, req *rowraftv1.CreateTableRequest) (*rowraftv1.CreateTableReply, error) {
	schema := rpc.SchemaFromProto(req.GetTable())
	if schema.ID != 0 {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: the id is chosen by the scheduler, %d was given", schema.Name, schema.ID)
	}
	if err := schema.Validate(); err != nil {
		return nil, err
	}
	if err := rpc.CallerOf(ctx).CheckTable(schema.Name); err != nil {
		return nil, err
	}
	if _, _, err := s.leading(); err != nil {
		return nil, err
	}
	m := s.view.Map()
	if m == nil || len(m.Shards) == 0 {
		return nil, rowraft.Errorf(rowraft.CodeStarting, "table %s: the cluster has no shards yet: %s", schema.Name, s.waitingFor())
	}
	if _, hasDeadline := ctx.Deadline(); !hasDeadline {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, createTableTimeout)
		defer cancel()
	}
	var err error
	if schema.ID, err = newTableID(); err != nil {
		return nil, err
	}
	c := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateTable{CreateTable: &rowraftv1.MetaCreateTable{
		Table: rpc.SchemaToProto(&schema), IfNotExists: req.GetIfNotExists(),
	}}}
	result, err := proposeFor[meta.TableResult](ctx, s, c)
	if err != nil {
		return nil, fmt.Errorf("create table: %w", err)
	}
	if err := s.ensureTables(ctx, []rowraft.Schema{result.Schema}); err != nil {
		err = fmt.Errorf("table %s is created, but not yet in every shard; the scheduler goes on with it: %w", schema.Name, err)
		if rowraft.CodeOf(err) == rowraft.CodeNotLeader { // NotLeader would mean that nothing was created
			err = rowraft.Errorf(rowraft.CodeLeadershipLost, "%w", err)
		}
		return nil, err
	}
	return &rowraftv1.CreateTableReply{Table: rpc.SchemaToProto(&result.Schema), Created: result.Created, MapVersion: s.mapVersion()}, nil
}

func newTableID() (rowraft.TableID, error) {
	for {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return 0, rowraft.Errorf(rowraft.CodeInternal, "table id: %w", err)
		}
		if id := rowraft.TableID(binary.LittleEndian.Uint64(b[:])).Origin(); id != 0 {
			return id, nil
		}
	}
}

// IssueIncarnation returns a number greater than every number issued before. It refuses a caller that names a job but
// is no longer a member of it (CodeSessionExpired).
func (s *Scheduler) IssueIncarnation(ctx context.Context, req *rowraftv1.IssueIncarnationRequest) (*rowraftv1.IssueIncarnationReply, error) {
	if n := len(req.GetClientId()); n != len(rowraft.ClientID{}) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "client id of %d bytes, want %d", n, len(rowraft.ClientID{}))
	}
	issue := &rowraftv1.MetaIssueIncarnation{}
	if req.GetJob() != "" {
		issue.Member = &rowraftv1.JobIdentity{Job: req.GetJob(), Run: req.GetRun(), Rank: req.GetRank(), Incarnation: req.GetIncarnation()}
	}
	c := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_IssueIncarnation{IssueIncarnation: issue}}
	inc, err := proposeFor[rowraft.Incarnation](ctx, s, c)
	if err != nil {
		return nil, fmt.Errorf("issue an incarnation: %w", err)
	}
	return &rowraftv1.IssueIncarnationReply{Incarnation: uint64(inc)}, nil
}

// hints merges the leaders from the heartbeats and from this server's own replicas. The hint with the highest term
// wins.
func (s *Scheduler) hints() []LeaderHint {
	best := make(map[rowraft.ShardID]LeaderHint)
	add := func(h LeaderHint) {
		if old, ok := best[h.Shard]; h.Node != "" && (!ok || h.Term > old.Term) {
			best[h.Shard] = h
		}
	}
	s.soft.mu.Lock()
	for node, b := range s.soft.beats {
		for _, r := range b.replicas {
			h := LeaderHint{Shard: rowraft.ShardID(r.GetShard()), Node: rowraft.NodeID(r.GetLeaderNode()), Term: rowraft.Term(r.GetTerm())}
			if r.GetRole() == roleLeader {
				h.Node = node
			}
			add(h)
		}
	}
	s.soft.mu.Unlock()
	if s.opts.Hints != nil {
		for _, h := range s.opts.Hints() {
			add(h)
		}
	}
	out := make([]LeaderHint, 0, len(best))
	for _, h := range best {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b LeaderHint) int { return cmp.Compare(a.Shard, b.Shard) })
	return out
}
