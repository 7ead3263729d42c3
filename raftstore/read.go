package raftstore

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
)

type readResult struct {
	index rowraft.Index
	err   error
}

// ReadIndex returns an index i such that a read of the machine after WaitApplied(i) is linearizable. Only the leader
// returns one. Calls that arrive while a round of heartbeats is running share the next round.
//
// Errors: CodeNotLeader; CodeNoLeader if the leadership was lost during the call; CodeClosing, CodeStarting;
// CodeDeadline.
func (g *Group) ReadIndex(ctx context.Context) (rowraft.Index, error) {
	n, err := g.running()
	if err != nil {
		return 0, err
	}
	if n.raft.State() != raft.Leader {
		return 0, g.notLeader(n)
	}
	result := make(chan readResult, 1)
	n.mu.Lock()
	if n.mu.stopping {
		n.mu.Unlock()
		return 0, rowraft.Errorf(rowraft.CodeClosing, "group %s is stopping", g.cfg.ID)
	}
	n.mu.readers = append(n.mu.readers, result)
	if !n.mu.reading {
		n.mu.reading = true
		n.reads.Go(n.readRounds)
	}
	n.mu.Unlock()
	select {
	case r := <-result:
		return r.index, r.err
	case <-n.over:
		return 0, rowraft.Errorf(rowraft.CodeNoLeader, "group %s stopped", g.cfg.ID)
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// readRounds runs rounds until no reader waits.
func (n *instance) readRounds() {
	for {
		n.mu.Lock()
		waiting := n.mu.readers
		n.mu.readers = nil
		n.mu.reading = len(waiting) > 0
		n.mu.Unlock()
		if len(waiting) == 0 {
			return
		}
		index, err := n.readRound(n.confirmedIndex)
		for _, reader := range waiting {
			reader <- readResult{index, err}
		}
	}
}

// readRound returns the index of confirm, which is confirmedIndex except in a test. It checks the term again: another
// leader may be elected after the majority answered.
func (n *instance) readRound(confirm func(term uint64) (rowraft.Index, error)) (rowraft.Index, error) {
	term := n.raft.CurrentTerm()
	index, err := confirm(term)
	if err == nil && !canary.Is(canary.StaleReads) && (n.raft.CurrentTerm() != term || n.raft.State() != raft.Leader) {
		err = raft.ErrLeadershipLost
	}
	if err != nil {
		return 0, n.readError(err)
	}
	return index, nil
}

// confirmedIndex reads the commit index and then asks the followers whether this replica still leads in term. The order
// matters: if a leader verified first and stalled before it read the index, another replica might lead in between
// (hashicorp/raft #603).
func (n *instance) confirmedIndex(term uint64) (rowraft.Index, error) {
	if err := n.barrier(term); err != nil {
		return 0, err
	}
	begin := time.Now()
	index := n.raft.CommitIndex()
	if canary.Is(canary.StaleReads) {
		return rowraft.Index(index), nil
	}
	n.trans.BeginRound() // after begin: a heartbeat that waits is sent now and counts
	defer n.trans.EndRound()
	for verified := false; !verified; verified = n.confirmedSince(term, begin) {
		if err := n.waitRaft(n.raft.VerifyLeader()); err != nil {
			return 0, err
		}
	}
	return rowraft.Index(index), nil
}

// confirmedSince reports whether a majority of the voters, this replica included, answered in term a message that was
// sent after begin. VerifyLeader alone proves less: it also counts the answers of non-voters, and the answer to a
// heartbeat that was sent before the call, which may be older than the next leader. confirmedIndex calls VerifyLeader
// again until enough answers are new; each call waits for at least one more.
func (n *instance) confirmedSince(term uint64, begin time.Time) bool {
	voters, confirmed := 0, 0
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if s.ID == raft.ServerID(n.g.cfg.Replica) {
			confirmed++
		} else if p, ok := n.trans.Progress(s.ID, term); ok && p.Confirmed.After(begin) {
			confirmed++
		}
	}
	return confirmed > voters/2
}

// barrier makes sure, once per term, that the leader knows the entries that earlier terms committed: its commit index
// may be too low until an entry of its own term is committed.
func (n *instance) barrier(term uint64) error {
	n.mu.Lock()
	passed := n.mu.barrierTerm == term
	n.mu.Unlock()
	if passed {
		return nil
	}
	if err := n.waitRaft(n.raft.Barrier(0)); err != nil {
		return err
	}
	if n.raft.CurrentTerm() != term {
		return raft.ErrLeadershipLost
	}
	n.mu.Lock()
	n.mu.barrierTerm = term
	n.mu.Unlock()
	return nil
}

// readError converts raft's error. A read has no effect, so the caller may repeat it.
func (n *instance) readError(err error) error {
	if errors.Is(err, raft.ErrNotLeader) {
		return n.g.notLeader(n)
	}
	if errors.Is(err, raft.ErrLeadershipTransferInProgress) {
		n.noteTransfer(true)
	}
	return rowraft.Errorf(rowraft.CodeNoLeader, "group %s: leadership could not be confirmed: %w", n.g.cfg.ID, err)
}

// AppliedIndex returns the raft index through which the machine has seen the log. It may be above the machine's own
// AppliedIndex, because the machine does not see raft's own entries.
func (g *Group) AppliedIndex() rowraft.Index {
	applied := g.fsm.applied.Load()
	n := g.run.Load()
	if n == nil {
		return rowraft.Index(applied)
	}
	// Raft has at least queued for the machine what it counts as applied. Its own entries need no more than that.
	//tidy:allow raftconfig an upper bound only: ThroughOwn stops at an entry that the machine must see
	return rowraft.Index(g.ledger.ThroughOwn(applied, n.raft.AppliedIndex()))
}

// Read calls fn, which reads the machine, at a linearizable point: ReadIndex, WaitApplied, then fn.
func (g *Group) Read(ctx context.Context, fn func() error) error {
	index, err := g.ReadIndex(ctx)
	if err != nil {
		return err
	}
	if err := g.WaitApplied(ctx, index); err != nil {
		return err
	}
	return fn()
}
