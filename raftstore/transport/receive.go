package transport

import (
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/entry"
	"github.com/rowraft/rowraft/raftstore/timers"
	"github.com/rowraft/rowraft/raftstore/turns"
)

// Replica is what the transport knows of this replica. Its functions may be called on any goroutine and do not wait.
type Replica struct {
	ID          raft.ServerID
	BacklogFull func() bool            // the machine must catch up first
	Applied     func() uint64          // index through which the machine has seen the log
	Boundary    func() *entry.Position // newest snapshot of the machine, or nil
	Term        func() uint64          // 0: raft does not run yet
	Timers      *timers.Group
	Turns       *turns.Group
	Timeout     time.Duration // of an RPC
	Leads       func(term uint64) bool
	ServerEnded func(rowraft.NodeID) // the process of another server has ended
	// Supports answers AskSupport.
	Supports func(id raft.ServerID, term uint64, last entry.Position) bool
	// Quiet returns the longest wait of a heartbeat that tells its follower nothing; that of another AppendEntries is
	// appendFactor times as long. nil: neither waits.
	Quiet func() time.Duration
	Guard *RollbackGuard // nil in tests of this package
	// Expand returns the bytes of a snapshot that a follower can restore, with their number; nil if data is that already.
	Expand func(data io.Reader) (full io.ReadCloser, size int64, err error)
}

// RollbackGuard is what the transport does with the marks of replicas.
type RollbackGuard struct {
	MayVote <-chan struct{}                           // closed when this replica may vote and request votes
	Stopped func() bool                               // the group has stopped forever
	Voted   func(id raft.ServerID, term uint64)       // a replica has voted in term
	Marks   func(term uint64) []byte                  // marks for a heartbeat; nil: this replica does not lead
	Learn   func(from rowraft.NodeID, payload []byte) // receives the marks of a heartbeat
}

func (t *Transport) Consumer() <-chan raft.RPC { return t.consume }

// forward passes RPCs from raft's own connections to pass.
func (t *Transport) forward() {
	for {
		select {
		case rpc := <-t.Transport.Consumer():
			if !t.pass(rpc) {
				return
			}
		case <-t.stop:
			return
		}
	}
}

// pass passes an RPC to raft, or answers it. It returns false when the transport ends.
func (t *Transport) pass(rpc raft.RPC) bool { return t.screen(rpc) || t.deliver(rpc) }

// screen reads what addressed has added to an RPC and decides whether raft gets it now. It returns false for such an
// RPC, and otherwise answers it, or passes it later, without a wait here. While the machine lags too far, RPCs with
// entries wait in their own goroutines and do not delay heartbeats and votes. After half of RPCTimeout they pass in any
// case, so that a follower that lags does not look dead.
func (t *Transport) screen(rpc raft.RPC) bool {
	header, to, report, flags, payload := open(rpc.Command)
	r := t.replica.Guard
	if to != t.replica.ID || r != nil && r.Stopped() {
		t.wg.Go(func() { t.refuse(rpc, to) })
		return true
	}
	if header != nil {
		now := time.Now()
		t.replica.Timers.Receive(raft.ServerID(header.ID), report, now)
		t.replica.Turns.Receive(raft.ServerID(header.ID), flags, now)
	}
	if r != nil {
		if len(payload) > 0 {
			r.Learn(rowraft.NodeID(header.Addr), payload)
		}
		if isVote(rpc.Command) {
			select {
			case <-r.MayVote:
			default:
				t.wg.Go(func() { t.delayVote(rpc, r) })
				return true
			}
		}
		if cmd, ok := rpc.Command.(*raft.RequestVoteRequest); ok {
			r.Voted(raft.ServerID(cmd.ID), cmd.Term) // the term was durable before the candidate asked
		}
	}
	switch cmd := rpc.Command.(type) {
	case *supportRequest:
		rpc.Respond(&raft.AppendEntriesResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax},
			Term: cmd.Term, Success: t.replica.Supports(raft.ServerID(cmd.ID), cmd.Term, cmd.last)}, nil)
		return true
	case *raft.AppendEntriesRequest:
		t.replica.cut(cmd)
		if len(cmd.Entries) > 0 && t.replica.BacklogFull() {
			t.wg.Go(func() { t.delayEntries(rpc) })
			return true
		}
	case *raft.InstallSnapshotRequest:
		if t.replica.has(cmd) {
			t.wg.Go(func() { t.decline(rpc, cmd) })
			return true
		}
	}
	return false
}

// deliver waits until raft takes an RPC. It returns false when the transport ends.
func (t *Transport) deliver(rpc raft.RPC) bool {
	select {
	case t.consume <- rpc:
		return true
	case <-t.stop:
		return false
	}
}

// Campaign makes a follower a candidate at once, although others know a leader. It has no effect if raft is busy for
// longer than limit.
func (t *Transport) Campaign(limit time.Duration) {
	rpc := raft.RPC{
		Command:  &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}},
		RespChan: make(chan raft.RPCResponse, 1),
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case t.consume <- rpc:
	case <-late.C:
	case <-t.layer.Context().Done():
	}
}

func isVote(cmd any) bool {
	switch cmd.(type) {
	case *raft.RequestVoteRequest, *raft.RequestPreVoteRequest:
		return true
	}
	return false
}

// delayVote passes a vote request to raft when this replica may vote.
func (t *Transport) delayVote(rpc raft.RPC, r *RollbackGuard) {
	select {
	case <-r.MayVote:
	case <-t.stop:
		return
	}
	if r.Stopped() {
		rpc.Respond(nil, ErrStopped)
		return
	}
	t.deliver(rpc)
}

// open removes what addressed added to the header of cmd. It returns the header (nil if cmd has none), the replica that
// the message is for, the timers and turn flags of its sender, and the marks.
func open(cmd any) (h *raft.RPCHeader, to raft.ServerID, report []byte, flags turns.Flags, marks []byte) {
	switch cmd := cmd.(type) {
	case *raft.AppendEntriesRequest:
		h = &cmd.RPCHeader
	case *raft.RequestVoteRequest:
		h = &cmd.RPCHeader
	case *raft.RequestPreVoteRequest:
		h = &cmd.RPCHeader
	case *raft.InstallSnapshotRequest:
		h = &cmd.RPCHeader
	case *raft.TimeoutNowRequest:
		h = &cmd.RPCHeader
	case *supportRequest:
		h = &cmd.RPCHeader
	default:
		return nil, "", nil, 0, nil
	}
	h.Addr, to, report, flags, marks = splitSender(h.Addr)
	return h, to, report, flags, marks
}

// refuse answers a message for another replica with an error.
func (t *Transport) refuse(rpc raft.RPC, to raft.ServerID) {
	if rpc.Reader != nil {
		io.Copy(io.Discard, rpc.Reader)
	}
	rpc.Respond(nil, fmt.Errorf("the message is for replica %q, this is replica %q", to, t.replica.ID))
}

// cut drops the entries of a that the snapshot of this replica covers. They are committed, so every leader has the same
// ones, but the log of this replica may not have them any more.
func (r *Replica) cut(a *raft.AppendEntriesRequest) {
	b := r.Boundary()
	if b == nil || a.PrevLogEntry >= b.Index || a.PrevLogEntry == 0 && len(a.Entries) == 0 {
		return
	}
	for len(a.Entries) > 0 && a.Entries[0].Index <= b.Index {
		a.Entries = a.Entries[1:]
	}
	a.PrevLogEntry, a.PrevLogTerm = b.Index, b.Term
}

// has reports whether this replica has already applied everything in the snapshot. It is true only for the leader of
// the current term; raft answers all others.
func (r *Replica) has(s *raft.InstallSnapshotRequest) bool {
	return s.LastLogIndex <= r.Applied() && s.Term == r.Term()
}

// decline reads a snapshot off the connection and answers that this replica has it. The log after it stays, as in the
// Raft paper.
func (t *Transport) decline(rpc raft.RPC, s *raft.InstallSnapshotRequest) {
	_, err := io.Copy(io.Discard, rpc.Reader)
	t.log.Info("declined a snapshot of what is applied already", "index", s.LastLogIndex, "bytes", s.Size)
	rpc.Respond(&raft.InstallSnapshotResponse{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax},
		Term:      s.Term, Success: err == nil,
	}, err)
}

// delayEntries passes an RPC with entries to raft when the machine has caught up, or after half of RPCTimeout.
func (t *Transport) delayEntries(rpc raft.RPC) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(RPCTimeout / 2); time.Now().Before(end) && t.replica.BacklogFull(); {
		select {
		case <-tick.C:
		case <-t.stop:
			return
		}
	}
	t.deliver(rpc)
}
