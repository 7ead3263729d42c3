package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
)

// How replicas join and leave
//
// A new replica joins as a learner (AddLearner): it gets the log and has no vote, so it cannot delay a commit. When it
// has caught up, it becomes a voter (Promote). Then the old replica is removed (Remove), after it has transferred the
// leadership if it leads. Each step names the index of the configuration that its caller has read, and is refused if
// another change came between. hashicorp/raft alone makes a voter of an empty replica at once, and removes a replica
// without which the others cannot commit.

const (
	// maxTransferLag is the number of entries by which a replica that counts as caught up may be behind. Raft accepts
	// no proposals while the next leader receives them.
	maxTransferLag = 64
	// maxCaughtUpBytes is the same limit in bytes: some milliseconds on a network.
	maxCaughtUpBytes = 4 << 20
	// changeEnqueue bounds the wait until an earlier change is committed.
	changeEnqueue = time.Second
	// changePoll is the interval at which followChange checks whether raft has appended a change.
	changePoll = time.Millisecond
)

// Membership is a committed configuration of a group.
type Membership struct {
	Index   rowraft.Index // of the log entry with this configuration; a change names it as prev
	Members []MemberStatus
}

// HasVoter reports whether a replica on node is a voter.
func (m *Membership) HasVoter(node rowraft.NodeID) bool {
	return slices.ContainsFunc(m.Members, func(s MemberStatus) bool { return s.Node == node && s.Voter })
}

// Voters returns the number of voters.
func (m *Membership) Voters() (n int) {
	for _, s := range m.Members {
		if s.Voter {
			n++
		}
	}
	return n
}

// Find returns the member with the replica ID.
func (m *Membership) Find(id rowraft.ReplicaID) (MemberStatus, bool) {
	i := slices.IndexFunc(m.Members, func(s MemberStatus) bool { return s.Replica == id })
	if i < 0 {
		return MemberStatus{}, false
	}
	return m.Members[i], true
}

// Members returns the newest committed configuration that this replica has applied. On the
// leader each member has the end of its log, as far as the leader knows. A member is caught up if
// an answer of this term, at most two heartbeat timeouts old, proved that its log ends at most 64
// entries and 4 MiB before the leader's.
//
// Errors: CodeStarting before the first configuration is applied; CodeClosing.
func (g *Group) Members() (Membership, error) {
	n, err := g.running()
	if err != nil {
		return Membership{}, err
	}
	return n.membership()
}

func (n *instance) membership() (Membership, error) {
	c := n.g.fsm.members.Load()
	if c == nil {
		return Membership{}, rowraft.Errorf(rowraft.CodeStarting,
			"group %s: this replica has not applied a configuration yet", n.g.cfg.ID)
	}
	return Membership{Index: rowraft.Index(c.index), Members: n.members(c.servers)}, nil
}

// members adds the leader's knowledge to a list of servers.
func (n *instance) members(servers []raft.Server) []MemberStatus {
	leads := n.raft.State() == raft.Leader
	term, last := n.raft.CurrentTerm(), n.raft.LastIndex()
	out := make([]MemberStatus, len(servers))
	for i, srv := range servers {
		m := &out[i]
		m.Member = Member{Replica: rowraft.ReplicaID(srv.ID), Node: rowraft.NodeID(srv.Address)}
		m.Voter = srv.Suffrage == raft.Voter
		switch {
		case !leads:
		case m.Replica == n.g.cfg.Replica:
			m.CaughtUp = true
		default:
			p, known := n.trans.Progress(srv.ID, term)
			m.MatchIndex, m.LastContact = rowraft.Index(p.Match), p.Contact
			if p.Match < last {
				m.LagEntries, m.LagBytes = last-p.Match, n.g.ledger.Between(p.Match, last)
			}
			m.CaughtUp = known && time.Since(p.Proved) < 2*n.heartbeatTimeout() &&
				m.LagEntries <= maxTransferLag && m.LagBytes <= maxCaughtUpBytes
		}
	}
	return out
}

// AddLearner adds a replica that receives the log and has no vote. prev is the Index of the Membership that the caller
// has read. AddLearner returns the membership after the change. Adding a member again changes nothing.
//
// Errors without effect: CodeNotLeader; CodeNoLeader, CodeStarting, CodeClosing; CodePrecondition if the configuration
// is not that of prev, if another change or a transfer is running, or if the node has a replica of the group;
// CodeInvalidArgument. After CodeLeadershipLost and CodeDeadline the outcome is unknown: read Members.
func (g *Group) AddLearner(ctx context.Context, m Member, prev rowraft.Index) (Membership, error) {
	if m.Replica == "" || m.Node == "" {
		return Membership{}, rowraft.Errorf(rowraft.CodeInvalidArgument, "group %s: learner %+v: want a replica and a server",
			g.cfg.ID, m)
	}
	return g.change(ctx, prev, fmt.Sprintf("add replica %s on server %s as a learner", m.Replica, m.Node),
		func(now *Membership) (bool, error) {
			if have, ok := now.Find(m.Replica); ok {
				if have.Voter || have.Node != m.Node {
					return false, rowraft.Errorf(rowraft.CodePrecondition, "it is a member on server %s already (voter: %v)",
						have.Node, have.Voter)
				}
				return true, nil
			}
			if i := slices.IndexFunc(now.Members, func(s MemberStatus) bool { return s.Node == m.Node }); i >= 0 {
				return false, rowraft.Errorf(rowraft.CodePrecondition, "the server has replica %s of the group",
					now.Members[i].Replica)
			}
			return false, nil
		}, func(r *raft.Raft) raft.IndexFuture {
			return r.AddNonvoter(raft.ServerID(m.Replica), raft.ServerAddress(m.Node), uint64(prev), changeEnqueue)
		})
}

// Promote makes a learner a voter. Errors as for AddLearner; CodePrecondition also if the learner has not caught up, or
// if no majority of the voters, the learner included, has.
func (g *Group) Promote(ctx context.Context, id rowraft.ReplicaID, prev rowraft.Index) (Membership, error) {
	var node rowraft.NodeID
	return g.change(ctx, prev, fmt.Sprintf("make replica %s a voter", id), func(now *Membership) (bool, error) {
		m, ok := now.Find(id)
		switch {
		case !ok:
			return false, rowraft.Errorf(rowraft.CodePrecondition, "it is not a member of the group")
		case m.Voter:
			return true, nil
		case !m.CaughtUp:
			return false, rowraft.Errorf(rowraft.CodePrecondition,
				"it has not caught up: its log is known up to entry %d, %d behind", m.MatchIndex, m.LagEntries)
		}
		node = m.Node
		return false, now.quorumOf(func(s *MemberStatus) bool { return s.Voter || s.Replica == id })
	}, func(r *raft.Raft) raft.IndexFuture {
		return r.AddVoter(raft.ServerID(id), raft.ServerAddress(node), uint64(prev), changeEnqueue)
	})
}

// Remove removes a replica from the group. Its ID must never be used again. Errors as for AddLearner; CodePrecondition
// also if it is this replica, which leads, or if no majority of the remaining voters has caught up. Removing a replica
// that is not a member changes nothing.
func (g *Group) Remove(ctx context.Context, id rowraft.ReplicaID, prev rowraft.Index) (Membership, error) {
	return g.change(ctx, prev, fmt.Sprintf("remove replica %s", id), func(now *Membership) (bool, error) {
		m, ok := now.Find(id)
		switch {
		case !ok:
			return true, nil
		case id == g.cfg.Replica:
			return false, rowraft.Errorf(rowraft.CodePrecondition, "it leads the group: transfer the leadership first")
		case !m.Voter:
			return false, nil
		}
		return false, now.quorumOf(func(s *MemberStatus) bool { return s.Voter && s.Replica != id })
	}, func(r *raft.Raft) raft.IndexFuture {
		return r.RemoveServer(raft.ServerID(id), uint64(prev), changeEnqueue)
	})
}

// quorumOf refuses a set of voters without a majority that has caught up: such a set could not commit the next entry at
// once.
func (m *Membership) quorumOf(voter func(*MemberStatus) bool) error {
	voters, good := 0, 0
	for i := range m.Members {
		if s := &m.Members[i]; voter(s) {
			voters++
			if s.CaughtUp {
				good++
			}
		}
	}
	if good < voters/2+1 {
		return rowraft.Errorf(rowraft.CodePrecondition,
			"only %[2]d of the %[1]d voters after the change have caught up, and %[3]d are needed to commit", voters, good,
			voters/2+1)
	}
	return nil
}

// change makes one change of the members. check compares it with the present membership; done means that the change is
// already made. start requests it from raft.
func (g *Group) change(ctx context.Context, prev rowraft.Index, what string,
	check func(*Membership) (done bool, err error), start func(*raft.Raft) raft.IndexFuture) (Membership, error) {
	wrap := func(err error) error { return fmt.Errorf("group %s: %s: %w", g.cfg.ID, what, err) }
	n, err := g.running()
	if err != nil {
		return Membership{}, wrap(err)
	}
	if n.raft.State() != raft.Leader {
		return Membership{}, g.notLeader(n)
	}
	if err := n.beginChange(); err != nil {
		return Membership{}, wrap(err)
	}
	ended := func() {
		n.mu.Lock()
		n.mu.changing = false
		n.mu.Unlock()
	}
	now, err := n.membership()
	if err == nil && (prev == 0 || now.Index != prev) {
		err = rowraft.Errorf(rowraft.CodePrecondition,
			"it was decided on configuration %d, the group has configuration %d: read Members again", prev, now.Index)
	}
	done := false
	if err == nil {
		done, err = check(&now)
	}
	if done || err != nil {
		ended()
		if err != nil {
			return Membership{}, wrap(err)
		}
		return now, nil
	}
	result := make(chan error, 1)
	var index uint64
	n.mu.Lock()
	if n.mu.stopping {
		n.mu.changing = false
		n.mu.Unlock()
		return Membership{}, wrap(errClosing)
	}
	n.reads.Go(func() {
		before := n.raft.GetConfiguration().Configuration().Servers
		f := start(n.raft)
		resolved := make(chan struct{})
		n.reads.Go(func() { n.followChange(before, resolved) })
		err := n.waitRaft(f)
		close(resolved)
		if err == nil {
			index = f.Index()
		}
		ended()
		result <- err
	})
	n.mu.Unlock()
	select {
	case err = <-result:
	case <-n.over:
		err = raft.ErrRaftShutdown
	case <-ctx.Done():
		return Membership{}, wrap(fmt.Errorf("outcome unknown: %w", context.Cause(ctx)))
	}
	if err != nil {
		return Membership{}, wrap(n.changeError(err))
	}
	g.log.Info("the members changed", "what", what, "index", index)
	if err := g.WaitApplied(ctx, rowraft.Index(index)); err != nil {
		return Membership{}, wrap(err)
	}
	return g.Members()
}

// followChange appends one barrier to the log after the configuration of a change.
//
// Without it a promotion can stay uncommitted for as long as no entry follows it, and pushes that
// were in flight stay uncommitted with it. Raft 1.7.3 wakes its replicators (dispatchLogs) before it
// counts the new voter (commitment.setConfiguration). An answer of that voter that arrives in between
// is dropped, its match index starts at 0, and the empty AppendEntries that follow do not raise it.
// With a dead replica among four voters that answer decides. Raft handles the barrier after
// setConfiguration, so the answer to the barrier counts.
//
// It returns when the change has a result (resolved is closed), when the barrier is queued, or when
// raft has ended.
func (n *instance) followChange(before []raft.Server, resolved <-chan struct{}) {
	poll := time.NewTicker(changePoll)
	defer poll.Stop()
	// Raft is still writing the entry, or refuses the change. The future of GetConfiguration has no index.
	for slices.Equal(n.raft.GetConfiguration().Configuration().Servers, before) {
		select {
		case <-poll.C:
		case <-resolved:
			return
		case <-n.over:
			return
		}
	}
	n.raft.Barrier(changeEnqueue) // the result of the change is the one that matters
}

// beginChange permits one change at a time.
func (n *instance) beginChange() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.mu.stopping:
		return rowraft.Errorf(rowraft.CodeClosing, "the group is stopping")
	case n.mu.transfer != nil:
		return rowraft.Errorf(rowraft.CodePrecondition, "the leadership is being transferred")
	case n.mu.changing:
		return rowraft.Errorf(rowraft.CodePrecondition, "another change of the members is running")
	}
	n.mu.changing = true
	return nil
}

// changeError converts raft's error for a change.
func (n *instance) changeError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return n.g.notLeader(n)
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		n.noteTransfer(true)
		return rowraft.Errorf(rowraft.CodeNoLeader, "the leadership is being transferred")
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return rowraft.Errorf(rowraft.CodeNoLeader, "an earlier change of the members is not committed yet")
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrRaftShutdown):
		return rowraft.Errorf(rowraft.CodeLeadershipLost, "outcome unknown: %w", err)
	}
	return rowraft.Errorf(rowraft.CodePrecondition, "raft refused it: %w", err)
}
