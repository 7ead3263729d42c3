package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/entry"
	"github.com/rowraft/rowraft/raftstore/marks"
	"github.com/rowraft/rowraft/raftstore/peer"
	"github.com/rowraft/rowraft/raftstore/timers"
	"github.com/rowraft/rowraft/raftstore/turns"
)

// answered answers what comes in through tr until the test ends.
func answered(t *testing.T, tr *Transport, answer func(raft.RPC)) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case rpc := <-tr.Consumer():
				answer(rpc)
			case <-stop:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		wg.Wait()
	})
}

// sent repeats a call until it succeeds: a busy machine may be slower than the timeout of a call.
func sent(t *testing.T, call func() error) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; {
		if err := call(); err == nil {
			return
		} else if t.Log(err); time.Now().After(end) {
			t.Fatal("no call is answered")
		}
	}
}

// testNet is the peer ports of some nodes on loopback.
type testNet struct {
	t     *testing.T
	ports map[rowraft.NodeID]*peer.Port
	addrs map[rowraft.NodeID]string
	dials atomic.Int32
}

func newTestNet(t *testing.T, nodes ...rowraft.NodeID) *testNet {
	n := &testNet{t: t, ports: map[rowraft.NodeID]*peer.Port{}, addrs: map[rowraft.NodeID]string{}}
	quiet := slog.New(slog.DiscardHandler)
	for _, id := range nodes {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		m, err := marks.Open(vfs.NewMem(), "/", quiet)
		if err != nil {
			t.Fatal(err)
		}
		n.addrs[id] = ln.Addr().String()
		n.ports[id] = peer.Listen(peer.Options{
			Cluster: "c1", Node: id, Listener: ln, DialTimeout: time.Second, Logger: quiet,
			Resolve: func(id rowraft.NodeID) (string, error) { return n.addrs[id], nil },
			Dial: func(ctx context.Context, addr string) (net.Conn, error) {
				n.dials.Add(1)
				return new(net.Dialer).DialContext(ctx, "tcp", addr)
			},
		}, m)
		t.Cleanup(func() { n.ports[id].Close() })
	}
	return n
}

// transport opens the transport of a group without raft.
func (n *testNet) transport(id rowraft.NodeID, rcv Replica) *Transport {
	tr := New(n.ports[id].Layer("g", nil), Options{
		MaxRPCBytes: 64 << 10, MaxEntryBytes: 1 << 20, Pace: NewPace(64 << 20), Logger: slog.New(slog.DiscardHandler),
	}, rcv)
	n.t.Cleanup(func() { tr.Close() })
	return tr
}

// #612: no pipelining, neither through our transport nor below it.
func TestReplicationIsNotPipelined(t *testing.T) {
	tr := newTestNet(t, "node-0").transport("node-0", emptyReplica(false))
	for _, tr := range []raft.Transport{tr, tr.net} {
		if _, err := tr.AppendEntriesPipeline("r", "node-0"); !errors.Is(err, raft.ErrPipelineReplicationNotSupported) {
			t.Errorf("%T: AppendEntriesPipeline: %v, want refusal", tr, err)
		}
	}
}

// #695: no fast path for heartbeats. The handler that raft sets must never see one.
func TestHeartbeatsTakeTheMainPath(t *testing.T) {
	peers := newTestNet(t, "node-0", "node-1")
	a, b := peers.transport("node-0", emptyReplica(false)), peers.transport("node-1", emptyReplica(false))
	b.SetHeartbeatHandler(func(rpc raft.RPC) {
		t.Error("the heartbeat took the fast path")
		rpc.Respond(&raft.AppendEntriesResponse{Term: 7, Success: true}, nil)
	})
	answered(t, b, func(rpc raft.RPC) { rpc.Respond(&raft.AppendEntriesResponse{Term: 7, Success: true}, nil) })
	h := raft.RPCHeader{ID: []byte("r"), Addr: []byte("node-0"), ProtocolVersion: 3}
	heartbeat := &raft.AppendEntriesRequest{Term: 7, RPCHeader: a.addressed(h, "r", nil)}
	var resp raft.AppendEntriesResponse
	// This server sends none on raft's connections, which alone have the fast path; another one may.
	sent(t, func() error { return a.net.NetworkTransport.AppendEntries("r", "node-1", heartbeat, &resp) })
	if resp.Term != 7 {
		t.Fatalf("heartbeat answered %+v", resp)
	}
}

// emptyReplica is that of a replica that holds nothing.
func emptyReplica(backlogFull bool) Replica {
	return Replica{
		Timers: &timers.Group{}, Turns: &turns.Group{}, Timeout: RPCTimeout,
		ID:          "r",
		BacklogFull: func() bool { return backlogFull },
		Applied:     func() uint64 { return 0 },
		Boundary:    func() *entry.Position { return nil },
		Term:        func() uint64 { return 0 },
		Leads:       func(uint64) bool { return false },
		ServerEnded: func(rowraft.NodeID) {},
		Supports: func(id raft.ServerID, term uint64, last entry.Position) bool {
			return id == "r" && term == 7 && last == entry.Position{Index: 9, Term: 6}
		},
	}
}

// An AppendEntries is cut by bytes, keeps at least one entry, and its commit index never exceeds its last entry.
func TestAppendEntriesIsCutByBytes(t *testing.T) {
	entries := func(sizes ...int) (out []*raft.Log) {
		for i, s := range sizes {
			out = append(out, &raft.Log{Index: uint64(11 + i), Data: make([]byte, s)})
		}
		return out
	}
	for _, tc := range []struct {
		name       string
		entries    []*raft.Log
		commit     uint64
		wantN      int
		wantCommit uint64
	}{
		{"all fit", entries(100, 100, 100), 12, 3, 12},
		{"two fit", entries(400, 400, 400), 13, 2, 12},
		{"the first alone is too large", entries(5000, 1), 13, 1, 11},
		{"no entries", nil, 13, 0, 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := &Transport{maxRPCBytes: 1000}
			args := &raft.AppendEntriesRequest{PrevLogEntry: 10, Entries: tc.entries, LeaderCommitIndex: tc.commit}
			tr.limit(args)
			if len(args.Entries) != tc.wantN || args.LeaderCommitIndex != tc.wantCommit {
				t.Errorf("%d entries, commit %d; want %d, %d", len(args.Entries), args.LeaderCommitIndex, tc.wantN, tc.wantCommit)
			}
		})
	}
}

// The same with two transports: raft sends more than fits, and the follower gets the part that fits.
func TestAppendEntriesOnTheWireIsCutByBytes(t *testing.T) {
	peers := newTestNet(t, "node-0", "node-1")
	a, b := peers.transport("node-0", emptyReplica(false)), peers.transport("node-1", emptyReplica(false))
	got := make(chan int, 1)
	answered(t, b, func(rpc raft.RPC) {
		select {
		case got <- len(rpc.Command.(*raft.AppendEntriesRequest).Entries):
		default: // it was sent again
		}
		rpc.Respond(&raft.AppendEntriesResponse{Term: 1, Success: true}, nil)
	})
	req := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ID: []byte("r"), Addr: []byte("node-0"),
		ProtocolVersion: 3}, Term: 1}
	for i := range uint64(10) {
		req.Entries = append(req.Entries, &raft.Log{Index: i + 1, Term: 1, Data: make([]byte, 20<<10)})
	}
	sent(t, func() error {
		again := *req
		return a.AppendEntries("r", "node-1", &again, &raft.AppendEntriesResponse{})
	})
	if n := <-got; n != 3 {
		t.Errorf("%d entries of 20 KiB are in one RPC of 64 KiB, want 3", n)
	}
}

// A follower whose machine lags holds back entries for a limited time, but not heartbeats.
func TestBacklogHoldsEntriesNotHeartbeats(t *testing.T) {
	peers := newTestNet(t, "node-0", "node-1")
	a := peers.transport("node-0", emptyReplica(false))
	b := peers.transport("node-1", emptyReplica(true))
	const to = raft.ServerAddress("node-1")
	header := raft.RPCHeader{ID: []byte("r"), Addr: []byte("node-0"), ProtocolVersion: 3}
	type arrival struct {
		term    uint64
		entries int
	}
	arrivals := make(chan arrival, 100)
	answered(t, b, func(rpc raft.RPC) {
		req := rpc.Command.(*raft.AppendEntriesRequest)
		arrivals <- arrival{req.Term, len(req.Entries)}
		rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
	})
	for term := uint64(1); term <= 20; term++ {
		entries := make(chan error, 1)
		begin := time.Now()
		go func() {
			entries <- a.AppendEntries("r", to, &raft.AppendEntriesRequest{RPCHeader: header, Term: term,
				Entries: []*raft.Log{{Index: 1, Term: 1}}}, &raft.AppendEntriesResponse{})
		}()
		err := a.AppendEntries("r", to, &raft.AppendEntriesRequest{RPCHeader: header, Term: term},
			&raft.AppendEntriesResponse{})
		beat := time.Since(begin)
		err = errors.Join(err, <-entries)
		held := time.Since(begin)
		if err == nil && held < RPCTimeout/4 {
			t.Fatalf("the entries were held for %v, want about %v", held, RPCTimeout/2)
		}
		if err != nil || beat > RPCTimeout/4 || held > RPCTimeout {
			t.Logf("a busy machine? The heartbeat took %v, the entries were held for %v: %v", beat, held, err)
			continue
		}
		for first := range arrivals {
			if first.term == term {
				if first.entries != 0 {
					t.Error("the heartbeat waited for the entries")
				}
				return
			}
		}
	}
	t.Error("the heartbeat is never answered at once, or the entries are held for ever")
}

// Entries below the snapshot of a follower are dropped from the messages of a leader.
func TestEntriesBelowSnapshotAreCut(t *testing.T) {
	r := Replica{Boundary: func() *entry.Position { return &entry.Position{Index: 10, Term: 3} }}
	for _, tc := range []struct {
		name     string
		prev     uint64
		from, to uint64 // entries
		wantPrev uint64
		want     []uint64
	}{
		{"heartbeat", 0, 1, 0, 0, nil},
		{"all above", 10, 11, 12, 10, []uint64{11, 12}},
		{"later", 15, 16, 16, 15, []uint64{16}},
		{"across", 7, 8, 12, 10, []uint64{11, 12}},
		{"all below", 3, 4, 9, 10, nil},
		{"from the first", 0, 1, 11, 10, []uint64{11}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := &raft.AppendEntriesRequest{PrevLogEntry: tc.prev, PrevLogTerm: 1}
			for i := tc.from; i <= tc.to; i++ {
				a.Entries = append(a.Entries, &raft.Log{Index: i})
			}
			r.cut(a)
			var got []uint64
			for _, e := range a.Entries {
				got = append(got, e.Index)
			}
			if a.PrevLogEntry != tc.wantPrev || !slices.Equal(got, tc.want) {
				t.Errorf("entries %v after %d, want %v after %d", got, a.PrevLogEntry, tc.want, tc.wantPrev)
			}
			if tc.prev != tc.wantPrev && a.PrevLogTerm != 3 {
				t.Errorf("previous term %d, want that of the snapshot", a.PrevLogTerm)
			}
		})
	}
}

// The same with two transports.
func TestEntriesBelowSnapshotDoNotReachRaft(t *testing.T) {
	peers := newTestNet(t, "node-0", "node-1")
	a := peers.transport("node-0", emptyReplica(false))
	rcv := emptyReplica(false)
	rcv.Boundary = func() *entry.Position { return &entry.Position{Index: 10, Term: 3} }
	b := peers.transport("node-1", rcv)
	got := make(chan raft.AppendEntriesRequest, 1)
	answered(t, b, func(rpc raft.RPC) {
		select {
		case got <- *rpc.Command.(*raft.AppendEntriesRequest):
		default: // it was sent again
		}
		rpc.Respond(&raft.AppendEntriesResponse{Term: 3, Success: true}, nil)
	})
	req := &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ID: []byte("r"), Addr: []byte("node-0"), ProtocolVersion: 3},
		Term:      3, PrevLogEntry: 8, PrevLogTerm: 2,
		Entries: []*raft.Log{{Index: 9, Term: 2}, {Index: 10, Term: 3}, {Index: 11, Term: 3}},
	}
	sent(t, func() error {
		again := *req
		again.Entries = slices.Clone(req.Entries)
		return a.AppendEntries("r", "node-1", &again, &raft.AppendEntriesResponse{})
	})
	if r := <-got; len(r.Entries) != 1 || r.PrevLogEntry != 10 || r.PrevLogTerm != 3 {
		t.Errorf("raft was given %d entries after %d of term %d, want 1 after 10 of term 3", len(r.Entries), r.PrevLogEntry,
			r.PrevLogTerm)
	}
}

// A snapshot of applied entries is read from the connection and answered without raft, which would delete the log after
// it.
func TestRedundantSnapshotIsDeclined(t *testing.T) {
	peers := newTestNet(t, "node-0", "node-1")
	a := peers.transport("node-0", emptyReplica(false))
	rcv := emptyReplica(false)
	rcv.Applied = func() uint64 { return 100 }
	rcv.Term = func() uint64 { return 7 }
	b := peers.transport("node-1", rcv)
	var reached atomic.Int64
	answered(t, b, func(rpc raft.RPC) {
		reached.Add(1)
		io.Copy(io.Discard, rpc.Reader)
		rpc.Respond(&raft.InstallSnapshotResponse{}, nil)
	})
	for _, tc := range []struct {
		index, term uint64
		declined    bool
	}{{100, 7, true}, {101, 7, false}, {100, 6, false}, {100, 8, false}} {
		before := reached.Load()
		var resp raft.InstallSnapshotResponse
		payload := make([]byte, 300<<10)
		req := &raft.InstallSnapshotRequest{
			RPCHeader: raft.RPCHeader{ID: []byte("r"), Addr: []byte("node-0"), ProtocolVersion: 3}, SnapshotVersion: 1,
			Term: tc.term, LastLogIndex: tc.index, Size: int64(len(payload)),
		}
		sent(t, func() error {
			return a.InstallSnapshot("r", "node-1", req, &resp, bytes.NewReader(payload))
		})
		if declined := reached.Load() == before; declined != tc.declined || resp.Success != tc.declined {
			t.Errorf("snapshot of entry %d in term %d: declined %v, answer %+v; want declined %v", tc.index, tc.term, declined,
				resp, tc.declined)
		}
	}
}

// TestSnapshotsAreSentAtAPace: all snapshots that a node sends share the rate, a slower reader does not wait, and the
// end of the transport ends the wait.
func TestSnapshotsAreSentAtAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, stop := NewPace(1<<20), make(chan struct{})
		begin := time.Now()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, &pacedReader{bytes.NewReader(make([]byte, 4<<20)), p,
					stop}, make([]byte, 32<<10))
				if n != 4<<20 || err != nil {
					t.Errorf("read %d bytes, %v", n, err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(begin); took < 7900*time.Millisecond || took > 8*time.Second {
			t.Errorf("two times 4 MiB at 1 MiB/s took %v", took)
		}
		time.Sleep(time.Hour) //tidy:allow sleep virtual time
		late := &pacedReader{bytes.NewReader(make([]byte, 64<<20)), p, stop}
		read := func() time.Duration {
			begin := time.Now()
			if _, err := io.ReadFull(late, make([]byte, paceBytes)); err != nil {
				t.Error(err)
			}
			return time.Since(begin)
		}
		if took := read(); took != 0 {
			t.Errorf("the first bytes after a pause took %v", took)
		}
		// the limiter saves only one burst
		if took, want := read(), time.Second*paceBytes/(1<<20); took < want-time.Millisecond {
			t.Errorf("the next bytes after a pause took %v, want %v", took, want)
		}
		close(stop)
		begin = time.Now()
		if _, err := io.Copy(io.Discard, late); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("after the end it took %v", took)
		}
	})
}

// Requests of a group that cannot share a connection do not take raft's connections.
func TestRequestsTravelOnEntryConnections(t *testing.T) {
	h := raft.RPCHeader{ID: []byte("r"), Addr: []byte("node-0"), ProtocolVersion: 3}
	for _, send := range []func(*Transport) error{
		func(a *Transport) error {
			return a.AppendEntries("r", "node-1", &raft.AppendEntriesRequest{RPCHeader: h, Term: 1},
				&raft.AppendEntriesResponse{})
		},
		func(a *Transport) error {
			return a.AppendEntries("r", "node-1", &raft.AppendEntriesRequest{RPCHeader: h, Term: 1,
				Entries: []*raft.Log{sealedEntry(t, 1, 1, []byte("x"))}}, &raft.AppendEntriesResponse{})
		},
		func(a *Transport) error {
			return a.TimeoutNow("r", "node-1", &raft.TimeoutNowRequest{RPCHeader: h},
				new(raft.TimeoutNowResponse))
		},
	} {
		peers := newTestNet(t, "node-0", "node-1")
		a, b := peers.transport("node-0", emptyReplica(false)), peers.transport("node-1", emptyReplica(false))
		answered(t, b, func(rpc raft.RPC) { rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil) })
		sent(t, func() error { return send(a) })
		a.net.mu.Lock()
		got := len(a.net.idle["node-1"])
		a.net.mu.Unlock()
		if got != 1 {
			t.Errorf("%d entry connections are open after a request, want 1", got)
		}
	}
}
