package raftstore

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/hclogger"
	"github.com/rowraft/rowraft/raftstore/marks"
)

// goldenPreamble is built by hand from docs/formats/peer.md: cluster "c1", from
// "a", to "b", group "meta", and goldenStatement. The checksum was computed with another program
// (Python, bit by bit).
const goldenPreamble = "52575052" + "0100" + "4200" + "00" + "026331" + "0161" + "0162" + "046d657461" +
	"0700000000000000" + "8877665544332211" + "0300000000000000" + "00ffeeddccbbaa99" + "01" + "03722d62" + "e803000000000000" + "0c00000000000000" + "2aaa5373"

// goldenReply carries the same statement, but for the byte that says that the process answers.
const goldenReply = "00" + "3900" + "a420ca63" +
	"0700000000000000" + "8877665544332211" + "0300000000000000" + "00ffeeddccbbaa99" + "00" + "03722d62" + "e803000000000000" + "0c00000000000000"

var goldenStatement = marks.Statement{
	Self: marks.Process{Start: 7, Nonce: 0x1122334455667788}, About: marks.Process{Start: 3, Nonce: 0x99aabbccddeeff00}, Answers: true,
	Replica: "r-b", Mark: marks.Mark{Index: 1000, Term: 12},
}

func replyErr(r io.Reader) error {
	_, _, err := readReply(r)
	return err
}

func TestReplyGoldenBytes(t *testing.T) {
	want, err := hex.DecodeString(goldenReply)
	if err != nil {
		t.Fatal(err)
	}
	says := goldenStatement
	says.Answers = false
	if got := marshalStatement(peerOK, &says); !bytes.Equal(got, want) {
		t.Errorf("marshalStatement(%+v)\n got %x\nwant %x", says, got, want)
	}
	if got, status, err := readReply(bytes.NewReader(want)); got != says || status != peerOK || err != nil {
		t.Errorf("readReply = %+v, %v, %v", got, status, err)
	}
	for i := range want {
		bad := bytes.Clone(want)
		bad[i] ^= 1
		if got, status, err := readReply(bytes.NewReader(bad)); err == nil && status == peerOK {
			t.Errorf("byte %d changed: read %+v", i, got)
		}
	}
}

func TestPreambleGoldenBytes(t *testing.T) {
	want, err := hex.DecodeString(goldenPreamble)
	if err != nil {
		t.Fatal(err)
	}
	p := preamble{cluster: "c1", from: "a", to: "b", group: "meta", says: goldenStatement}
	if got := p.marshal(); !bytes.Equal(got, want) {
		t.Errorf("marshal(%+v)\n got %x\nwant %x", p, got, want)
	}
	if got, status, err := readPreamble(bytes.NewReader(want)); got != p || status != peerOK || err != nil {
		t.Errorf("readPreamble = %+v, %v, %v", got, status, err)
	}
}

func TestPreambleRefusesEveryChangedByte(t *testing.T) {
	good, _ := hex.DecodeString(goldenPreamble)
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if p, _, err := readPreamble(bytes.NewReader(bad)); err == nil {
			t.Errorf("byte %d changed: read %+v", i, p)
		}
		if _, _, err := readPreamble(bytes.NewReader(good[:i])); err == nil {
			t.Errorf("cut after %d bytes: no error", i)
		}
	}
}

func TestPeerPortRefusesStrangers(t *testing.T) {
	c := newTestCluster(t, 1, func(o *Options) {
		o.DialTimeout = time.Minute // who knocks may be slow
		o.Authorize = func(_ net.Conn, from rowraft.NodeID) error {
			if from == "evil" {
				return errors.New("not on the list")
			}
			return nil
		}
	})
	n := c.nodes[0]
	c.open(n)
	addr, _ := c.resolve(n.id)
	for _, tc := range []struct {
		name string
		pre  preamble
		want rowraft.Code
		text string
	}{
		{"other cluster", preamble{"c2", "x", n.id, "g", raftChannel, marks.Statement{}}, rowraft.CodeIdentity, "cluster c1"},
		{"other node", preamble{"c1", "x", "node-9", "g", raftChannel, marks.Statement{}}, rowraft.CodeIdentity, "this is node node-0"},
		{"unknown group", preamble{"c1", "x", n.id, "g", raftChannel, marks.Statement{}}, rowraft.CodeStarting, "no group g"},
		{"denied", preamble{"c1", "evil", n.id, "g", raftChannel, marks.Statement{}}, rowraft.CodeIdentity, "not on the list"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn := dialRaw(t, addr)
			conn.Write(tc.pre.marshal())
			err := replyErr(conn)
			if rowraft.CodeOf(err) != tc.want || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("answer %v, want %v with %q", err, tc.want, tc.text)
			}
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				t.Error("the connection stays open")
			}
		})
	}
	t.Run("version too new", func(t *testing.T) {
		conn := dialRaw(t, addr)
		b := (&preamble{"c1", "x", n.id, "g", raftChannel, marks.Statement{}}).marshal()
		b[4] = 3
		conn.Write(b)
		if err := replyErr(conn); rowraft.CodeOf(err) != rowraft.CodeVersionTooNew {
			t.Errorf("answer %v, want CodeVersionTooNew", err)
		}
	})
	t.Run("garbage", func(t *testing.T) {
		conn := dialRaw(t, addr)
		conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		if err := replyErr(conn); err == nil {
			t.Error("garbage was accepted")
		}
	})
}

// A peer with an old map dials many times a second: each kind of refusal has one line at first.
func TestRefusalsDoNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := &peerPort{opts: &Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, ctx: t.Context(), refusals: hclogger.NewRate()}
		pre := &preamble{"c1", "x", "node-9", "g", raftChannel, marks.Statement{}}
		for range 100 {
			p.logRefusal(&net.TCPAddr{}, pre, peerWrongNode, errors.New("this is another node"))
			p.logRefusal(&net.TCPAddr{}, pre, peerDenied, errors.New("not on the list"))
			p.logRefusal(&net.TCPAddr{}, pre, peerUnknownGroup, errors.New("it starts"))
		}
		if lines := strings.Count(log.String(), "peer connection refused"); lines != 2 {
			t.Errorf("%d lines, want 2:\n%s", lines, &log)
		}
	})
}

func dialRaw(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(2 * time.Minute))
	return conn
}

// Connections that say nothing are closed after the dial timeout, and no more of
// them than the limit hold a place.
func TestHalfOpenConnectionsAreBounded(t *testing.T) {
	c := newTestCluster(t, 1, func(o *Options) { o.DialTimeout = 300 * time.Millisecond })
	n := c.nodes[0]
	c.open(n)
	addr, _ := c.resolve(n.id)
	var conns []net.Conn
	for range maxHandshakesPerHost + 20 {
		conns = append(conns, dialRaw(t, addr))
	}
	for i, conn := range conns {
		if _, err := io.ReadAll(conn); err != nil && !errors.Is(err, io.EOF) && strings.Contains(err.Error(), "timeout") {
			t.Fatalf("half-open connection %d stays open: %v", i, err)
		}
	}
	eventually(t, "all places are given back", func() bool {
		return n.store.port.handshakes.Open() == 0
	})
}

func TestConnectionsPerPeerAreBounded(t *testing.T) {
	c := newTestCluster(t, 1, func(o *Options) { o.DialTimeout = time.Minute })
	n := c.nodes[0]
	c.open(n)
	c.transport(n)
	addr, _ := c.resolve(n.id)
	pre := preamble{"c1", "x", n.id, "g", raftChannel, marks.Statement{}}
	var first net.Conn
	for i := range maxConnsPerPeer + 1 {
		conn := dialRaw(t, addr)
		conn.Write(pre.marshal())
		err := replyErr(conn)
		if i == 0 {
			first = conn
		}
		if full := i == maxConnsPerPeer; full != (rowraft.CodeOf(err) == rowraft.CodeOverloaded) || !full && err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	first.Close()
	eventually(t, "a place is free again", func() bool {
		conn := dialRaw(t, addr)
		conn.Write(pre.marshal())
		return replyErr(conn) == nil
	})
}

// An AppendEntries is cut by bytes, keeps at least one entry, and never tells the
// follower to commit what was not in it.
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
			tr := &transport{maxRPCBytes: 1000}
			args := &raft.AppendEntriesRequest{PrevLogEntry: 10, Entries: tc.entries, LeaderCommitIndex: tc.commit}
			tr.limit(args)
			if len(args.Entries) != tc.wantN || args.LeaderCommitIndex != tc.wantCommit {
				t.Errorf("%d entries, commit %d; want %d, %d", len(args.Entries), args.LeaderCommitIndex, tc.wantN, tc.wantCommit)
			}
		})
	}
}

// The same on its way: raft hands over more than fits, the follower gets what does.
func TestAppendEntriesOnTheWireIsCutByBytes(t *testing.T) {
	c := newTestCluster(t, 2, func(o *Options) { o.MaxRPCBytes = 64 << 10 })
	for _, n := range c.nodes {
		c.open(n)
	}
	a, b := c.transport(c.nodes[0]), c.transport(c.nodes[1])
	got := make(chan int, 1)
	answered(t, b, func(rpc raft.RPC) {
		select {
		case got <- len(rpc.Command.(*raft.AppendEntriesRequest).Entries):
		default: // it was sent again
		}
		rpc.Respond(&raft.AppendEntriesResponse{Term: 1, Success: true}, nil)
	})
	req := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ID: []byte("r"), Addr: []byte("node-0"), ProtocolVersion: 3}, Term: 1}
	for i := range uint64(10) {
		req.Entries = append(req.Entries, &raft.Log{Index: i + 1, Term: 1, Data: make([]byte, 20<<10)})
	}
	sent(t, func() error {
		again := *req
		return a.AppendEntries("r", raft.ServerAddress(c.nodes[1].id), &again, &raft.AppendEntriesResponse{})
	})
	if n := <-got; n != 3 {
		t.Errorf("%d entries of 20 KiB travelled in one RPC of 64 KiB, want 3", n)
	}
}

func TestClusterOverTLS(t *testing.T) {
	cert, pool := selfSigned(t)
	c := startedCluster(t, 3, func(o *Options) {
		o.Listener = tls.NewListener(o.Listener, &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert})
		o.DialTLS = func() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool} }
	})
	c.converged(c.propose("secret"))
	addr, _ := c.resolve(c.nodes[0].id)
	conn := dialRaw(t, addr)
	conn.Write((&preamble{"c1", "x", c.nodes[0].id, "shard-0", raftChannel, marks.Statement{}}).marshal())
	if err := replyErr(conn); err == nil {
		t.Error("a plaintext connection was accepted")
	}
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// A follower whose machine lags holds entries back, but not heartbeats, and not
// for ever.
func TestBacklogHoldsEntriesNotHeartbeats(t *testing.T) {
	c := newTestCluster(t, 2, nil)
	for _, n := range c.nodes {
		c.open(n)
	}
	a := c.transport(c.nodes[0])
	b := newTransport(c.nodes[1].store.port.layer("g", nil), &c.nodes[1].store.opts, c.nodes[1].store.pace, "g", c.nodes[1].store.opts.Logger, strangerReceiver(true))
	t.Cleanup(func() { b.Close() })
	to := raft.ServerAddress(c.nodes[1].id)
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
			entries <- a.AppendEntries("r", to, &raft.AppendEntriesRequest{RPCHeader: header, Term: term, Entries: []*raft.Log{{Index: 1, Term: 1}}}, &raft.AppendEntriesResponse{})
		}()
		err := a.AppendEntries("r", to, &raft.AppendEntriesRequest{RPCHeader: header, Term: term}, &raft.AppendEntriesResponse{})
		beat := time.Since(begin)
		err = errors.Join(err, <-entries)
		held := time.Since(begin)
		if err == nil && held < rpcTimeout/4 {
			t.Fatalf("the entries were held for %v, want about %v", held, rpcTimeout/2)
		}
		if err != nil || beat > rpcTimeout/4 || held > rpcTimeout {
			t.Logf("a busy machine? The heartbeat took %v, the entries were held for %v: %v", beat, held, err)
			continue
		}
		for first := range arrivals {
			if first.term == term {
				if first.entries != 0 {
					t.Error("the heartbeat waited behind the entries")
				}
				return
			}
		}
	}
	t.Error("the heartbeat is never answered at once, or the entries are held for ever")
}
