package transport

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft/internal/allocs"
	"github.com/rowraft/rowraft/raftstore/hclogger"
	"github.com/rowraft/rowraft/raftstore/timers"
	"github.com/rowraft/rowraft/raftstore/turns"
)

// pipeLayer hands one end of each pipe to raft's transport.
type pipeLayer struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *pipeLayer) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeLayer) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// recorder takes what a transport writes.
type recorder struct {
	net.Conn
	bytes.Buffer
}

type recordLayer struct {
	pipeLayer
	to *recorder
}

// sentBytes is what raft's transport writes for one call.
func sentBytes(call func(*raft.NetworkTransport)) []byte {
	l := &recordLayer{pipeLayer{conns: make(chan net.Conn), done: make(chan struct{})}, &recorder{}}
	tr := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: l, MaxPool: 1, Timeout: time.Second,
		Logger: hclogger.New(slog.New(slog.DiscardHandler), "", nil)})
	defer tr.Close()
	call(tr)
	return bytes.Clone(l.to.Bytes())
}

// FuzzPeerStream: what follows the preamble is read by raft's own decoder. Bytes
// of a peer may end the connection, never the process, and never make it allocate
// far more than they are.
func FuzzPeerStream(f *testing.F) {
	header := raft.RPCHeader{ProtocolVersion: 3, ID: []byte("r1"), Addr: []byte("n1")}
	l := raft.Log{Index: 7, Term: 2, Type: raft.LogCommand, Data: []byte("data"), Extensions: []byte("12345678")}
	for _, call := range []func(*raft.NetworkTransport){
		func(tr *raft.NetworkTransport) {
			tr.AppendEntries("r", "n", &raft.AppendEntriesRequest{RPCHeader: header, Term: 2, PrevLogEntry: 6, PrevLogTerm: 2,
				Entries: []*raft.Log{&l}, LeaderCommitIndex: 5}, &raft.AppendEntriesResponse{})
		},
		func(tr *raft.NetworkTransport) {
			tr.RequestVote("r", "n", &raft.RequestVoteRequest{RPCHeader: header, Term: 3, LastLogIndex: 7, LastLogTerm: 2},
				&raft.RequestVoteResponse{})
		},
		func(tr *raft.NetworkTransport) {
			tr.RequestPreVote("r", "n", &raft.RequestPreVoteRequest{RPCHeader: header, Term: 3}, &raft.RequestPreVoteResponse{})
		},
		func(tr *raft.NetworkTransport) {
			tr.TimeoutNow("r", "n", &raft.TimeoutNowRequest{RPCHeader: header}, &raft.TimeoutNowResponse{})
		},
		func(tr *raft.NetworkTransport) {
			tr.InstallSnapshot("r", "n", &raft.InstallSnapshotRequest{RPCHeader: header, SnapshotVersion: 1, Term: 2,
				LastLogIndex: 7, Configuration: []byte{1}, Size: 5}, &raft.InstallSnapshotResponse{},
				bytes.NewReader([]byte("state")))
		},
	} {
		b := sentBytes(call)
		if len(b) < 10 {
			f.Fatalf("recorded %x", b)
		}
		f.Add(b)
		f.Add(b[:len(b)-2])
	}
	f.Add([]byte{0, 0xde, 0xff, 0xff})             // a map of 65,535 fields
	f.Add([]byte{0, 0xdf, 0xff, 0xff, 0xff, 0xff}) // of 4 Gi
	layer := &pipeLayer{conns: make(chan net.Conn), done: make(chan struct{})}
	tr := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: layer, MaxPool: 1, Timeout: time.Second,
		Logger: hclogger.New(slog.New(slog.DiscardHandler), "", nil)})
	stop := make(chan struct{})
	f.Cleanup(func() {
		close(stop)
		tr.Close()
	})
	go func() {
		for {
			select {
			case rpc := <-tr.Consumer():
				if rpc.Reader != nil {
					io.Copy(io.Discard, rpc.Reader)
				}
				rpc.Respond(nil, ErrStopped)
			case <-stop:
				return
			}
		}
	}()
	f.Fuzz(func(t *testing.T, b []byte) {
		allocs.Frugal(t, b, func() {
			ours, theirs := net.Pipe()
			layer.conns <- theirs
			read := make(chan struct{})
			go func() {
				io.Copy(io.Discard, ours) // ends when raft closes
				close(read)
			}()
			ours.SetWriteDeadline(time.Now().Add(5 * time.Second))
			ours.Write(b)
			ours.Close()
			<-read
		})
	})
}

// FuzzTimers: timers that are read are written the same way, and within their bounds.
func FuzzTimers(f *testing.F) {
	f.Add(joinSender([]byte("n1"), "r2", timers.Report{Want: 2 * time.Second, Now: time.Second,
		Started: 250 * time.Millisecond, Restart: true}, turns.Writing))
	f.Add([]byte("n1"))
	f.Add([]byte("n1\x00r2\x00short"))
	f.Fuzz(func(t *testing.T, addr []byte) {
		node, to, raw, flags, rest := splitSender(addr)
		said, ok := timers.ParseReport(raw)
		if !ok {
			return
		}
		got := append(joinSender(node, to, said, flags), rest...)
		if i := len(addr) - len(rest) - turns.FlagsBytes; i == len(node)+len(to)+2+timers.ReportBytes {
			got[i] = addr[i] // flags that this version does not know
		} else {
			got = bytes.TrimSuffix(got, []byte{0}) // none
		}
		if !bytes.Equal(got, addr) {
			t.Errorf("%q came back as %q", addr, got)
		}
		for _, d := range []time.Duration{said.Want, said.Now, said.Started} {
			if d <= 0 || d > time.Minute {
				t.Errorf("%q: a heartbeat of %v", addr, d)
			}
		}
	})
}

func (l *pipeLayer) Addr() net.Addr { return &net.IPAddr{} }

func (l *pipeLayer) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, net.ErrClosed
}

func (r *recorder) Write(b []byte) (int, error)      { return r.Buffer.Write(b) }
func (r *recorder) Read([]byte) (int, error)         { return 0, io.EOF }
func (r *recorder) Close() error                     { return nil }
func (r *recorder) SetDeadline(time.Time) error      { return nil }
func (r *recorder) SetReadDeadline(time.Time) error  { return nil }
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }

func (l *recordLayer) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) { return l.to, nil }
