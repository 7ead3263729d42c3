package raftstore

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
)

// Role is what a replica is in its group.
type Role string

// Roles, as in the Raft paper; RoleStopped means that raft does not run.
const (
	RoleFollower  Role = "follower"
	RoleCandidate Role = "candidate"
	RoleLeader    Role = "leader"
	RoleStopped   Role = "stopped"
)

// GroupStatus is a picture of one replica for people and metrics. Its parts are
// read one after the other, so they may not fit together exactly.
type GroupStatus struct {
	ID      string
	Replica rowraft.ReplicaID
	Backend string
	Role    Role
	Term    rowraft.Term
	Leader  rowraft.NodeID // "" if unknown
	Err     error          // why the group stopped for good

	LastIndex     rowraft.Index // in the log
	CommitIndex   rowraft.Index
	AppliedIndex  rowraft.Index // through which the machine has seen the log
	SnapshotIndex rowraft.Index

	LogBytes     int64 // in the log, as far as known since the start
	PendingBytes int64 // proposed here and not resolved
	BacklogBytes int64 // committed and not applied

	LogWrites     int64 // StoreLogs calls
	SlowLogWrites int64 // of those, longer than 100 ms
	LogReads      int64 // entries read from disk, not from memory
	Restarts      int64 // in place, by the supervisor

	Members []MemberStatus
}

// MemberStatus is one replica of a group. The last three fields are known on the
// leader only, and zero for the leader itself.
type MemberStatus struct {
	Member
	Voter       bool
	MatchIndex  rowraft.Index // highest entry known to be in its log
	LagEntries  uint64
	LastContact time.Time
}

// Status describes the replica.
func (g *Group) Status() GroupStatus {
	s := GroupStatus{
		ID: g.cfg.ID, Replica: g.cfg.Replica, Backend: g.cfg.Backend, Role: RoleStopped,
		Err:           g.Err(),
		AppliedIndex:  g.AppliedIndex(),
		SnapshotIndex: rowraft.Index(g.snapshotAt.Load()),
		LogBytes:      g.ledger.bytes(),
		BacklogBytes:  g.backlogBytes(),
		LogWrites:     g.glog.stores.Load(), SlowLogWrites: g.glog.slowStores.Load(), LogReads: g.glog.readMisses.Load(),
		Restarts: g.restarts.Load(),
	}
	n := g.run.Load()
	if n == nil {
		return s
	}
	if s.Err == nil {
		s.Role = roleOf(n.raft.State())
	}
	addr, _ := n.raft.LeaderWithID()
	s.Leader = rowraft.NodeID(addr)
	s.Term = rowraft.Term(n.raft.CurrentTerm())
	s.LastIndex = rowraft.Index(n.raft.LastIndex())
	s.CommitIndex = rowraft.Index(n.raft.CommitIndex())
	n.mu.Lock()
	s.PendingBytes = n.mu.pendingBytes
	n.mu.Unlock()
	for _, srv := range n.raft.GetConfiguration().Configuration().Servers {
		m := MemberStatus{
			Member: Member{Replica: rowraft.ReplicaID(srv.ID), Node: rowraft.NodeID(srv.Address)},
			Voter:  srv.Suffrage == raft.Voter,
		}
		if s.Role == RoleLeader && m.Replica != g.cfg.Replica {
			p, _ := n.trans.progress(srv.ID, uint64(s.Term))
			m.MatchIndex, m.LastContact = rowraft.Index(p.match), p.contact
			if m.MatchIndex < s.LastIndex {
				m.LagEntries = uint64(s.LastIndex - m.MatchIndex)
			}
		}
		s.Members = append(s.Members, m)
	}
	return s
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

// maxTransferLag is how far behind the next leader may be: raft takes no
// proposals while it catches up.
const maxTransferLag = 64

// TransferLeadership hands leadership to the voter whose log is longest, and
// returns when it took over.
//
// Errors: CodeNotLeader; CodeNoLeader when no voter is close enough behind or the
// transfer did not succeed, and then this replica usually still leads.
func (g *Group) TransferLeadership(ctx context.Context) error {
	n, err := g.running()
	if err != nil {
		return err
	}
	if n.raft.State() != raft.Leader {
		return g.notLeader(n)
	}
	target, ok := n.successor()
	if !ok {
		return rowraft.Errorf(rowraft.CodeNoLeader, "group %s: no other voter is within %d entries of the leader's log", g.cfg.ID, maxTransferLag)
	}
	n.mu.Lock()
	if n.mu.stopping || n.mu.transferring {
		n.mu.Unlock()
		return rowraft.Errorf(rowraft.CodeNoLeader, "group %s is stopping or handing over already", g.cfg.ID)
	}
	n.mu.transferring = true
	done := make(chan error, 1)
	n.reads.Go(func() {
		err := n.raft.LeadershipTransferToServer(target.ID, target.Address).Error()
		n.mu.Lock()
		n.mu.transferring = false
		n.mu.Unlock()
		done <- err
	})
	n.mu.Unlock()
	select {
	case err := <-done:
		if err != nil {
			return rowraft.Errorf(rowraft.CodeNoLeader, "group %s: transfer to replica %s: %w", g.cfg.ID, target.ID, err)
		}
		return nil
	case <-n.over:
		return rowraft.Errorf(rowraft.CodeClosing, "group %s stopped", g.cfg.ID)
	case <-ctx.Done():
		return fmt.Errorf("transfer leadership of group %s: %w", g.cfg.ID, context.Cause(ctx))
	}
}

// successor is the voter with the longest log among those that answer.
func (n *instance) successor() (best raft.Server, ok bool) {
	term, last := n.raft.CurrentTerm(), n.raft.LastIndex()
	var match uint64
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter || s.ID == raft.ServerID(n.g.cfg.Replica) {
			continue
		}
		p, known := n.trans.progress(s.ID, term)
		if known && p.match+maxTransferLag >= last && p.match >= match && time.Since(p.contact) < n.g.store.opts.Profile.Heartbeat {
			best, match, ok = s, p.match, true
		}
	}
	return best, ok
}
