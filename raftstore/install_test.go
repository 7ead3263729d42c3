package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/entry"
	"github.com/rowraft/rowraft/raftstore/raftlog"
)

// Three defects of hashicorp/raft 1.7.3 meet after InstallSnapshot with a
// monotonic log: a follower whose log begins right after its snapshot refuses
// entries that a leader repeats from there; it is sent the snapshot again and
// drops the entries behind it, acknowledged ones too; and it keeps their last
// index in memory. Seen as an endless loop of installs, then as a panic.

// lossyTransport loses the answers to AppendEntries with entries while lose is set.
type lossyTransport struct {
	*appendTransport
	lose, lost, installs, installed *atomic.Int64
}

func (l *lossyTransport) AppendEntries(id raft.ServerID, to raft.ServerAddress, a *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	err := l.appendTransport.AppendEntries(id, to, a, r)
	if err == nil && len(a.Entries) > 0 && l.installs.Load() > 0 && l.lose.Add(-1) >= 0 {
		l.lost.Add(1)
		return errors.New("injected: the answer was lost")
	}
	return err
}

func (l *lossyTransport) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, a *raft.InstallSnapshotRequest, r *raft.InstallSnapshotResponse, data io.Reader) error {
	l.installs.Add(1)
	err := l.appendTransport.InstallSnapshot(id, to, a, r, data)
	if err == nil {
		l.installed.Add(1)
	}
	return err
}

func TestLostAnswersAfterInstallDoNotLoop(t *testing.T) {
	for _, backend := range raftlog.Backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			var lose, lost, installs, installed atomic.Int64
			c := patientCluster(t, 3, func(o *Options) {
				o.Backend = backend
				o.SegmentSizeBytes = 64 << 10
				o.TrailingLogBytes = 1
				o.hooks.wrapTransport = func(_ string, tr raft.Transport) raft.Transport {
					return &lossyTransport{tr.(*appendTransport), &lose, &lost, &installs, &installed}
				}
			})
			c.propose("first")
			slow := c.followers()[0]
			c.stop(slow)
			pad := string(make([]byte, 16<<10))
			c.outrun(pad)
			l := c.leader()
			if err := l.group.Snapshot(); err != nil {
				t.Fatal(err)
			}
			for i := range 10 {
				c.propose(fmt.Sprint("b", i))
			}
			lose.Store(4)
			c.start(slow)
			c.converged(c.propose("last"))
			eventually(t, "all four answers are lost", func() bool {
				c.propose("more")
				return lost.Load() == 4 && installs.Load() > 0
			})
			c.converged(c.propose("after"))
			if n := installed.Load(); n > 3 { // and not only began to be, on a busy machine
				t.Errorf("the snapshot was sent %d times", n)
			}
		})
	}
}

// Entries below the snapshot of a follower are cut from what a leader sends.
func TestEntriesBelowSnapshotAreCut(t *testing.T) {
	r := receiver{boundary: func() *entry.Position { return &entry.Position{Index: 10, Term: 3} }}
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

// The same on its way into raft.
func TestEntriesBelowSnapshotDoNotReachRaft(t *testing.T) {
	c := newTestCluster(t, 2, nil)
	for _, n := range c.nodes {
		c.open(n)
	}
	a := c.transport(c.nodes[0])
	rcv := strangerReceiver(false)
	rcv.boundary = func() *entry.Position { return &entry.Position{Index: 10, Term: 3} }
	o := &c.nodes[1].store.opts
	b := newTransport(c.nodes[1].store.port.layer("g", nil), o, c.nodes[1].store.pace, "g", o.Logger, rcv)
	t.Cleanup(func() { b.Close() })
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
		return a.AppendEntries("r", raft.ServerAddress(c.nodes[1].id), &again, &raft.AppendEntriesResponse{})
	})
	if r := <-got; len(r.Entries) != 1 || r.PrevLogEntry != 10 || r.PrevLogTerm != 3 {
		t.Errorf("raft was given %d entries after %d of term %d, want 1 after 10 of term 3", len(r.Entries), r.PrevLogEntry, r.PrevLogTerm)
	}
}

// A snapshot that replaces a log with entries beyond it makes raft start anew: it
// would go on with a last index that its log does not have.
func TestInstallBelowLastIndexRestartsRaft(t *testing.T) {
	c := patientCluster(t, 3, func(o *Options) { o.hooks.tick = 10 * time.Millisecond })
	c.converged(c.propose("x"))
	f := c.followers()[0]
	if err := f.group.Snapshot(); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		c.propose(fmt.Sprint(i))
	}
	c.converged(c.propose("y"))
	first, _ := f.group.inner.FirstIndex()
	last, _ := f.group.inner.LastIndex()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.group.glog.DeleteRange(first, last) // as raft does at the end of an install
		t.Error("raft's goroutine went on")
	}()
	<-done
	eventually(t, "the group restarts", func() bool { return f.group.Status().Restarts == 1 })
	// Here all of what was cleared had been confirmed, so that the replica is one less for good.
	eventually(t, "the replica finds that it has less than it confirmed", func() bool {
		return rowraft.CodeOf(f.group.Err()) == rowraft.CodeFenced
	})
	c.propose("z")
	if f.machine.ignored != 0 {
		t.Errorf("%d entries reached the machine twice", f.machine.ignored)
	}
}

// A snapshot of what a replica has applied is read off the connection and answered
// without reaching raft, which would drop the log behind it.
func TestRedundantSnapshotIsDeclined(t *testing.T) {
	c := newTestCluster(t, 2, nil)
	for _, n := range c.nodes {
		c.open(n)
	}
	a := c.transport(c.nodes[0])
	rcv := strangerReceiver(false)
	rcv.applied = func() uint64 { return 100 }
	rcv.term = func() uint64 { return 7 }
	o := &c.nodes[1].store.opts
	b := newTransport(c.nodes[1].store.port.layer("g", nil), o, c.nodes[1].store.pace, "g", o.Logger, rcv)
	t.Cleanup(func() { b.Close() })
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
			return a.InstallSnapshot("r", raft.ServerAddress(c.nodes[1].id), req, &resp, bytes.NewReader(payload))
		})
		if declined := reached.Load() == before; declined != tc.declined || resp.Success != tc.declined {
			t.Errorf("snapshot of entry %d in term %d: declined %v, answer %+v; want declined %v", tc.index, tc.term, declined, resp, tc.declined)
		}
	}
}
