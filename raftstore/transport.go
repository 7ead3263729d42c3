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
)

// rpcTimeout bounds one RPC, unless the heartbeat is longer: a vote is three writes to the log. Raft's
// 10 s would block the heartbeats of a one-way cut for as long after it healed.
const rpcTimeout = time.Second

// raftEntryBytes is more than raft's own entries take.
const raftEntryBytes = 1 << 20

// transport is raft's network transport with these changes:
//
//   - no heartbeat fast path: a heartbeat handled beside the main goroutine can
//     raise the term under the leader loop, and logs diverge (#695);
//   - no pipelining: one failed AppendEntries ends replication to a follower for
//     good (#612);
//   - entries travel on connections of their own (appendTransport);
//   - an AppendEntries carries at most maxRPCBytes, where raft counts entries;
//   - a follower whose machine lags holds AppendEntries back before they reach
//     raft's main goroutine, which would block and miss elections;
//   - what a leader sends below the snapshot of this replica is cut to it, and a
//     snapshot below what this replica applied is answered without installing it:
//     raft would refuse the one and lose its log over the other (DESIGN.md);
//   - a message names the replica it is for, and another one refuses it: a node
//     that lost a replica of the group and has a new one must not answer, nor vote,
//     for the old.
//
// It also sees every answer, and so knows how far each follower is.
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

// toldMarks are the marks that a follower was told last, and when.
type toldMarks struct {
	marks []byte
	at    time.Time
}

// receiver is what the transport must know of this replica.
type receiver struct {
	replica     raft.ServerID
	backlogFull func() bool      // the machine must catch up first
	applied     func() uint64    // index through which the machine has seen the log
	boundary    func() *boundary // newest snapshot of the machine, or nil
	term        func() uint64    // 0: raft does not run yet
	timers      *groupTimers
	timeout     time.Duration // of an RPC
	leads       func(term uint64) bool
	recall      *recall // nil in tests of the transport alone
}

// recall is what the transport does for the marks of replicas.
type recall struct {
	asked <-chan struct{}                           // closed once this replica may vote and ask for votes
	ended func() bool                               // it has stopped for good
	voted func(id raft.ServerID, term uint64)       // a replica has voted in term
	tell  func(term uint64) []byte                  // what a heartbeat carries; nil: this replica does not lead
	learn func(from rowraft.NodeID, payload []byte) // what a heartbeat carried
}

// peerProgress is what a leader learned about one follower from its answers.
type peerProgress struct {
	term       uint64    // in which the rest was learned
	match      uint64    // highest index known to be in the follower's log
	matchSince time.Time // when match last moved
	contact    time.Time // last answer of any kind
	confirmed  time.Time // when the newest RPC was sent that was answered in this term
	proved     time.Time // last answer that said that its log holds match
	attempt    time.Time // start of the last replication RPC (not a heartbeat)
	installing bool      // a snapshot is on its way
	recovering uint64    // index of the last snapshot sent, until match came to what was committed; or 0
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
		Logger:          &hclogger{log: log, name: "raft-net", rate: newLogRate()},
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

// SetHeartbeatHandler does nothing, on purpose (#695). A transport without a
// fast path is a documented choice: heartbeats then come through Consumer.
func (t *transport) SetHeartbeatHandler(h func(raft.RPC)) {
	if canary.Is(canary.HeartbeatFastPath) {
		t.Transport.SetHeartbeatHandler(h)
	}
}

// AppendEntriesPipeline refuses, on purpose (#612).
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
		return errFailed
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

// newMarks returns the marks of the members if follower id does not know them, else nil. One that
// has restarted since may have lost them, so they are repeated.
func (t *transport) newMarks(id raft.ServerID, term uint64, now time.Time) []byte {
	r := t.receiver.recall
	if r == nil {
		return nil
	}
	marks := r.tell(term)
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.told[id]; bytes.Equal(marks, old.marks) && now.Sub(old.at) < marksEvery {
		return nil
	}
	return marks
}

// maxAwait bounds awaitContact, so that raft's own back-off takes over for a
// follower that stays away.
const (
	maxAwait   = time.Minute
	awaitEvery = 25 * time.Millisecond
)

// awaitContact waits, after a replication RPC failed, until the follower answers a
// heartbeat. Raft would back off up to 10 s and leave a follower that came back
// without entries for so long; it has no way to hear that heartbeats succeed.
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

// limit cuts args down to maxRPCBytes but never below one entry, and its commit
// index to what the follower will then be known to hold, as in the Raft paper.
// Raft reads the last entry from args after the call and sends the rest next, as
// it does when it cuts at MaxAppendEntries.
func (t *transport) limit(args *raft.AppendEntriesRequest) {
	var sum int64
	for i, e := range args.Entries {
		sum += int64(len(e.Data)) + entryOverheadBytes
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

// note updates what is known of follower id. A later term starts from nothing:
// the follower's log may have been cut since.
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

// forward passes RPCs of raft's own connections on.
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

// pass gives an RPC to raft, or answers it, and reports false when the transport
// ends. Those with entries wait beside it, without holding up heartbeats and votes,
// while the machine lags too far behind. After half the sender's timeout they pass
// anyway, so that a lag never looks like a dead follower.
func (t *transport) pass(rpc raft.RPC) bool {
	header, to, said, marks := open(rpc.Command)
	r := t.receiver.recall
	if to != t.receiver.replica || r != nil && r.ended() {
		t.wg.Add(1)
		go t.refuse(rpc, to)
		return true
	}
	if header != nil {
		t.receiver.timers.hear(raft.ServerID(header.ID), said, time.Now())
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
			r.voted(raft.ServerID(cmd.ID), cmd.Term) // its term was durable before it asked
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

// holdVote passes a request for a vote on once this replica may vote.
func (t *transport) holdVote(rpc raft.RPC, r *recall) {
	defer t.wg.Done()
	select {
	case <-r.asked:
	case <-t.stop:
		return
	}
	if r.ended() {
		rpc.Respond(nil, errFailed)
		return
	}
	select {
	case t.consume <- rpc:
	case <-t.stop:
	}
}

// addressed returns h with the replica that the message is for, the timers of this one, and the marks of a
// heartbeat, behind the address of its sender: raft's messages name their sender only.
func (t *transport) addressed(h raft.RPCHeader, to raft.ServerID, marks []byte) raft.RPCHeader {
	node, _, _ := splitSender(h.Addr)
	h.Addr = append(joinSender(node, to, t.receiver.timers.say(to)), marks...)
	return h
}

// EncodePeer is what raft says of itself in the header of an answer: its timers too.
func (t *transport) EncodePeer(id raft.ServerID, addr raft.ServerAddress) []byte {
	return joinSender(t.Transport.EncodePeer(id, addr), "", t.receiver.timers.say(""))
}

// heard notes the timers in the header of an answer of replica id.
func (t *transport) heard(id raft.ServerID, h raft.RPCHeader, err error) {
	if err == nil {
		_, _, said := splitSender(h.Addr)
		t.receiver.timers.hear(id, said, time.Now())
	}
}

// open takes what addressed wrote off the header of cmd; nil if it has none. It returns the replica that the
// message is for, the timers of its sender, and the marks.
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
	n := min(len(said), timersBytes)
	return h, to, said[:n], said[n:]
}

// refuse answers a message to another replica.
func (t *transport) refuse(rpc raft.RPC, to raft.ServerID) {
	defer t.wg.Done()
	if rpc.Reader != nil {
		io.Copy(io.Discard, rpc.Reader)
	}
	rpc.Respond(nil, fmt.Errorf("the message is for replica %q, here is %q", to, t.receiver.replica))
}

// cut drops from a what lies in the snapshot of this replica: it is committed, so
// every leader has the same, but the log of this replica may no longer show it.
func (r *receiver) cut(a *raft.AppendEntriesRequest) {
	b := r.boundary()
	if b == nil || a.PrevLogEntry >= b.index || a.PrevLogEntry == 0 && len(a.Entries) == 0 {
		return
	}
	for len(a.Entries) > 0 && a.Entries[0].Index <= b.index {
		a.Entries = a.Entries[1:]
	}
	a.PrevLogEntry, a.PrevLogTerm = b.index, b.term
}

// has reports whether this replica already applied all that the snapshot holds.
// Only the leader of the current term is answered here; all else is raft's.
func (r *receiver) has(s *raft.InstallSnapshotRequest) bool {
	return s.LastLogIndex <= r.applied() && s.Term == r.term()
}

// decline answers a snapshot with "have it" after reading it off the connection,
// as the Raft paper does: the log behind it is kept.
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

// interrupt closes the connections of the group, so that RPCs in flight return.
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
