package raftstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/transport"
)

// TransferLeadership transfers the leadership to the voter to or, if to is "", to the voter with the longest log. It
// returns when this replica has stepped down. The successor must have caught up, because the group accepts no proposals
// during a transfer. After an interrupted transfer raft may refuse proposals forever (#696); then the supervisor
// restarts the group.
//
// Errors: CodeNotLeader; CodePrecondition if to has no vote; CodeNoLeader if to (or every other voter, if to is "") has
// not caught up, if a change of the members is running, or if the transfer failed: then this replica usually still
// leads.
func (g *Group) TransferLeadership(ctx context.Context, to rowraft.ReplicaID) error {
	n, err := g.running()
	if err != nil {
		return err
	}
	if n.raft.State() != raft.Leader {
		return g.notLeader(n)
	}
	if to == g.cfg.Replica {
		return nil
	}
	target, err := n.successor(to, nil)
	if err != nil {
		return fmt.Errorf("group %s: transfer the leadership: %w", g.cfg.ID, err)
	}
	n.mu.Lock()
	if n.mu.stopping || n.mu.transfer != nil || n.mu.changing {
		n.mu.Unlock()
		return rowraft.Errorf(rowraft.CodeNoLeader,
			"group %s is stopping, changing its members or transferring the leadership already", g.cfg.ID)
	}
	g.log.Info("transferring the leadership", "to", string(target.Node), "behind", target.LagEntries)
	over := make(chan struct{})
	n.mu.transfer = over
	done := make(chan error, 1)
	n.reads.Go(func() {
		err := n.catchUp(ctx, target)
		if err == nil {
			err = n.waitRaft(n.raft.LeadershipTransferToServer(raft.ServerID(target.Replica), raft.ServerAddress(target.Node)))
		}
		n.noteTransfer(false) // entries refused until now were refused because of this transfer, not of a stuck one
		n.mu.Lock()
		n.mu.transfer = nil
		n.mu.Unlock()
		close(over)
		done <- err
	})
	n.mu.Unlock()
	select {
	case err := <-done:
		if err != nil {
			return rowraft.Errorf(rowraft.CodeNoLeader, "group %s: transfer to replica %s: %w", g.cfg.ID, target.Replica, err)
		}
		return nil
	case <-n.over:
		return rowraft.Errorf(rowraft.CodeClosing, "group %s stopped", g.cfg.ID)
	case <-ctx.Done():
		return fmt.Errorf("transfer leadership of group %s: %w", g.cfg.ID, context.Cause(ctx))
	}
}

// catchUpLimit is the least limit of catchUp. A longer heartbeat timeout is the limit itself: it is long enough for the
// writes to the log.
const catchUpLimit = 250 * time.Millisecond

// catchUp waits until target has the whole log, while the dispatcher holds back proposals. Without it raft sends target
// the rest itself. If the leader steps down during that time, two of raft's goroutines wait for each other forever, and
// raft refuses proposals until it is restarted (raft.go, leadershipTransfer: a send to triggerDeferErrorCh without a
// receiver; #696).
func (n *instance) catchUp(ctx context.Context, target MemberStatus) error {
	limit := max(catchUpLimit, n.heartbeatTimeout())
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	dispatched := make(chan error, 1) // everything dispatched before is in the log
	n.reads.Go(func() { dispatched <- n.waitRaft(n.raft.Barrier(limit)) })
	select {
	case err := <-dispatched:
		if err != nil {
			return err
		}
	case <-ctx.Done(): // no majority answers
		return rowraft.Errorf(rowraft.CodeNoLeader, "the earlier proposals are not committed within %v", limit)
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		last := n.raft.LastIndex()
		if p, ok := n.trans.Progress(raft.ServerID(target.Replica), n.raft.CurrentTerm()); ok && p.Match >= last {
			return nil
		}
		select {
		case <-tick.C:
		case <-n.over:
			return transport.ErrStopped
		case <-ctx.Done():
			return rowraft.Errorf(rowraft.CodeNoLeader, "replica %s has not caught up within %v", target.Replica, limit)
		}
	}
}

// nominateLimit bounds the wait of nominate: the successor's disk may hang, too.
const nominateLimit = 100 * time.Millisecond

// nominate tells the voter with the longest log to campaign, as raft does in a transfer. It needs no goroutine of raft,
// which may hang. Without it the followers would wait for their timeouts.
func (n *instance) nominate() {
	to, err := n.successor("", nil)
	if err != nil {
		return
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if err := n.trans.Nominate(raft.ServerID(to.Replica), raft.ServerAddress(to.Node)); err != nil {
			n.g.log.Warn("no replica was told to campaign", "to", string(to.Node), "err", err)
			return
		}
		n.g.log.Info("told a replica to campaign", "to", string(to.Node))
	}()
	waitFor(answered, nominateLimit)
}

// giveUpPause is the pause of GiveUpLead after it has tried every voter.
const giveUpPause = 20 * time.Millisecond

// GiveUpLead transfers the leadership to any voter. It tries one after the other, the longest log first, and repeats,
// until this replica does not lead. It returns the number of tries. The error is that of the last try. GiveUpLead gives
// up when ctx ends, when no other voter has answered recently, or when the group stops.
func (g *Group) GiveUpLead(ctx context.Context) (tries int, err error) {
	var tried []rowraft.ReplicaID
	for {
		n, rerr := g.running()
		if rerr != nil {
			return tries, rerr
		}
		if n.raft.State() != raft.Leader {
			return tries, nil
		}
		next, serr := n.successor("", tried)
		if serr == nil && ctx.Err() == nil {
			tries++
			tried = append(tried, next.Replica)
			err = g.TransferLeadership(ctx, next.Replica)
			continue // this replica may still lead
		}
		if err = cmp.Or(err, serr); !n.anyVoterAnswers() {
			return tries, err
		}
		tried = nil
		t := time.NewTimer(giveUpPause)
		select {
		case <-t.C:
		case <-n.over:
			t.Stop()
			return tries, transport.ErrStopped
		case <-ctx.Done():
			t.Stop()
			return tries, cmp.Or(err, context.Cause(ctx))
		}
	}
}

// anyVoterAnswers reports whether another voter has answered within the last four heartbeat timeouts.
func (n *instance) anyVoterAnswers() bool {
	term := n.raft.CurrentTerm()
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter || s.ID == raft.ServerID(n.g.cfg.Replica) {
			continue
		}
		if p, ok := n.trans.Progress(s.ID, term); ok && time.Since(p.Contact) < 4*n.heartbeatTimeout() {
			return true
		}
	}
	return false
}

// successor returns the voter to or, if to is "", the voter with the longest log that is not in but. It returns an
// error if that voter has not caught up.
func (n *instance) successor(to rowraft.ReplicaID, but []rowraft.ReplicaID) (best MemberStatus, err error) {
	m := Membership{Members: n.members(n.raft.GetConfiguration().Configuration().Servers)}
	if to != "" {
		found, ok := m.Find(to)
		switch {
		case !ok || !found.Voter:
			return best, rowraft.Errorf(rowraft.CodePrecondition, "replica %s is not a voter of the group", to)
		case !found.CaughtUp:
			return best, rowraft.Errorf(rowraft.CodeNoLeader,
				"replica %s has not caught up: its log is known up to entry %d, %d behind", to, found.MatchIndex, found.LagEntries)
		}
		return found, nil
	}
	for _, s := range m.Members {
		if s.Voter && s.CaughtUp && s.Replica != n.g.cfg.Replica && !slices.Contains(but, s.Replica) &&
			(best.Replica == "" || s.MatchIndex > best.MatchIndex) {
			best = s
		}
	}
	if best.Replica == "" {
		return best, rowraft.Errorf(rowraft.CodeNoLeader, "no other voter is within %d entries of the leader's log",
			maxTransferLag)
	}
	return best, nil
}
