package transport

import (
	"bytes"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/time/rate"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/raftstore/entry"
	"github.com/rowraft/rowraft/raftstore/hclogger"
	"github.com/rowraft/rowraft/raftstore/marks"
	"github.com/rowraft/rowraft/raftstore/peer"
)

// RPCTimeout bounds one RPC, unless the heartbeat is longer: a vote is three log writes. With raft's 10 s, a cut in one
// direction would block heartbeats for that time after it healed.
const RPCTimeout = time.Second

// raftEntryBytes is more than raft's own entries need.
const raftEntryBytes = 1 << 20

// ErrStopped is the answer for a message that arrives after the group has stopped.
var ErrStopped = rowraft.Errorf(rowraft.CodeInternal, "the group has stopped")

// Transport is raft's network transport with these changes:
//
//   - No heartbeat fast path: a heartbeat that is handled concurrently with the main goroutine can raise the term under
//     the leader loop, and logs diverge (#695).
//   - No pipelining: one failed AppendEntries ends replication to a follower forever (#612).
//   - Large entries travel on connections of their own (Network), and small ones, heartbeats and votes on connections
//     that all groups share (Shared).
//   - An AppendEntries that tells its follower nothing waits for news (quiet).
//   - An AppendEntries carries at most Options.MaxRPCBytes; raft counts entries.
//   - A follower whose machine lags delays AppendEntries before they reach raft's main goroutine, which would block
//     and miss elections.
//   - Entries below the snapshot of this replica are dropped from an AppendEntries, and a snapshot below what this
//     replica applied is answered without an install: raft would refuse the former and lose its log over the latter
//     (raftstore/DESIGN.md).
//   - A message names the replica it is for, and another replica refuses it. A node that lost a replica of the group
//     and has a new one must not answer or vote for the old one.
type Transport struct {
	raft.Transport // *Network, perhaps wrapped by a test
	net            *Network
	layer          *peer.Layer
	shared         *Shared // nil in tests
	log            *slog.Logger

	maxRPCBytes   int64
	maxEntryBytes int64
	pace          *rate.Limiter
	replica       Replica

	consume chan raft.RPC // to raft; unbuffered, so that raft has each message that pass has passed
	stop    chan struct{} // closed by Close
	once    sync.Once
	wg      sync.WaitGroup // all goroutines

	quiet   quiet
	waiting atomic.Int32  // requests of Shared that wait for raft
	matches atomic.Uint64 // how often a match index of a follower has changed

	mu        sync.Mutex // guards the maps; not held across I/O
	followers map[raft.ServerID]*Progress
	marksSent map[raft.ServerID]sentMarks
}

// sentMarks are the marks last sent to a follower.
type sentMarks struct {
	payload []byte
	at      time.Time
}

var (
	_ raft.Transport   = (*Transport)(nil)
	_ raft.WithPreVote = (*Transport)(nil)
	_ raft.WithClose   = (*Transport)(nil)
)

// Options configure a transport.
type Options struct {
	MaxRPCBytes   int64         // of the entries in one AppendEntries
	MaxEntryBytes int64         // of one entry
	Pace          *rate.Limiter // of the snapshots that it sends
	Shared        *Shared       // nil: all messages travel on the connections of the group, and none waits
	Logger        *slog.Logger
	// Wrap returns a transport around the one that sends the messages. For tests; nil: no wrapper.
	Wrap func(raft.Transport) raft.Transport
}

// NewPace returns the limiter for all transports of a server.
func NewPace(bytesPerSecond int64) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(bytesPerSecond), paceBytes)
}

// New returns the transport of the replica self over layer, which Close closes too.
func New(layer *peer.Layer, o Options, self Replica) *Transport {
	log := o.Logger
	inFlight := 1
	if canary.Is(canary.PipelinedAppends) {
		inFlight = 2
	}
	n := newNetwork(raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:          layer,
		MaxPool:         3,
		MaxRPCsInFlight: inFlight,
		Timeout:         self.Timeout,
		Logger:          hclogger.New(log, "raft-net", hclogger.NewRate()),
	}), layer, o.Shared, self.Timeout)
	t := &Transport{
		Transport: n, net: n, layer: layer, shared: o.Shared, log: log,
		maxRPCBytes: o.MaxRPCBytes, maxEntryBytes: max(o.MaxEntryBytes, raftEntryBytes), pace: o.Pace, replica: self,
		consume:   make(chan raft.RPC),
		stop:      make(chan struct{}),
		followers: map[raft.ServerID]*Progress{},
		marksSent: map[raft.ServerID]sentMarks{},
	}
	if o.Wrap != nil {
		t.Transport = o.Wrap(n)
	}
	t.wg.Go(t.forward)
	t.wg.Go(t.acceptAppends)
	if t.shared != nil {
		t.shared.join(t)
	}
	return t
}

// SetHeartbeatHandler deliberately does nothing (#695). raft.Transport documents that a transport may have no fast
// path: heartbeats then arrive through Consumer.
func (t *Transport) SetHeartbeatHandler(h func(raft.RPC)) {
	if canary.Is(canary.HeartbeatFastPath) {
		t.Transport.SetHeartbeatHandler(h)
	}
}

// AppendEntriesPipeline deliberately refuses (#612).
func (t *Transport) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	if canary.Is(canary.PipelinedAppends) {
		return t.Transport.AppendEntriesPipeline(id, to)
	}
	return nil, raft.ErrPipelineReplicationNotSupported
}

// RequestPreVote is not part of raft.Transport.
func (t *Transport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse) error {
	if err := t.mayAskForVotes(); err != nil {
		return err
	}
	sent := *args
	sent.RPCHeader = t.addressed(args.RPCHeader, id, nil)
	err := t.Transport.(raft.WithPreVote).RequestPreVote(id, target, &sent, resp)
	t.received(id, resp.RPCHeader, err)
	return err
}

func (t *Transport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse) error {
	if err := t.mayAskForVotes(); err != nil {
		return err
	}
	sent := *args // raft shares args between the calls to all voters
	sent.RPCHeader = t.addressed(args.RPCHeader, id, nil)
	err := t.Transport.RequestVote(id, target, &sent, resp)
	t.received(id, resp.RPCHeader, err)
	if r := t.replica.Guard; r != nil && err == nil && resp.Granted {
		r.Voted(id, args.Term)
	}
	return err
}

// mayAskForVotes waits until this replica has asked its peers what they remember of it.
func (t *Transport) mayAskForVotes() error {
	r := t.replica.Guard
	if r == nil {
		return nil
	}
	select {
	case <-r.MayVote:
	case <-t.stop:
		return ErrStopped
	}
	if r.Stopped() {
		return ErrStopped
	}
	return nil
}

func (t *Transport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest,
	resp *raft.TimeoutNowResponse) error {
	sent := *args
	sent.RPCHeader = t.addressed(args.RPCHeader, id, nil)
	return t.Transport.TimeoutNow(id, target, &sent, resp)
}

func (t *Transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	committed := args.LeaderCommitIndex // before limit cuts it
	replicates := args.PrevLogEntry != 0 || len(args.Entries) > 0 || args.LeaderCommitIndex != 0
	delayed := false
	if replicates && t.tellsNothing(id, args) {
		delayed = t.delayAppend(target, args.PrevLogEntry)
	}
	if !replicates {
		delayed = t.delayHeartbeat(id, target, args.Term)
	}
	if delayed && t.replica.Leads != nil && !t.replica.Leads(args.Term) {
		return raft.ErrNotLeader // it stepped down meanwhile: the message would delay the election of its successor
	}
	if replicates {
		t.limit(args)
		t.note(id, args.Term, func(p *Progress) { p.Attempt = time.Now() })
	}
	msg := *args
	sent := time.Now()
	var payload []byte // marks: only in heartbeats, which no entry waits for
	if !replicates {
		payload = t.newMarks(id, args.Term, sent)
	}
	msg.RPCHeader = t.addressed(args.RPCHeader, id, payload)
	err := t.Transport.AppendEntries(id, target, &msg, resp)
	if err == nil && payload != nil {
		t.mu.Lock()
		t.marksSent[id] = sentMarks{payload, sent}
		t.mu.Unlock()
	}
	if err != nil && replicates && t.awaitContact(id, args.Term) {
		*resp = raft.AppendEntriesResponse{}
		sent = time.Now()
		t.note(id, args.Term, func(p *Progress) { p.Attempt = time.Now() })
		err = t.Transport.AppendEntries(id, target, &msg, resp)
	}
	if err != nil {
		t.note(id, args.Term, func(p *Progress) {
			if replicates {
				p.failures++
			} else {
				p.missed = true
			}
		})
		if !replicates {
			t.quiet.missed()
		}
		return err
	}
	t.received(id, resp.RPCHeader, nil)
	now := time.Now()
	t.note(id, args.Term, func(p *Progress) {
		p.Contact = now
		if resp.Term == args.Term && sent.After(p.Confirmed) {
			p.Confirmed = sent
		}
		if !replicates {
			p.heartbeat, p.missed = sent, false
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
		p.Proved = now
		p.told = max(p.told, args.LeaderCommitIndex)
		if match >= committed {
			p.Recovering = 0
		}
		if match > p.Match {
			p.Match, p.MatchSince = match, now
			t.matches.Add(1)
		}
	})
	return nil
}

// newMarks returns the marks of the members if follower id does not have them, otherwise nil. It repeats them every
// marks.WriteEvery, because a follower that restarted may have lost them.
func (t *Transport) newMarks(id raft.ServerID, term uint64, now time.Time) []byte {
	r := t.replica.Guard
	if r == nil {
		return nil
	}
	payload := r.Marks(term)
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.marksSent[id]; bytes.Equal(payload, old.payload) && now.Sub(old.at) < marks.WriteEvery {
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
func (t *Transport) awaitContact(id raft.ServerID, term uint64) bool {
	failed := time.Now()
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for t.replica.Leads(term) && time.Since(failed) < maxAwait {
		if p, ok := t.Progress(id, term); ok && p.Contact.After(failed) {
			return true
		}
		t.note(id, term, func(p *Progress) { p.Attempt = time.Now() }) // not wedged
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
func (t *Transport) limit(args *raft.AppendEntriesRequest) {
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

// sendSnapshot sends data, or what Expand makes of it.
func (t *Transport) sendSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest,
	resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if t.replica.Expand != nil {
		full, size, err := t.replica.Expand(data)
		if err != nil {
			return err
		}
		if full != nil {
			defer full.Close()
			data, args.Size = full, size
		}
	}
	return t.Transport.InstallSnapshot(id, target, args, resp, &pacedReader{data, t.pace, t.stop})
}

func (t *Transport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest,
	resp *raft.InstallSnapshotResponse, data io.Reader) error {
	t.note(id, args.Term, func(p *Progress) {
		p.Installing, p.Recovering, p.Attempt = true, args.LastLogIndex, time.Now()
	})
	sent := *args
	sent.RPCHeader = t.addressed(args.RPCHeader, id, nil)
	err := t.sendSnapshot(id, target, &sent, resp, data)
	now := time.Now()
	t.note(id, args.Term, func(p *Progress) {
		p.Installing = false
		if err != nil {
			p.failures++
			return
		}
		p.Contact = now
		if resp.Success {
			p.Proved = now
		}
		if resp.Success && args.LastLogIndex > p.Match {
			p.Match, p.MatchSince = args.LastLogIndex, now
			t.matches.Add(1)
		}
	})
	return err
}

// addressed returns h with additions after the address of the sender: the replica that the message is for, the timers
// and turn flags of this replica, and the marks of a heartbeat. Raft's own messages name only their sender.
func (t *Transport) addressed(h raft.RPCHeader, to raft.ServerID, marks []byte) raft.RPCHeader {
	node, _, _, _, _ := splitSender(h.Addr)
	h.Addr = append(joinSender(node, to, t.replica.Timers.ReportTo(to), t.replica.Turns.FlagsTo(to)), marks...)
	return h
}

// EncodePeer adds this replica's timers and turn flags to the sender in the header of an answer.
func (t *Transport) EncodePeer(id raft.ServerID, addr raft.ServerAddress) []byte {
	return joinSender(t.Transport.EncodePeer(id, addr), "", t.replica.Timers.ReportTo(""),
		t.replica.Turns.FlagsTo(""))
}

// received records the timers and turn flags in the header of an answer of replica id.
func (t *Transport) received(id raft.ServerID, h raft.RPCHeader, err error) {
	if err == nil && len(h.Addr) > 0 { // on a connection of the group it has none: no timers and turns
		_, _, report, flags, _ := splitSender(h.Addr)
		now := time.Now()
		t.replica.Timers.Receive(id, report, now)
		t.replica.Turns.Receive(id, flags, now)
	}
}

// Interrupt closes the connections of the group, so that running RPCs return.
func (t *Transport) Interrupt() {
	t.quiet.end()
	t.net.Close()
}

// Close ends the transport and waits for its goroutines.
func (t *Transport) Close() error {
	t.once.Do(func() {
		if t.shared != nil {
			t.shared.leave(t)
		}
		t.Interrupt()
		t.net.CloseStreams()
		t.net.closeIdle()
		close(t.stop)
		t.wg.Wait()
		t.layer.Wait()
	})
	return nil
}
