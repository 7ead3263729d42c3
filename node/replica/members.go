package replica

import (
	"context"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
)

// newLeaderPoll is how often a replica that handed over the leadership looks for the next
// leader.
const newLeaderPoll = 2 * time.Millisecond

// TransferLeader hands over the leadership of a shard and returns the next leader.
func (s *replicaService) TransferLeader(ctx context.Context,
	req *rowraftv1.TransferLeaderRequest) (*rowraftv1.TransferLeaderReply, error) {
	r, err := s.h.replicaFor(req.Shard, anyMapVersion, 0)
	if err != nil {
		return nil, err
	}
	if err := r.mustLead(); err != nil {
		return nil, err
	}
	var to rowraft.ReplicaID
	if req.ToNode != "" {
		node, err := s.h.Map().FindNode(req.ToNode)
		if err != nil {
			return nil, err
		}
		if to, err = replicaOn(r.group, r.shard, node.ID); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	if err := r.group.TransferLeadership(ctx, to); err != nil {
		return nil, ShardError(r.shard, err)
	}
	node, term, err := nextLeader(ctx, r.group, r.shard, s.h.opts.Node, to)
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	r.log.Info("handed over the lead", "to", string(node), "term", uint64(term), "took", took.String())
	return &rowraftv1.TransferLeaderReply{FromNode: string(s.h.opts.Node), ToNode: string(node), Term: uint64(term),
		TookNs: uint64(took)}, nil
}

// replicaOn returns the id of the group's member on node.
func replicaOn(g *raftstore.Group, shard rowraft.ShardID, node rowraft.NodeID) (rowraft.ReplicaID, error) {
	m, err := g.Members()
	if err != nil {
		return "", err
	}
	for _, member := range m.Members {
		if member.Node == node {
			return member.Replica, nil
		}
	}
	return "", rowraft.Errorf(rowraft.CodePrecondition, "shard %d has no replica on server %s", shard, node)
}

// nextLeader waits until the group has a leader other than the replica on self, or that one if to is
// that replica: then nothing was handed over. An empty to is any replica.
func nextLeader(ctx context.Context, g *raftstore.Group, shard rowraft.ShardID, self rowraft.NodeID,
	to rowraft.ReplicaID) (rowraft.NodeID, rowraft.Term, error) {
	tick := time.NewTicker(newLeaderPoll)
	defer tick.Stop()
	for {
		// A leader that has just stepped down may still name itself.
		if node, term, me := g.Leader(); node != "" && me == (node == self) {
			if at, err := replicaOn(g, shard, node); err == nil && to != "" && at != to {
				return "", 0, rowraft.Errorf(rowraft.CodeNoLeader,
					"shard %d: server %s leads, not the one that the leadership was handed to", shard, node)
			}
			return node, term, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", 0, rowraft.Errorf(rowraft.CodeNoLeader,
				"shard %d: this server handed over the leadership, and no other one leads yet: %w", shard, context.Cause(ctx))
		}
	}
}

// Members returns the members of a shard's group, as its leader sees them. It first proves that
// this replica leads: the scheduler may delete a replica that the list lacks, so an old list
// must not be returned.
func (s *replicaService) Members(ctx context.Context, req *rowraftv1.MembersRequest) (*rowraftv1.MembersReply, error) {
	r, err := s.leaderOf(req.Shard)
	if err != nil {
		return nil, err
	}
	if _, err := r.confirm(ctx); err != nil {
		return nil, err
	}
	m, err := r.group.Members()
	if err != nil {
		return nil, err
	}
	return &rowraftv1.MembersReply{ConfigIndex: uint64(m.Index), Members: membersToProto(&m)}, nil
}

// ChangeMembers makes one change of the members, compared with the configuration index that the
// caller has read from Members.
func (s *replicaService) ChangeMembers(ctx context.Context,
	req *rowraftv1.ChangeMembersRequest) (*rowraftv1.ChangeMembersReply, error) {
	r, err := s.leaderOf(req.Shard)
	if err != nil {
		return nil, err
	}
	prev := rowraft.Index(req.PrevIndex)
	var m raftstore.Membership
	switch c := req.Change.(type) {
	case *rowraftv1.ChangeMembersRequest_AddLearner:
		m, err = r.group.AddLearner(ctx, raftstore.Member{Replica: rowraft.ReplicaID(c.AddLearner.GetId()),
			Node: rowraft.NodeID(c.AddLearner.GetNode())}, prev)
	case *rowraftv1.ChangeMembersRequest_Promote:
		m, err = r.group.Promote(ctx, rowraft.ReplicaID(c.Promote), prev)
	case *rowraftv1.ChangeMembersRequest_Remove:
		m, err = r.group.Remove(ctx, rowraft.ReplicaID(c.Remove), prev)
	default:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "shard %d: change of the members without a change", req.Shard)
	}
	if err != nil {
		return nil, ShardError(r.shard, err)
	}
	return &rowraftv1.ChangeMembersReply{ConfigIndex: uint64(m.Index), Members: membersToProto(&m)}, nil
}

// leaderOf returns the replica of a shard if it leads.
func (s *replicaService) leaderOf(shard uint32) (*replica, error) {
	r, err := s.h.replicaFor(shard, anyMapVersion, 0)
	if err != nil {
		return nil, err
	}
	return r, r.mustLead()
}

func membersToProto(m *raftstore.Membership) []*rowraftv1.MemberStatus {
	out := make([]*rowraftv1.MemberStatus, len(m.Members))
	for i, s := range m.Members {
		out[i] = &rowraftv1.MemberStatus{
			ReplicaId: string(s.Replica), Node: string(s.Node), Voter: s.Voter,
			MatchIndex: uint64(s.MatchIndex), LagEntries: s.LagEntries, CaughtUp: s.CaughtUp,
		}
	}
	return out
}
