package raftstore

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/time/rate"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/raftstore/entry"
	"github.com/rowraft/rowraft/raftstore/hclogger"
	"github.com/rowraft/rowraft/raftstore/marks"
	"github.com/rowraft/rowraft/raftstore/timers"
)

// rpcTimeout bounds one RPC, unless the heartbeat is longer: a vote is three log writes. With raft's 10 s, a cut in one
// direction would block heartbeats for that time after it healed.
const rpcTimeout = time.Second

// raftEntryBytes is more than raft's own entries need.
const raftEntryBytes = 1 << 20

// errEnded is the answer for a message that arrives after the group has stopped.
var errEnded = rowraft.Errorf(rowraft.CodeInternal, "the group has stopped")

// transport is raft's network transport with these changes:
//
//   - No heartbeat fast path: a heartbeat that is handled concurrently with the main goroutine can raise the term under
//     the leader loop, and logs diverge (#695).
//   - No pipelining: one failed AppendEntries ends replication to a follower forever (#612).
//   - Entries travel on their own connections (appendTransport).
//   - An AppendEntries carries at most maxRPCBytes; raft counts entries.
//   - A follower whose machine lags delays AppendEntries before they reach raft's main goroutine, which would block
//     and miss elections.
//   - Entries below the snapshot of this replica are dropped from an AppendEntries, and a snapshot below what this
//     replica applied is answered without an install: raft would refuse the former and lose its log over the latter
//     (DESIGN.md).
//   - A message names the replica it is for, and another replica refuses it. A node that lost a replica of the group
//     and has a new one must not answer or vote for the old one.
//
// It also sees every answer, and so knows the position of each follower.
type transport struct {
	raft.Transport // *appendTransport, perhaps wrapped by a test
	net            *appendTransport
	layer          *streamLayer
	log            *slog.Logger

	maxRPCBytes   int64
	maxEntryBytes int64
	pace          *rate.Limiter
	receiver      receiver

	consume chan raft.RPC
	stop    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup

	mu    sync.Mutex
	peers map[raft.ServerID]*peerProgress
	told  map[raft.ServerID]toldMarks
}

// toldMarks are the marks last sent to a follower.
type toldMarks struct {
	marks []byte
	at    time.Time
}

// receiver is what the transport knows of this replica.
type receiver struct {
	replica     raft.ServerID
	backlogFull func() bool            // the machine must catch up first
	applied     func() uint64          // index through which the machine has seen the log
	boundary    func() *entry.Position // newest snapshot of the machine, or nil
	term        func() uint64          // 0: raft does not run yet
	timers      *timers.Group
	timeout     time.Duration // of an RPC
	leads       func(term uint64) bool
	recall      *recall // nil in tests of the transport alone
}

// recall is what the transport does with the marks of replicas.
type recall struct {
	asked <-chan struct{}                           // closed when this replica may vote and request votes
	ended func() bool                               // the group has stopped forever
	voted func(id raft.ServerID, term uint64)       // a replica has voted in term
	tell  func(term uint64) []byte                  // marks for a heartbeat; nil: this replica does not lead
	learn func(from rowraft.NodeID, payload []byte) // receives the marks of a heartbeat
}

// peerProgress is what a leader learned about one follower from its answers.
type peerProgress struct {
	term       uint64    // in which the other fields were learned
	match      uint64    // highest index known to be in the follower's log
	matchSince time.Time // when match last moved
	contact    time.Time // last answer of any kind
	confirmed  time.Time // when the newest RPC was sent that was answered in this term
	proved     time.Time // last answer that proved that the follower's log has match
	attempt    time.Time // start of the last replication RPC (not a heartbeat)
	installing bool      // a snapshot is being sent
	recovering uint64    // index of the last snapshot sent; 0 after match has reached the commit index
	failures   int       // replication RPCs that failed in a row
}

var (
	_ raft.Transport   = (*transport)(nil)
	_ raft.WithPreVote = (*transport)(nil)
	_ raft.WithClose   = (*transport)(nil)
)

func newTransport(layer *streamLayer, o *Options, p *rate.Limiter, group string, log *slog.Logger, rcv receiver) *transport {
	inFlight := 1
	if canary.Is(canary.PipelinedAppends) {
		inFlight = 2
	}
	n := newAppendTransport(raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:          layer,
		MaxPool:         3,
		MaxRPCsInFlight: inFlight,
		Timeout:         rcv.timeout,
		Logger:          hclogger.New(log, "raft-net", hclogger.NewRate()),
	}), layer, rcv.timeout)
	t := &transport{
		Transport: n, net: n, layer: layer, log: log,
		maxRPCBytes: o.MaxRPCBytes, maxEntryBytes: max(int64(o.MaxEntryBytes), raftEntryBytes), pace: p, receiver: rcv,
		consume: make(chan raft.RPC),
		stop:    make(chan struct{}),
		peers:   map[raft.ServerID]*peerProgress{},
		told:    map[raft.ServerID]toldMarks{},
	}
	if o.hooks.wrapTransport != nil {
		t.Transport = o.hooks.wrapTransport(group, n)
	}
	t.wg.Add(2)
	go t.forward()
	go t.acceptAppends()
	return t
}

// SetHeartbeatHandler deliberately does nothing (#695). raft.Transport documents that a transport may have no fast
// path: heartbeats then arrive through Consumer.
func (t *transport) SetHeartbeatHandler(h func(raft.RPC)) {
	if canary.Is(canary.HeartbeatFastPath) {
		t.Transport.SetHeartbeatHandler(h)
	}
}

// AppendEntriesPipeline deliberately refuses (#612).
func (t *transport) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	if canary.Is(canary.PipelinedAppends) {
		return t.Transport.AppendEntriesPipeline(id, to)
	}
	return nil, raft.ErrPipelineReplicationNotSupported
}

// RequestPreVote is not part of raft.Transport.
func (t *transport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if err := t.mayAskForVotes(); err != nil {
		return err
	}
	sent := *args
	sent.RPCHeader = t.addressed(args.RPCHeader, id, nil)
	err := t.Transport.(raft.WithPreVote).RequestPreVote(id, target, &sent, resp)
	t.heard(id, resp.RPCHeader, err)
	return err
}

func (t *transport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := t.mayAskForVotes(); err != nil {
		return err
	}
	sent := *args // raft shares args between the calls to all voters
	sent.RPCHeader = t.addressed(args.RPCHeader, id, nil)
	err := t.Transport.RequestVote(id, target, &sent, resp)
	t.heard(id, resp.RPCHeader, err)
	if r := t.receiver.recall; r != nil && err == nil && resp.Granted {
		r.voted(id, args.Term)
	}
	return err
}

// mayAskForVotes waits until this replica has asked its peers what they remember of it.
func (t *transport) mayAskForVotes() error {
	r := t.receiver.recall
	if r == nil {
		return nil
	}
	select {
	case <-r.asked:
	case <-t.stop:
		return errClosing
	}
	if r.ended() {
		return errEnded
	}
	return nil
}

func (t *transport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	sent := *args
	sent.RPCHeader = t.addressed(args.RPCHeader, id, nil)
	return t.Transport.TimeoutNow(id, target, &sent, resp)
}

func (t *transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	committed := args.LeaderCommitIndex
	replicates := args.PrevLogEntry != 0 || len(args.Entries) > 0 || args.LeaderCommitIndex != 0
	if replicates {
		t.limit(args)
		t.note(id, args.Term, func(p *peerProgress) { p.attempt = time.Now() })
	}
	msg := *args
	sent := time.Now()
	var marks []byte
	if !replicates {
		marks = t.newMarks(id, args.Term, sent)
	}
	msg.RPCHeader = t.addressed(args.RPCHeader, id, marks)
	err := t.Transport.AppendEntries(id, target, &msg, resp)
	if err == nil && marks != nil {
		t.mu.Lock()
		t.told[id] = toldMarks{marks, sent}
		t.mu.Unlock()
	}
	if err != nil && replicates && t.awaitContact(id, args.Term) {
		*resp = raft.AppendEntriesResponse{}
		sent = time.Now()
		t.note(id, args.Term, func(p *peerProgress) { p.attempt = time.Now() })
		err = t.Transport.AppendEntries(id, target, &msg, resp)
	}
	if err != nil {
		if replicates {
			t.note(id, args.Term, func(p *peerProgress) { p.failures++ })
		}
		return err
	}
	t.heard(id, resp.RPCHeader, nil)
	now := time.Now()
	t.note(id, args.Term, func(p *peerProgress) {
		p.contact = now
		if resp.Term == args.Term && sent.After(p.confirmed) {
			p.confirmed = sent
		}
		if !replicates {
			return
		}
		if !resp.Success {
			p.failures++
			return
		}
		p.failures = 0
		match := args.PrevLogEntry
		if n := len(args.Entries); n > 0 {
			match = args.Entries[n-1].Index
		}
		p.proved = now
		if match >= committed {
			p.recovering = 0
		}
		if match > p.match {
			p.match, p.matchSince = match, now
		}
	})
	return nil
}

// newMarks returns the marks of the members if follower id does not have them, otherwise nil. Marks are repeated every
// marks.WriteEvery, because a follower that restarted may have lost them.
func (t *transport) newMarks(id raft.ServerID, term uint64, now time.Time) []byte {
	r := t.receiver.recall
	if r == nil {
		return nil
	}
	payload := r.tell(term)
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.told[id]; bytes.Equal(payload, old.marks) && now.Sub(old.at) < marks.WriteEvery {
		return nil
	}
	return payload
}

// maxAwait bounds awaitContact. After that raft's own back-off applies, for a follower that stays away.
const (
	maxAwait   = time.Minute
	awaitEvery = 25 * time.Millisecond
)

// awaitContact waits, after a failed replication RPC, until the follower answers a heartbeat. Raft would back off for
// up to 10 s, and a follower that is back would get no entries for that time: raft does not use the success of
// heartbeats.
func (t *transport) awaitContact(id raft.ServerID, term uint64) bool {
	failed := time.Now()
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for t.receiver.leads(term) && time.Since(failed) < maxAwait {
		if p, ok := t.progress(id, term); ok && p.contact.After(failed) {
			return true
		}
		t.note(id, term, func(p *peerProgress) { p.attempt = time.Now() }) // not wedged
		select {
		case <-tick.C:
		case <-t.stop:
			return false
		}
	}
	return false
}

// limit cuts args down to maxRPCBytes, but to at least one entry, and its commit index to the last entry that the
// follower will then have, as in the Raft paper. Raft reads the last entry from args after the call and sends the rest
// next, as it does after a cut at MaxAppendEntries.
func (t *transport) limit(args *raft.AppendEntriesRequest) {
	var sum int64
	for i, e := range args.Entries {
		sum += int64(len(e.Data)) + entry.OverheadBytes
		if i > 0 && sum > t.maxRPCBytes {
			args.Entries = args.Entries[:i]
			break
		}
	}
	args.LeaderCommitIndex = min(args.LeaderCommitIndex, args.PrevLogEntry+uint64(len(args.Entries)))
}

func (t *transport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	t.note(id, args.Term, func(p *peerProgress) { p.installing, p.recovering, p.attempt = true, args.LastLogIndex, time.Now() })
	sent := *args
	sent.RPCHeader = t.addressed(args.RPCHeader, id, nil)
	err := t.Transport.InstallSnapshot(id, target, &sent, resp, &pacedReader{data, t.pace, t.stop})
	now := time.Now()
	t.note(id, args.Term, func(p *peerProgress) {
		p.installing = false
		if err != nil {
			p.failures++
			return
		}
		p.contact = now
		if resp.Success {
			p.proved = now
		}
		if resp.Success && args.LastLogIndex > p.match {
			p.match, p.matchSince = args.LastLogIndex, now
		}
	})
	return err
}

// note updates what is known of follower id. In a later term it starts with nothing: the follower's log may have been
// cut.
func (t *transport) note(id raft.ServerID, term uint64, update func(*peerProgress)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[id]
	if p == nil || p.term < term {
		now := time.Now()
		p = &peerProgress{term: term, matchSince: now, attempt: now}
		t.peers[id] = p
	}
	if p.term == term {
		update(p)
	}
}

// progress returns what is known of follower id in term.
func (t *transport) progress(id raft.ServerID, term uint64) (peerProgress, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[id]
	if p == nil || p.term != term {
		return peerProgress{}, false
	}
	return *p, true
}

func (t *transport) Consumer() <-chan raft.RPC { return t.consume }

// forward passes RPCs from raft's own connections to pass.
func (t *transport) forward() {
	defer t.wg.Done()
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

// pass passes an RPC to raft, or answers it. It returns false when the transport ends. While the machine lags too far,
// RPCs with entries wait in their own goroutines and do not delay heartbeats and votes. After half the sender's timeout
// they pass in any case, so that a lag does not look like a dead follower.
func (t *transport) pass(rpc raft.RPC) bool {
	header, to, said, marks := open(rpc.Command)
	r := t.receiver.recall
	if to != t.receiver.replica || r != nil && r.ended() {
		t.wg.Add(1)
		go t.refuse(rpc, to)
		return true
	}
	if header != nil {
		t.receiver.timers.Receive(raft.ServerID(header.ID), said, time.Now())
	}
	if r != nil {
		if len(marks) > 0 {
			r.learn(rowraft.NodeID(header.Addr), marks)
		}
		if isVote(rpc.Command) {
			select {
			case <-r.asked:
			default:
				t.wg.Add(1)
				go t.holdVote(rpc, r)
				return true
			}
		}
		if cmd, ok := rpc.Command.(*raft.RequestVoteRequest); ok {
			r.voted(raft.ServerID(cmd.ID), cmd.Term) // the term was durable before the candidate asked
		}
	}
	switch cmd := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		t.receiver.cut(cmd)
		if len(cmd.Entries) > 0 && t.receiver.backlogFull() {
			t.wg.Add(1)
			go t.hold(rpc)
			return true
		}
	case *raft.InstallSnapshotRequest:
		if t.receiver.has(cmd) {
			t.wg.Add(1)
			go t.decline(rpc, cmd)
			return true
		}
	}
	select {
	case t.consume <- rpc:
		return true
	case <-t.stop:
		return false
	}
}

func isVote(cmd any) bool {
	switch cmd.(type) {
	case *raft.RequestVoteRequest, *raft.RequestPreVoteRequest:
		return true
	}
	return false
}

// holdVote passes a vote request to raft when this replica may vote.
func (t *transport) holdVote(rpc raft.RPC, r *recall) {
	defer t.wg.Done()
	select {
	case <-r.asked:
	case <-t.stop:
		return
	}
	if r.ended() {
		rpc.Respond(nil, errEnded)
		return
	}
	select {
	case t.consume <- rpc:
	case <-t.stop:
	}
}

// addressed returns h with additions after the address of the sender: the replica that the message is for, the timers
// of this replica, and the marks of a heartbeat. Raft's own messages name only their sender.
func (t *transport) addressed(h raft.RPCHeader, to raft.ServerID, marks []byte) raft.RPCHeader {
	node, _, _ := splitSender(h.Addr)
	h.Addr = append(joinSender(node, to, t.receiver.timers.ReportTo(to)), marks...)
	return h
}

// EncodePeer adds this replica's timers to the sender in the header of an answer.
func (t *transport) EncodePeer(id raft.ServerID, addr raft.ServerAddress) []byte {
	return joinSender(t.Transport.EncodePeer(id, addr), "", t.receiver.timers.ReportTo(""))
}

// heard records the timers in the header of an answer of replica id.
func (t *transport) heard(id raft.ServerID, h raft.RPCHeader, err error) {
	if err == nil {
		_, _, said := splitSender(h.Addr)
		t.receiver.timers.Receive(id, said, time.Now())
	}
}

// open removes what addressed added to the header of cmd. It returns the header (nil if cmd has none), the replica that
// the message is for, the timers of its sender, and the marks.
func open(cmd any) (h *raft.RPCHeader, to raft.ServerID, said, marks []byte) {
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
	default:
		return nil, "", nil, nil
	}
	h.Addr, to, said = splitSender(h.Addr)
	n := min(len(said), timers.ReportBytes)
	return h, to, said[:n], said[n:]
}

// refuse answers a message for another replica with an error.
func (t *transport) refuse(rpc raft.RPC, to raft.ServerID) {
	defer t.wg.Done()
	if rpc.Reader != nil {
		io.Copy(io.Discard, rpc.Reader)
	}
	rpc.Respond(nil, fmt.Errorf("the message is for replica %q, here is %q", to, t.receiver.replica))
}

// cut drops the entries of a that the snapshot of this replica covers. They are committed, so every leader has the same
// ones, but the log of this replica may not have them any more.
func (r *receiver) cut(a *raft.AppendEntriesRequest) {
	b := r.boundary()
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
func (r *receiver) has(s *raft.InstallSnapshotRequest) bool {
	return s.LastLogIndex <= r.applied() && s.Term == r.term()
}

// decline reads a snapshot off the connection and answers that this replica has it. The log after it stays, as in the
// Raft paper.
func (t *transport) decline(rpc raft.RPC, s *raft.InstallSnapshotRequest) {
	defer t.wg.Done()
	_, err := io.Copy(io.Discard, rpc.Reader)
	t.log.Info("declined a snapshot of what is applied already", "index", s.LastLogIndex, "bytes", s.Size)
	rpc.Respond(&raft.InstallSnapshotResponse{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax},
		Term:      s.Term, Success: err == nil,
	}, err)
}

func (t *transport) hold(rpc raft.RPC) {
	defer t.wg.Done()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(rpcTimeout / 2); time.Now().Before(end) && t.receiver.backlogFull(); {
		select {
		case <-tick.C:
		case <-t.stop:
			return
		}
	}
	select {
	case t.consume <- rpc:
	case <-t.stop:
	}
}

// interrupt closes the connections of the group, so that running RPCs return.
func (t *transport) interrupt() { t.net.Close() }

// Close ends the transport and waits for its goroutines.
func (t *transport) Close() error {
	t.once.Do(func() {
		t.interrupt()
		t.net.CloseStreams()
		t.net.closeIdle()
		close(t.stop)
		t.wg.Wait()
		t.layer.open.Wait()
	})
	return nil
}
