package raftstore

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/allocs"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/hclogger"
	"github.com/rowraft/rowraft/raftstore/logstore"
	"github.com/rowraft/rowraft/raftstore/snapstore"
	"github.com/rowraft/rowraft/raftstore/timers"
)

func FuzzPreamble(f *testing.F) {
	good, _ := hex.DecodeString(goldenPreamble)
	f.Add(good)
	f.Add((&preamble{cluster: "cluster-with-a-long-name", from: "n1", to: "n2", group: "shard-255"}).marshal())
	f.Add(good[:8])
	f.Fuzz(func(t *testing.T, b []byte) {
		if n := len(b); n >= preambleFixed+4 { // so that what is behind the checksum is tested too
			b = bytes.Clone(b)
			end := min(preambleFixed+int(binary.LittleEndian.Uint16(b[6:])), n-4)
			binary.LittleEndian.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
		}
		allocs.Frugal(t, b, func() {
			p, status, err := readPreamble(bytes.NewReader(b))
			switch {
			case err == nil && !bytes.HasPrefix(b, p.marshal()):
				t.Errorf("%x was read as %+v, which is written as %x", b, p, p.marshal())
			case err != nil && status == peerOK:
				t.Errorf("%v would be answered with OK", err)
			}
		})
	})
}

func FuzzReply(f *testing.F) {
	for s := peerOK; s <= peerBusy+1; s++ {
		f.Add(marshalReply(s, "why"))
	}
	good, _ := hex.DecodeString(goldenReply)
	f.Add(good)
	f.Add(marshalStatement(peerStale, &goldenStatement))
	f.Add([]byte{0, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		if n := len(b); n >= 7 { // so that what is behind the checksum is tested too
			b = bytes.Clone(b)
			end := min(3+int(binary.LittleEndian.Uint16(b[1:])), n)
			binary.LittleEndian.PutUint32(b[3:], crc32.Checksum(b[min(7, end):end], castagnoli))
		}
		allocs.Frugal(t, b, func() {
			says, status, err := readReply(bytes.NewReader(b))
			if err == nil && !bytes.HasPrefix(b, marshalStatement(status, &says)) {
				t.Errorf("%x was read as %v, %+v, which is written as %x", b, status, says, marshalStatement(status, &says))
			}
			if err != nil && rowraft.CodeOf(err) == rowraft.CodeUnknown && len(b) >= 3+maxReplyText {
				t.Errorf("%v has no code", err)
			}
		})
	})
}

// fuzzMachine takes any bytes as its state.
type fuzzMachine struct {
	listMachine
	state []byte
}

func (m *fuzzMachine) Restore(r io.Reader) (err error) {
	m.state, err = io.ReadAll(r)
	return err
}

// FuzzMachineSnapshot: the header before the machine's own bytes.
func FuzzMachineSnapshot(f *testing.F) {
	f.Add([]byte("rowraftS\x00\x00\x00\x00\x00\x00\x00\x00state"), uint64(7))
	f.Add([]byte("rowraftS\x09\x00\x00\x00\x00\x00\x00\x00state"), uint64(7))
	f.Add([]byte("rowraftS\x05\x00\x00\x00\x00\x00\x00\x00state"), uint64(7)) // this machine restores to 0
	f.Add([]byte("rowraftX\x00\x00\x00\x00\x00\x00\x00\x00"), uint64(7))
	f.Add([]byte("rowraftS"), uint64(0))
	dir := f.TempDir()
	s, err := snapstore.Open(vfs.OS, dir, testOwner.String(), slog.New(slog.DiscardHandler), func(string, error) {})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte, index uint64) {
		if len(b) == 0 {
			return
		}
		id := saveSnapshot(t, s, index, 3, b)
		defer os.RemoveAll(filepath.Join(dir, id))
		_, r, err := s.Open(id)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		m := &fuzzMachine{}
		fsm := newFSM(m, logstore.NewLedger(nil), func(error) {}, func(uint64, uint64) {})
		err = fsm.Restore(r)
		switch good := len(b) >= 16 && string(b[:8]) == "rowraftS" && binary.LittleEndian.Uint64(b[8:]) == 0; {
		case good != (err == nil):
			t.Errorf("%x at index %d: %v", b, index, err)
		case err == nil && (string(m.state) != string(b[16:]) || fsm.applied.Load() != index):
			t.Errorf("%x at index %d restored %x at %d", b, index, m.state, fsm.applied.Load())
		case err != nil && fsm.applied.Load() != 0:
			t.Errorf("a refused snapshot moved the index to %d", fsm.applied.Load())
		}
	})
}

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

func (l *pipeLayer) Addr() net.Addr { return nodeAddr("n") }

func (l *pipeLayer) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, net.ErrClosed
}

// recorder takes what a transport writes.
type recorder struct {
	net.Conn
	bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error)      { return r.Buffer.Write(b) }
func (r *recorder) Read([]byte) (int, error)         { return 0, io.EOF }
func (r *recorder) Close() error                     { return nil }
func (r *recorder) SetDeadline(time.Time) error      { return nil }
func (r *recorder) SetReadDeadline(time.Time) error  { return nil }
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }

type recordLayer struct {
	pipeLayer
	to *recorder
}

func (l *recordLayer) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) { return l.to, nil }

// sentBytes is what raft's transport writes for one call.
func sentBytes(call func(*raft.NetworkTransport)) []byte {
	l := &recordLayer{pipeLayer{conns: make(chan net.Conn), done: make(chan struct{})}, &recorder{}}
	tr := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: l, MaxPool: 1, Timeout: time.Second, Logger: hclogger.New(slog.New(slog.DiscardHandler), "", nil)})
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
			tr.AppendEntries("r", "n", &raft.AppendEntriesRequest{RPCHeader: header, Term: 2, PrevLogEntry: 6, PrevLogTerm: 2, Entries: []*raft.Log{&l}, LeaderCommitIndex: 5}, &raft.AppendEntriesResponse{})
		},
		func(tr *raft.NetworkTransport) {
			tr.RequestVote("r", "n", &raft.RequestVoteRequest{RPCHeader: header, Term: 3, LastLogIndex: 7, LastLogTerm: 2}, &raft.RequestVoteResponse{})
		},
		func(tr *raft.NetworkTransport) {
			tr.RequestPreVote("r", "n", &raft.RequestPreVoteRequest{RPCHeader: header, Term: 3}, &raft.RequestPreVoteResponse{})
		},
		func(tr *raft.NetworkTransport) {
			tr.TimeoutNow("r", "n", &raft.TimeoutNowRequest{RPCHeader: header}, &raft.TimeoutNowResponse{})
		},
		func(tr *raft.NetworkTransport) {
			tr.InstallSnapshot("r", "n", &raft.InstallSnapshotRequest{RPCHeader: header, SnapshotVersion: 1, Term: 2, LastLogIndex: 7, Configuration: []byte{1}, Size: 5}, &raft.InstallSnapshotResponse{}, bytes.NewReader([]byte("state")))
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
	tr := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: layer, MaxPool: 1, Timeout: time.Second, Logger: hclogger.New(slog.New(slog.DiscardHandler), "", nil)})
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
				rpc.Respond(nil, errEnded)
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
	f.Add(joinSender([]byte("n1"), "r2", timers.Report{Want: 2 * time.Second, Now: time.Second, Started: 250 * time.Millisecond, Restart: true}))
	f.Add([]byte("n1"))
	f.Add([]byte("n1\x00r2\x00short"))
	f.Fuzz(func(t *testing.T, addr []byte) {
		node, to, raw := splitSender(addr)
		said, ok := timers.ParseReport(raw)
		if !ok {
			return
		}
		if got := joinSender(node, to, said); !bytes.Equal(got, addr) {
			t.Errorf("%q came back as %q", addr, got)
		}
		for _, d := range []time.Duration{said.Want, said.Now, said.Started} {
			if d <= 0 || d > time.Minute {
				t.Errorf("%q: a heartbeat of %v", addr, d)
			}
		}
	})
}
