package raftstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/fifo"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// NotLeaderError reports that this replica does not lead its group. The entry was not proposed and never takes effect.
// Leader is a hint and may be stale.
type NotLeaderError struct {
	Group  string
	Term   rowraft.Term
	Leader rowraft.NodeID // "" if unknown
}

func (e *NotLeaderError) Error() string {
	if e.Leader == "" {
		return fmt.Sprintf("group %s: not leader, and the leader at term %d is unknown", e.Group, e.Term)
	}
	return fmt.Sprintf("group %s: not leader (server %s leads at term %d)", e.Group, e.Leader, e.Term)
}

// Code returns CodeNotLeader.
func (e *NotLeaderError) Code() rowraft.Code { return rowraft.CodeNotLeader }

// Future is the outcome of one proposal.
type Future struct {
	n     *instance        // nil if the entry was not proposed
	at    time.Time        // when Propose was called
	entry []byte           // owned by dispatch, then by complete; nil when the outcome is known
	raft  raft.ApplyFuture // set by dispatch, for complete

	// done is closed after the fields below are set, which never change again: Wait reads them without a lock.
	done   chan struct{}
	result any
	index  rowraft.Index
	err    error
}

// Done returns a channel that is closed when the outcome is known. After the group has ended, Wait may return although
// the channel stays open.
func (f *Future) Done() <-chan struct{} { return f.done }

// Wait returns the state machine's result for the entry, and the entry's index. Several goroutines may call it, also
// repeatedly.
//
// Errors without effect: CodeNotLeader, CodeNoLeader, CodeOverloaded, CodeClosing, CodeInvalidArgument. Errors after
// which the entry may still be applied: CodeLeadershipLost, CodeInternal, and CodeDeadline when ctx ends.
func (f *Future) Wait(ctx context.Context) (any, rowraft.Index, error) {
	select {
	case <-f.done:
		return f.result, f.index, f.err
	default:
	}
	var over <-chan struct{}
	if f.n != nil {
		over = f.n.over
	}
	select {
	case <-f.done:
	case <-over:
		select {
		case <-f.done:
		default:
			return nil, 0, rowraft.Errorf(rowraft.CodeLeadershipLost, "group %s stopped before the outcome was known",
				f.n.g.cfg.ID)
		}
	case <-ctx.Done():
		return nil, 0, rowraft.Errorf(rowraft.CodeDeadline, "waiting for a proposal: %w", context.Cause(ctx))
	}
	return f.result, f.index, f.err
}

// failed returns a future with the outcome err: the entry was not proposed.
func failed(err error) *Future {
	f := &Future{done: make(chan struct{}), err: err}
	close(f.done)
	return f
}

// Propose requests that the group replicates and applies entry, which must not change any more: raft, the cache of
// entries and the log read it. It does not wait: the Future has the outcome.
// Entries proposed by one goroutine enter the log in that order, but a change of the leadership may lose any of them.
//
// enqueue puts the entry into a queue, dispatch passes it to raft, and complete receives its result.
func (g *Group) Propose(entry []byte) *Future {
	o := &g.store.opts
	switch {
	case len(entry) == 0:
		return failed(rowraft.Errorf(rowraft.CodeInvalidArgument, "group %s: an entry must not be empty", g.cfg.ID))
	case len(entry) > o.MaxEntryBytes:
		return failed(rowraft.Errorf(rowraft.CodeInvalidArgument, "group %s: entry of %d bytes, at most %d", g.cfg.ID,
			len(entry), o.MaxEntryBytes))
	case g.store.diskFull.Load() && !g.cfg.UsesReserve:
		return failed(&rowraft.OverloadedError{
			What: fmt.Sprintf("disk of %s has %d bytes free, %d are kept in reserve", o.Dir, g.store.freeDisk.Load(),
				g.store.reserveBytes()),
			Limit: "disk", RetryAfter: time.Second,
		})
	}
	if g.cfg.Check != nil {
		if err := g.cfg.Check(entry); err != nil {
			return failed(err)
		}
	}
	n, err := g.running()
	if err != nil {
		return failed(err)
	}
	if n.raft.State() != raft.Leader {
		return failed(g.notLeader(n))
	}
	return n.enqueue(entry)
}

// running returns the present instance of the group, or why there is none to use.
func (g *Group) running() (*instance, error) {
	if e := g.failure.Load(); e != nil {
		// Refused before the proposal, so not CodeInternal: that would mean that the outcome is unknown.
		return nil, rowraft.Errorf(rowraft.CodeClosing, "the group stopped: %w", *e)
	}
	if n := g.run.Load(); n != nil {
		return n, nil
	}
	if isClosed(g.stop) {
		return nil, rowraft.Errorf(rowraft.CodeClosing, "group %s is closing", g.cfg.ID)
	}
	return nil, rowraft.Errorf(rowraft.CodeStarting, "group %s is restarting", g.cfg.ID)
}

func (g *Group) notLeader(n *instance) error {
	addr, _ := n.raft.LeaderWithID()
	leader := rowraft.NodeID(addr)
	if leader == g.store.opts.Node {
		leader = "" // it has just stepped down; with a hint to this server, the caller would ask it again
	}
	return &NotLeaderError{Group: g.cfg.ID, Term: rowraft.Term(n.raft.CurrentTerm()), Leader: leader}
}

// enqueue counts a copy of an entry as pending and gives it to dispatch. The bytes stay counted until resolve, so that
// raft never holds more than MaxPendingBytes of a group.
func (n *instance) enqueue(data []byte) *Future {
	f := &Future{n: n, at: time.Now(), done: make(chan struct{}), entry: data}
	size := int64(len(data))
	limit := n.g.store.opts.MaxPendingBytes
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.stopping {
		return failed(rowraft.Errorf(rowraft.CodeClosing, "group %s is stopping", n.g.cfg.ID))
	}
	if n.mu.pendingBytes+size > limit || n.mu.pending >= maxPendingEntries {
		return failed(&rowraft.OverloadedError{
			What: fmt.Sprintf(
				"group %s has %d bytes in %d entries that are proposed and not applied, the limit is %d in %d", n.g.cfg.ID,
				n.mu.pendingBytes, n.mu.pending, limit, maxPendingEntries),
			Limit: "log", RetryAfter: 20 * time.Millisecond,
		})
	}
	n.mu.pendingBytes += size
	n.mu.pending++
	n.mu.queue.Add(f)
	if n.mu.queue.Len() == 1 {
		n.tellDispatcher()
	}
	return f
}

// refuseQueued resolves the proposals that dispatch has not taken. stopping is set, so there will be no others.
func (n *instance) refuseQueued() {
	n.mu.Lock()
	queued := n.mu.queue
	n.mu.queue = fifo.Queue[*Future]{}
	n.mu.Unlock()
	for f, ok := queued.Take(); ok; f, ok = queued.Take() {
		n.resolve(f, nil, 0, rowraft.Errorf(rowraft.CodeClosing, "group %s is stopping", n.g.cfg.ID))
	}
}

// tellDispatcher makes dispatch look at queue and stopping. It never blocks, so n.mu may be held.
func (n *instance) tellDispatcher() {
	select {
	case n.more <- struct{}{}:
	default:
	}
}

// resolve resolves f and subtracts it from the pending proposals.
func (n *instance) resolve(f *Future, result any, index rowraft.Index, err error) {
	n.mu.Lock()
	n.mu.pendingBytes -= int64(len(f.entry))
	n.mu.pending--
	n.mu.Unlock()
	f.result, f.index, f.err = result, index, err
	f.entry, f.raft = nil, nil // for the garbage collector: the caller may keep f
	close(f.done)
}

// dispatch passes proposals to raft, in the order of Propose. ApplyLog blocks while raft writes its log, so raft's next
// write contains all entries that arrived in between. While a transfer of the leadership runs, raft would refuse
// entries, so dispatch waits for its end.
func (n *instance) dispatch() {
	defer close(n.inflight)
	for {
		n.mu.Lock()
		if transfer := n.mu.transfer; transfer != nil && n.mu.queue.Len() > 0 {
			n.mu.Unlock()
			<-transfer
			n.mu.Lock()
		}
		f, ok := n.mu.queue.Take()
		stopping := n.mu.stopping
		n.mu.Unlock()
		switch {
		case ok:
			f.raft = n.raft.ApplyLog(raft.Log{Data: f.entry, Extensions: entry.Seal(f.entry)}, 0)
			n.inflight <- f
		case stopping:
			return
		default:
			<-n.more
		}
	}
}

// complete receives the results of dispatched proposals from raft and resolves their futures, in the same order.
func (n *instance) complete() {
	defer close(n.drained)
	for f := range n.inflight {
		err := n.waitRaft(f.raft)
		if err != nil {
			n.resolve(f, nil, 0, n.outcome(err))
			continue
		}
		result := f.raft.Response()
		if _, bad := result.(fsmFailure); bad {
			n.resolve(f, nil, 0, rowraft.Errorf(rowraft.CodeInternal,
				"group %s stopped before it applied the entry, which is in its log", n.g.cfg.ID))
			continue
		}
		n.noteTransfer(false)
		n.g.clock.count(f.raft.Index(), f.at)
		n.resolve(f, result, rowraft.Index(f.raft.Index()), nil)
	}
}

// outcome converts an error of raft's future. The entry has no effect only if raft refused it before the append.
func (n *instance) outcome(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return n.g.notLeader(n)
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		n.noteTransfer(true)
		return rowraft.Errorf(rowraft.CodeNoLeader, "group %s: the leadership is being transferred", n.g.cfg.ID)
	}
	// ErrLeadershipLost, ErrRaftShutdown (raft may have taken the entry just before) and errors of the log store (the
	// entry may be on disk).
	return rowraft.Errorf(rowraft.CodeLeadershipLost, "group %s: outcome unknown: %w", n.g.cfg.ID, err)
}

// noteTransfer records since when raft has refused entries because of a leadership transfer. The flag of an interrupted
// transfer may stay set (#696); stuckTransfer detects that.
func (n *instance) noteTransfer(refusing bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case !refusing:
		n.mu.transferBusy = time.Time{}
	case n.mu.transferBusy.IsZero():
		n.mu.transferBusy = time.Now()
		fallthrough
	default:
		n.mu.transferRefused = time.Now()
	}
}
