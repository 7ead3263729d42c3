package raftstore

import (
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
)

// Role is the role of a replica in its group.
type Role string

// Roles as in the Raft paper. RoleStopped means that raft does not run.
const (
	RoleFollower  Role = "follower"
	RoleCandidate Role = "candidate"
	RoleLeader    Role = "leader"
	RoleStopped   Role = "stopped"
)

// GroupStatus describes one replica, for users and metrics. Its fields are read one after the other, so they may not
// belong to exactly the same moment.
type GroupStatus struct {
	Replica rowraft.ReplicaID
	Role    Role
	Term    rowraft.Term
	Leader  rowraft.NodeID // "" if unknown
	Err     error          // error that stopped the group forever

	LastIndex     rowraft.Index // in the log
	CommitIndex   rowraft.Index
	AppliedIndex  rowraft.Index // through which the machine has seen the log
	SnapshotIndex rowraft.Index

	SnapshotAt time.Time // when the newest snapshot was written here; zero: none, or unknown
	WrittenAt  time.Time // when the log was last written; zero: not since the start

	LogBytes     int64 // as far as known since the start
	PendingBytes int64 // proposed here and not resolved
	BacklogBytes int64 // committed and not applied

	Heartbeat time.Duration // timeout in use by raft; 0: raft does not run
	LogWrites int64         // StoreLogs calls
	Restarts  int64         // in place, by the supervisor
	Installs  int64         // snapshots from the leader that replaced older state

	Members []MemberStatus
}

// MemberStatus is one replica of a group. The fields after Voter are known only on the leader. The leader's own entry
// has CaughtUp set and the others zero.
type MemberStatus struct {
	Member
	Voter       bool
	MatchIndex  rowraft.Index // highest entry known to be in its log
	LagEntries  uint64
	LagBytes    int64
	CaughtUp    bool // see Group.Members
	LastContact time.Time
}

// Status describes the replica.
func (g *Group) Status() GroupStatus {
	s := GroupStatus{
		Replica: g.cfg.Replica, Role: RoleStopped,
		Err:           g.Err(),
		AppliedIndex:  g.AppliedIndex(),
		SnapshotIndex: rowraft.Index(g.snapshots.at.Load()),
		LogBytes:      g.ledger.Bytes(),
		BacklogBytes:  g.backlogBytes(),
		LogWrites:     g.glog.Writes(),
		Restarts:      g.restarts.Load(), Installs: g.installs.Load(),
	}
	if at := g.snapshots.taken.Load(); at != 0 {
		s.SnapshotAt = time.Unix(0, at)
	}
	s.WrittenAt = g.glog.WrittenAt()
	n := g.run.Load()
	if n == nil {
		return s
	}
	if s.Err == nil {
		s.Role = roleOf(n.raft.State())
	}
	addr, _ := n.raft.LeaderWithID()
	s.Leader = rowraft.NodeID(addr)
	s.Heartbeat = n.heartbeatTimeout()
	s.Term = rowraft.Term(n.raft.CurrentTerm())
	s.LastIndex = rowraft.Index(n.raft.LastIndex())
	s.CommitIndex = rowraft.Index(n.raft.CommitIndex())
	n.mu.Lock()
	s.PendingBytes = n.mu.pendingBytes
	n.mu.Unlock()
	s.Members = n.members(n.raft.GetConfiguration().Configuration().Servers)
	return s
}

// LastIndex returns the index of the newest entry of this replica's log; 0 while raft does not run.
func (g *Group) LastIndex() rowraft.Index {
	n := g.run.Load()
	if n == nil {
		return 0
	}
	return rowraft.Index(n.raft.LastIndex())
}

func roleOf(s raft.RaftState) Role {
	switch s {
	case raft.Follower:
		return RoleFollower
	case raft.Candidate:
		return RoleCandidate
	case raft.Leader:
		return RoleLeader
	}
	return RoleStopped
}
