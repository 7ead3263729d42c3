package transport

import (
	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// kind is that of a request. One that is no AppendEntries has the form of an AppendEntries without entries, with the
// last entry of its sender as the previous entry.
type kind byte

const (
	appendKind kind = iota
	preVoteKind
	voteKind
	transferVoteKind // a vote for a transfer of the leadership
	timeoutNowKind
	supportKind // whether the sender should campaign, because the process of the leader of Term has ended
	kinds
)

// check refuses a request with a field that its kind does not have.
func (k kind) check(a *raft.AppendEntriesRequest) error {
	if k != appendKind && a.LeaderCommitIndex != 0 ||
		k == timeoutNowKind && (a.Term != 0 || a.PrevLogEntry != 0 || a.PrevLogTerm != 0) {
		return rowraft.Errorf(rowraft.CodeCorrupt, "a message of kind %d has a field of another kind", k)
	}
	return nil
}

// command returns what raft receives of a request.
func (k kind) command(a *raft.AppendEntriesRequest) any {
	switch k {
	case preVoteKind:
		return &raft.RequestPreVoteRequest{RPCHeader: a.RPCHeader, Term: a.Term, LastLogIndex: a.PrevLogEntry,
			LastLogTerm: a.PrevLogTerm}
	case voteKind, transferVoteKind:
		return &raft.RequestVoteRequest{RPCHeader: a.RPCHeader, Term: a.Term, LastLogIndex: a.PrevLogEntry,
			LastLogTerm: a.PrevLogTerm, LeadershipTransfer: k == transferVoteKind}
	case timeoutNowKind:
		return &raft.TimeoutNowRequest{RPCHeader: a.RPCHeader}
	case supportKind:
		return &supportRequest{a.RPCHeader, a.Term, entry.Position{Index: a.PrevLogEntry, Term: a.PrevLogTerm}}
	}
	return a
}

// supportRequest is the question of AskSupport. Raft does not see it.
type supportRequest struct {
	raft.RPCHeader
	Term uint64
	last entry.Position
}

// AskSupport asks another voter whether this replica, whose log ends with last, should campaign, because the process of
// the leader of term has ended. false: no, or there is no answer.
func (t *Transport) AskSupport(id raft.ServerID, target raft.ServerAddress, term uint64, last entry.Position) bool {
	r, _, err := t.net.ask(target, supportKind, t.header(id), term, last.Index, last.Term)
	return err == nil && r.Success
}

// Nominate tells another voter to campaign.
func (t *Transport) Nominate(id raft.ServerID, target raft.ServerAddress) error {
	_, _, err := t.net.ask(target, timeoutNowKind, t.header(id), 0, 0, 0)
	return err
}

// header returns that of a message to id that is not raft's own.
func (t *Transport) header(id raft.ServerID) raft.RPCHeader {
	return t.addressed(raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(t.replica.ID),
		Addr: []byte(t.layer.Addr().String())}, id, nil)
}

// reply returns an answer of raft in the form of that to an AppendEntries, or why there is none.
func reply(a raft.RPCResponse) (resp *raft.AppendEntriesResponse, err error) {
	switch r := a.Response.(type) {
	case *raft.AppendEntriesResponse:
		resp = r
	case *raft.RequestPreVoteResponse:
		resp = &raft.AppendEntriesResponse{RPCHeader: r.RPCHeader, Term: r.Term, Success: r.Granted}
	case *raft.RequestVoteResponse:
		resp = &raft.AppendEntriesResponse{RPCHeader: r.RPCHeader, Term: r.Term, Success: r.Granted}
	case *raft.TimeoutNowResponse:
		resp = &raft.AppendEntriesResponse{RPCHeader: r.RPCHeader}
	}
	if err = a.Error; err == nil && resp == nil {
		err = ErrStopped
	}
	return resp, err
}

// RequestPreVote is not part of raft.Transport.
func (t *Network) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse) error {
	r, sent, err := t.ask(target, preVoteKind, args.RPCHeader, args.Term, args.LastLogIndex, args.LastLogTerm)
	if !sent {
		return t.NetworkTransport.RequestPreVote(id, target, args, resp)
	}
	*resp = raft.RequestPreVoteResponse{RPCHeader: r.RPCHeader, Term: r.Term, Granted: r.Success}
	return err
}

func (t *Network) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse) error {
	k := voteKind
	if args.LeadershipTransfer {
		k = transferVoteKind
	}
	r, sent, err := t.ask(target, k, args.RPCHeader, args.Term, args.LastLogIndex, args.LastLogTerm)
	if !sent {
		return t.NetworkTransport.RequestVote(id, target, args, resp)
	}
	*resp = raft.RequestVoteResponse{RPCHeader: r.RPCHeader, Term: r.Term, Granted: r.Success}
	return err
}

func (t *Network) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest,
	resp *raft.TimeoutNowResponse) error {
	r, sent, err := t.ask(target, timeoutNowKind, args.RPCHeader, 0, 0, 0)
	if !sent {
		return t.NetworkTransport.TimeoutNow(id, target, args, resp)
	}
	*resp = raft.TimeoutNowResponse{RPCHeader: r.RPCHeader}
	return err
}

// ask sends a request that is no AppendEntries. index and logTerm are those of the last entry.
func (t *Network) ask(target raft.ServerAddress, k kind, h raft.RPCHeader, term, index, logTerm uint64) (
	r raft.AppendEntriesResponse, sent bool, err error) {
	sent, err = t.send(target, k, &raft.AppendEntriesRequest{RPCHeader: h, Term: term, PrevLogEntry: index,
		PrevLogTerm: logTerm}, &r)
	return r, sent, err
}
