package transport

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/entry"
	"github.com/rowraft/rowraft/raftstore/marks"
	"github.com/rowraft/rowraft/raftstore/peer"
)

// metMember compares nothing.
type metMember struct{ marks.Process }

func (m metMember) Statement(rowraft.NodeID) (marks.Statement, error) {
	return marks.Statement{Self: m.Process}, nil
}
func (metMember) Compare(rowraft.NodeID, *marks.Statement) error { return nil }

// sharing opens the transports of groups on two servers that share connections.
func (n *testNet) sharing(id rowraft.NodeID, start uint64, groups ...string) map[string]*Transport {
	member := metMember{marks.Process{Start: start, Nonce: start}}
	quiet := slog.New(slog.DiscardHandler)
	shared := NewShared(n.ports[id].Layer(peer.ServerGroup, member), quiet)
	n.t.Cleanup(shared.Close)
	out := map[string]*Transport{}
	for _, g := range groups {
		tr := New(n.ports[id].Layer(g, member), Options{MaxRPCBytes: 64 << 10, MaxEntryBytes: 1 << 20,
			Pace: NewPace(64 << 20), Shared: shared, Logger: quiet}, emptyReplica(false))
		n.t.Cleanup(func() { tr.Close() })
		out[g] = tr
	}
	return out
}

// addressedBeat returns a heartbeat to replica r, which has this ID on both servers.
func addressedBeat(from *Transport) *raft.AppendEntriesRequest {
	h := raft.RPCHeader{ID: []byte("r"), Addr: []byte("n1"), ProtocolVersion: 3}
	return &raft.AppendEntriesRequest{Term: 7, RPCHeader: from.addressed(h, "r", nil)}
}

// sharedBeat sends a heartbeat over the shared connection, and reports whether it was used.
func sharedBeat(from *Transport, resp *raft.AppendEntriesResponse, timeout time.Duration) (bool, error) {
	return from.shared.send(from.layer, "n2", appendKind, addressedBeat(from), resp, timeout)
}

// sharedConnTo returns the connection of from to n2 for messages of class, once it is dialled.
func sharedConnTo(t *testing.T, from *Transport, class connClass) (c *sharedConn) {
	t.Helper()
	sent(t, func() error {
		if c = from.shared.connTo("n2", class); c == nil {
			return errors.New("not dialled yet")
		}
		return nil
	})
	return c
}

// A group uses the shared connection only after both its replicas have compared what they remember, on a connection of
// their own. Raft's main loop answers each heartbeat (#695), and a group that does not answer delays no other group.
func TestHeartbeatsShareAConnection(t *testing.T) {
	peers := newTestNet(t, "n1", "n2")
	from, to := peers.sharing("n1", 1, "a", "b", "slow", "c"), peers.sharing("n2", 2, "a", "b", "slow", "c")
	for _, g := range []string{"a", "b", "c"} {
		to[g].SetHeartbeatHandler(func(raft.RPC) { t.Error("a heartbeat took the fast path") })
		answered(t, to[g], func(rpc raft.RPC) {
			rpc.Respond(&raft.AppendEntriesResponse{RPCHeader: raft.RPCHeader{Addr: []byte("n2\x00\x00" + g)}, Term: 7,
				Success: true}, nil)
		})
	}
	var resp raft.AppendEntriesResponse
	for _, g := range []string{"a", "b", "slow"} {
		if shared, _ := sharedBeat(from[g], &resp, time.Second); shared {
			t.Errorf("group %s used the shared connection before its replicas compared anything", g)
		}
		sent(t, func() error { return from[g].layer.Exchange(t.Context(), "n2", 10*time.Second) })
	}
	beat := func(g string) {
		t.Helper()
		sent(t, func() error { // the shared connection is dialled concurrently
			shared, err := sharedBeat(from[g], &resp, 10*time.Second)
			if !shared {
				return errors.New("not shared yet")
			}
			return err
		})
		if resp.Term != 7 || !resp.Success || string(resp.Addr) != "n2\x00\x00"+g {
			t.Errorf("group %s: %+v", g, resp)
		}
	}
	beat("a")
	beat("b")
	// Group c has not compared anything. It does not send, and one that sends nevertheless gets no answer.
	conn := from["c"].shared.connTo("n2", controlClass)
	if from["c"].layer.MaySend(conn.Conn) {
		t.Error("a replica sends to one with which it has compared nothing")
	}
	if shared, err := conn.call(from["c"].layer, appendKind, addressedBeat(from["c"]), &resp, 10*time.Second); shared {
		t.Errorf("a replica answered one with which it has compared nothing (%v)", err)
	}

	stuck := make(chan error, 1)
	go func() {
		for {
			shared, err := sharedBeat(from["slow"], new(raft.AppendEntriesResponse), time.Minute)
			if shared || t.Context().Err() != nil {
				stuck <- err
				return
			}
			time.Sleep(time.Millisecond) //tidy:allow sleep polls: the other end may still compare
		}
	}()
	for taken := false; !taken; {
		select {
		case <-to["slow"].Consumer(): // raft has the heartbeat and does not answer
			taken = true
		case err := <-stuck:
			t.Fatal(err)
		}
	}
	beat("b")
	begun := time.Now()
	from["slow"].Close()
	if err := <-stuck; !errors.Is(err, ErrStopped) || time.Since(begun) > 30*time.Second {
		t.Errorf("the heartbeat of a group that has ended: %v after %v", err, time.Since(begun))
	}
}

// When a connection ends, the groups learn whether the process at the other end has ended, or not: then each end dials
// once to see that.
func TestAProcessThatEndsIsNoticed(t *testing.T) {
	peers := newTestNet(t, "n1", "n2")
	from, to := peers.sharing("n1", 1, "a")["a"], peers.sharing("n2", 2, "a")["a"]
	var ended atomic.Int32
	for tr, other := range map[*Transport]rowraft.NodeID{from: "n2", to: "n1"} {
		tr.replica.ServerEnded = func(node rowraft.NodeID) {
			if node != other {
				t.Errorf("server %s has ended, want %s", node, other)
			}
			ended.Add(1)
		}
	}
	answered(t, to, func(rpc raft.RPC) { rpc.Respond(&raft.AppendEntriesResponse{Term: 7, Success: true}, nil) })
	sent(t, func() error { return from.layer.Exchange(t.Context(), "n2", 10*time.Second) })
	beat := func() {
		t.Helper()
		sent(t, func() error {
			if shared, err := sharedBeat(from, new(raft.AppendEntriesResponse), 10*time.Second); !shared || err != nil {
				return fmt.Errorf("not shared yet (%v)", err)
			}
			return nil
		})
	}
	for range 3 {
		beat()
		before := peers.dials.Load()
		sharedConnTo(t, from, controlClass).Close()
		sent(t, func() error {
			if peers.dials.Load() < before+2 {
				return errors.New("not both ends have dialled")
			}
			return nil
		})
	}
	beat()
	before := peers.dials.Load()
	time.Sleep(300 * time.Millisecond) //tidy:allow sleep dials that answer dials would have no end
	if more := peers.dials.Load() - before; more > 0 {
		t.Errorf("%d dials in 300 ms without a reason", more)
	}
	if n := ended.Load(); n > 0 {
		t.Fatalf("%d times a process had ended that runs", n)
	}
	to.Close()
	to.shared.Close()
	peers.ports["n2"].Close()
	sent(t, func() error {
		if ended.Load() == 0 {
			return errors.New("not noticed yet")
		}
		return nil
	})
}

// Votes, and the request to begin an election, reach raft as they were sent, over the connection of all groups and over
// one of their group, and so do the answers.
func TestVotesAndTheirAnswers(t *testing.T) {
	peers := newTestNet(t, "n1", "n2")
	from, to := peers.sharing("n1", 1, "g")["g"], peers.sharing("n2", 2, "g")["g"]
	h := raft.RPCHeader{ID: []byte("r"), Addr: []byte("n1"), ProtocolVersion: 3}
	asked := map[kind]any{
		preVoteKind: &raft.RequestPreVoteRequest{RPCHeader: h, Term: 9, LastLogIndex: 8, LastLogTerm: 7},
		voteKind:    &raft.RequestVoteRequest{RPCHeader: h, Term: 9, LastLogIndex: 8, LastLogTerm: 7},
		transferVoteKind: &raft.RequestVoteRequest{RPCHeader: h, Term: 9, LastLogIndex: 8, LastLogTerm: 7,
			LeadershipTransfer: true},
		timeoutNowKind: &raft.TimeoutNowRequest{RPCHeader: h},
	}
	answer := raft.RPCHeader{ProtocolVersion: 3, Addr: []byte("n2\x00\x00g")}
	answered(t, to, func(rpc raft.RPC) {
		// A request that was sent twice may arrive late.
		if !slices.ContainsFunc(slices.Collect(maps.Values(asked)), func(cmd any) bool {
			return reflect.DeepEqual(rpc.Command, cmd)
		}) {
			t.Errorf("raft received %+v", rpc.Command)
		}
		switch cmd := rpc.Command.(type) {
		case *raft.RequestPreVoteRequest:
			rpc.Respond(&raft.RequestPreVoteResponse{RPCHeader: answer, Term: cmd.Term - 1, Granted: true}, nil)
		case *raft.RequestVoteRequest:
			rpc.Respond(&raft.RequestVoteResponse{RPCHeader: answer, Term: cmd.Term, Granted: !cmd.LeadershipTransfer}, nil)
		default:
			rpc.Respond(&raft.TimeoutNowResponse{}, nil)
		}
	})
	for _, shared := range []bool{false, true} {
		if shared {
			sent(t, func() error { return from.layer.Exchange(t.Context(), "n2", 10*time.Second) })
		}
		for _, term := range []uint64{6, 7} {
			if from.AskSupport("r", "n2", term, entry.Position{Index: 9, Term: 6}) != (term == 7) {
				t.Errorf("term %d: the support is wrong", term)
			}
		}
		for k, cmd := range asked {
			var got, expect any
			switch cmd := cmd.(type) {
			case *raft.RequestPreVoteRequest:
				resp := new(raft.RequestPreVoteResponse)
				sent(t, func() error { return from.RequestPreVote("r", "n2", cmd, resp) })
				resp.Addr = answer.Addr // the answer on a connection of the group has no sender
				got, expect = *resp, raft.RequestPreVoteResponse{RPCHeader: answer, Term: 8, Granted: true}
			case *raft.RequestVoteRequest:
				resp := new(raft.RequestVoteResponse)
				sent(t, func() error { return from.RequestVote("r", "n2", cmd, resp) })
				resp.Addr = answer.Addr
				got, expect = *resp, raft.RequestVoteResponse{RPCHeader: answer, Term: 9, Granted: k == voteKind}
			case *raft.TimeoutNowRequest:
				sent(t, func() error { return from.TimeoutNow("r", "n2", cmd, new(raft.TimeoutNowResponse)) })
			}
			if !reflect.DeepEqual(got, expect) {
				t.Errorf("kind %d: answer %+v, want %+v", k, got, expect)
			}
		}
	}
}

// Once two replicas have compared what they remember, each kind of request takes the connection of all groups, and an
// error of raft comes back on it.
func TestVotesShareAConnection(t *testing.T) {
	peers := newTestNet(t, "n1", "n2")
	from, to := peers.sharing("n1", 1, "g")["g"], peers.sharing("n2", 2, "g")["g"]
	answered(t, to, func(rpc raft.RPC) { rpc.Respond(nil, errors.New("the disk is full")) })
	sent(t, func() error { return from.layer.Exchange(t.Context(), "n2", 10*time.Second) })
	for k := range kinds - 1 { // raft does not see the last one
		args := addressedBeat(from)
		if k == timeoutNowKind {
			args.Term = 0
		}
		sent(t, func() error {
			shared, err := from.shared.send(from.layer, "n2", k, args, new(raft.AppendEntriesResponse), 10*time.Second)
			if !shared || err == nil || !strings.Contains(err.Error(), "the disk is full") {
				return fmt.Errorf("kind %d: shared %v, %w", k, shared, err)
			}
			return nil
		})
	}
	sent(t, func() error {
		c := from.shared.connTo("n2", controlClass)
		if c == nil {
			return errors.New("there is no connection of all groups")
		}
		requests := func() uint64 {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.last
		}
		before := requests()
		h := raft.RPCHeader{ID: []byte("r"), Addr: []byte("n1"), ProtocolVersion: 3}
		_ = from.RequestVote("r", "n2", &raft.RequestVoteRequest{RPCHeader: h, Term: 9}, new(raft.RequestVoteResponse))
		if requests() == before {
			return errors.New("the vote took another connection")
		}
		return nil
	})
}

// A late answer on a connection without any answer ends it for new requests, and after the same time for those that
// wait on it, which may be votes of other groups.
func TestASilentConnectionKeepsItsLaterRequests(t *testing.T) {
	t.Parallel()
	peers := newTestNet(t, "n1", "n2")
	from, to := peers.sharing("n1", 1, "hung", "g"), peers.sharing("n2", 2, "hung", "g")
	for _, g := range []string{"hung", "g"} {
		sent(t, func() error { return from[g].layer.Exchange(t.Context(), "n2", 10*time.Second) })
	}
	first := sharedConnTo(t, from["g"], controlClass)
	vote := make(chan error, 1)
	go func() {
		_, err := first.call(from["g"].layer, voteKind, addressedBeat(from["g"]), new(raft.AppendEntriesResponse),
			time.Minute)
		vote <- err
	}()
	rpc := <-to["g"].Consumer()
	const timeout = 5 * time.Second
	if _, err := first.call(from["hung"].layer, voteKind, addressedBeat(from["hung"]), new(raft.AppendEntriesResponse),
		timeout); rowraft.CodeOf(err) != rowraft.CodeDeadline {
		t.Fatalf("a group that does not answer: %v", err)
	}
	rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
	if err := <-vote; err != nil {
		t.Errorf("a vote that was under way: %v", err)
	}
	sent(t, func() error {
		if c := from["g"].shared.connTo("n2", controlClass); c == nil || c == first {
			return errors.New("new requests have no other connection")
		}
		return nil
	})
}

// Small entries reach raft over a connection of all groups, which is not that of the votes; large ones do not. If too
// much waits for the connection, small ones take one of the group, too.
func TestSmallEntriesShareAConnection(t *testing.T) {
	peers := newTestNet(t, "n1", "n2")
	from, to := peers.sharing("n1", 1, "g")["g"], peers.sharing("n2", 2, "g")["g"]
	var mu sync.Mutex
	received := map[uint64][]byte{} // by index; they must stay as they are
	answered(t, to, func(rpc raft.RPC) {
		mu.Lock()
		defer mu.Unlock()
		for _, l := range rpc.Command.(*raft.AppendEntriesRequest).Entries {
			received[l.Index] = l.Data
		}
		rpc.Respond(&raft.AppendEntriesResponse{RPCHeader: raft.RPCHeader{Addr: []byte("n2\x00\x00g")}, Term: 7,
			Success: true}, nil)
	})
	sent(t, func() error { return from.layer.Exchange(t.Context(), "n2", 10*time.Second) })
	last := uint64(0)
	entry := func(size int) *raft.AppendEntriesRequest {
		last++
		a := addressedBeat(from)
		a.Entries = []*raft.Log{sealedEntry(t, last, 7, bytes.Repeat([]byte{byte(last)}, size))}
		return a
	}
	share := func(a *raft.AppendEntriesRequest) error {
		var resp raft.AppendEntriesResponse
		shared, err := from.shared.send(from.layer, "n2", appendKind, a, &resp, 10*time.Second)
		if !shared || err != nil || !resp.Success || string(resp.Addr) != "n2\x00\x00g" {
			return fmt.Errorf("shared %v, answer %+v, error %v", shared, resp, err)
		}
		return nil
	}
	sent(t, func() error { return share(entry(100)) }) // the connection is dialled concurrently
	sent(t, func() error { return share(addressedBeat(from)) })
	requests := func(class connClass) uint64 {
		c := from.shared.connTo("n2", class)
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.last
	}
	expect := func(size int, shared bool) {
		t.Helper()
		entries, beats := requests(entryClass), requests(controlClass)
		var resp raft.AppendEntriesResponse
		if err := from.net.AppendEntries("r", "n2", entry(size), &resp); err != nil || !resp.Success {
			t.Fatalf("an entry of %d bytes: %+v, %v", size, resp, err)
		}
		if got := requests(entryClass) > entries; got != shared || requests(controlClass) != beats {
			t.Errorf("an entry of %d bytes shared a connection: %v", size, got)
		}
	}
	for range 20 {
		if err := share(entry(1000)); err != nil {
			t.Fatal(err)
		}
	}
	expect(1000, true)
	expect(maxSharedBytes, true)
	expect(maxSharedBytes+1, false)
	w := from.shared.connTo("n2", entryClass).out
	w.mu.Lock()
	w.buf = make([]byte, maxUnsentBytes+1) // run does not know of it
	w.mu.Unlock()
	if err := from.net.AppendEntries("r", "n2", entry(1000), new(raft.AppendEntriesResponse)); err != nil {
		t.Errorf("while too much waits: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	for i := last; i > last-20; i-- {
		data := received[i]
		if len(data) == 0 || !bytes.Equal(data, bytes.Repeat([]byte{byte(i)}, len(data))) {
			t.Errorf("raft received entry %d with other data", i)
		}
	}
}

// Messages that others add while one is written do not keep the goroutine that added it.
func TestNoGoroutineWritesForOthers(t *testing.T) {
	ours, theirs := net.Pipe()
	w := newGatheredWriter(ours)
	ran := make(chan struct{})
	go func() {
		w.run()
		close(ran)
	}()
	body := func(b []byte) ([]byte, bool) { return append(b, "message"...), true }
	for id := range uint64(100) { // the other end reads none yet
		if !w.add(id, body) {
			t.Fatalf("message %d was refused", id)
		}
	}
	r := bufio.NewReader(theirs)
	for id := range uint64(100) {
		if m, err := readShared(r, 100); err != nil || m.id != id || string(m.body) != "message" {
			t.Fatalf("read %d: %s, %v; want %d", m.id, m.body, err, id)
		}
	}
	theirs.Close()
	for w.add(0, body) { // until the write has failed
		runtime.Gosched()
	}
	<-ran
	if err := w.failure(nil); err == nil {
		t.Error("the writer ended without an error")
	}
}

// A leader learns at once that the replica of its follower has ended.
func TestAReplicaThatEndsAnswers(t *testing.T) {
	peers := newTestNet(t, "n1", "n2")
	from, to := peers.sharing("n1", 1, "g")["g"], peers.sharing("n2", 2, "g")["g"]
	sent(t, func() error { return from.layer.Exchange(t.Context(), "n2", 10*time.Second) })
	c := sharedConnTo(t, from, controlClass)
	result := make(chan error, 1)
	go func() {
		_, err := c.call(from.layer, appendKind, addressedBeat(from), new(raft.AppendEntriesResponse), time.Hour)
		result <- err
	}()
	<-to.Consumer() // raft has it and does not answer
	to.Close()
	if err := <-result; err == nil || !strings.Contains(err.Error(), ErrStopped.Error()) {
		t.Errorf("the answer of a replica that has ended: %v", err)
	}
}
