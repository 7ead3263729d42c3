package peer

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/hclogger"
	"github.com/rowraft/rowraft/raftstore/marks"
)

// goldenPreamble is built by hand from docs/formats/peer.md: cluster "c1", from
// "a", to "b", group "meta", and goldenStatement. The checksum was computed with another program
// (Python, bit by bit).
const goldenPreamble = "52575052" + "0100" + "4200" + "00" + "026331" + "0161" + "0162" + "046d657461" +
	"0700000000000000" + "8877665544332211" + "0300000000000000" + "00ffeeddccbbaa99" + "01" + "03722d62" +
	"e803000000000000" + "0c00000000000000" + "2aaa5373"

// goldenReply has the same statement, with answers = 0.
const goldenReply = "00" + "3900" + "a420ca63" +
	"0700000000000000" + "8877665544332211" + "0300000000000000" + "00ffeeddccbbaa99" + "00" + "03722d62" +
	"e803000000000000" + "0c00000000000000"

var goldenStatement = marks.Statement{
	Self: marks.Process{Start: 7, Nonce: 0x1122334455667788}, About: marks.Process{Start: 3, Nonce: 0x99aabbccddeeff00},
	Answers: true,
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
	statement := goldenStatement
	statement.Answers = false
	if got := marshalStatement(statusOK, &statement); !bytes.Equal(got, want) {
		t.Errorf("marshalStatement(%+v)\n got %x\nwant %x", statement, got, want)
	}
	if got, status, err := readReply(bytes.NewReader(want)); got != statement || status != statusOK || err != nil {
		t.Errorf("readReply = %+v, %v, %v", got, status, err)
	}
	for i := range want {
		bad := bytes.Clone(want)
		bad[i] ^= 1
		if got, status, err := readReply(bytes.NewReader(bad)); err == nil && status == statusOK {
			t.Errorf("byte %d changed: read %+v", i, got)
		}
	}
}

func TestPreambleGoldenBytes(t *testing.T) {
	want, err := hex.DecodeString(goldenPreamble)
	if err != nil {
		t.Fatal(err)
	}
	p := preamble{cluster: "c1", from: "a", to: "b", group: "meta", statement: goldenStatement}
	if got := p.marshal(); !bytes.Equal(got, want) {
		t.Errorf("marshal(%+v)\n got %x\nwant %x", p, got, want)
	}
	if got, status, err := readPreamble(bytes.NewReader(want)); got != p || status != statusOK || err != nil {
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

func TestPortRefusesOtherPeers(t *testing.T) {
	_, addr := testPort(t, nil)
	for _, tc := range []struct {
		name string
		pre  preamble
		want rowraft.Code
		text string
	}{
		{"other cluster", preamble{"c2", "x", "node-0", "g", raftChannel, marks.Statement{}}, rowraft.CodeIdentity,
			"cluster c1"},
		{"other node", preamble{"c1", "x", "node-9", "g", raftChannel, marks.Statement{}}, rowraft.CodeIdentity,
			"this is server node-0"},
		{"unknown group", preamble{"c1", "x", "node-0", "g", raftChannel, marks.Statement{}}, rowraft.CodeStarting,
			"no group g"},
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
		b := (&preamble{"c1", "x", "node-0", "g", raftChannel, marks.Statement{}}).marshal()
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

// A peer with an old map dials many times a second. Each kind of refusal is logged once per pause.
func TestRefusalsDoNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := &Port{opts: Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, ctx: t.Context(),
			refusals: hclogger.NewRate()}
		pre := &preamble{"c1", "x", "node-9", "g", raftChannel, marks.Statement{}}
		for range 100 {
			p.logRefusal(&net.TCPAddr{}, pre, statusWrongNode, errors.New("this is another node"))
			p.logRefusal(&net.TCPAddr{}, pre, statusDenied, errors.New("not on the list"))
			p.logRefusal(&net.TCPAddr{}, pre, statusUnknownGroup, errors.New("it starts"))
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

// Silent connections are closed after the dial timeout, and no more of them than the limit hold a place.
func TestHalfOpenConnectionsAreBounded(t *testing.T) {
	port, addr := testPort(t, func(o *Options) { o.DialTimeout = 300 * time.Millisecond })
	var conns []net.Conn
	for range maxHandshakesPerHost + 20 {
		conns = append(conns, dialRaw(t, addr))
	}
	for i, conn := range conns {
		if _, err := io.ReadAll(conn); err != nil && !errors.Is(err, io.EOF) && strings.Contains(err.Error(), "timeout") {
			t.Fatalf("half-open connection %d stays open: %v", i, err)
		}
	}
	//tidy:allow sleep polls, up to a deadline
	for end := time.Now().Add(2 * time.Minute); port.handshakes.Open() > 0; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d places are not given back", port.handshakes.Open())
		}
	}
}

func TestConnectionsPerPeerAreBounded(t *testing.T) {
	port, addr := testPort(t, nil)
	layer := port.Layer("g", nil)
	var wg sync.WaitGroup
	wg.Go(func() { // as raft's transport does
		for {
			c, err := layer.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				io.Copy(io.Discard, c)
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		layer.Close()
		wg.Wait()
	})
	pre := preamble{"c1", "x", "node-0", "g", raftChannel, marks.Statement{}}
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
	for end := time.Now().Add(2 * time.Minute); ; {
		conn := dialRaw(t, addr)
		conn.Write(pre.marshal())
		err := replyErr(conn)
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no place is free again: %v", err)
		}
	}
}

// A start that is not above the last one is refused. A higher one waits until the earlier process has been silent.
func TestStartsAreAcceptedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := marks.Open(vfs.NewMem(), "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		p := &Port{marks: m, begun: time.Now(), remotes: map[rowraft.NodeID]*remote{}}
		meet := func(start, nonce uint64, want rowraft.Code) *remote {
			t.Helper()
			h, err := p.recordProcess("n", marks.Process{Start: start, Nonce: nonce})
			if rowraft.CodeOf(err) != want && (want != 0 || err != nil) {
				t.Errorf("start %d with nonce %d: %v, want code %v", start, nonce, err, want)
			}
			return h
		}
		first := meet(5, 1, 0)
		meet(5, 1, 0)
		meet(5, 2, rowraft.CodeIdentity)
		meet(4, 3, rowraft.CodeIdentity)
		meet(6, 4, rowraft.CodeOverloaded)
		time.Sleep(answersFor - time.Millisecond) //tidy:allow sleep virtual time
		meet(6, 4, rowraft.CodeOverloaded)
		first.at.Store(int64(time.Since(p.begun))) // it sends something
		time.Sleep(answersFor - time.Millisecond)  //tidy:allow sleep virtual time
		meet(6, 4, rowraft.CodeOverloaded)
		time.Sleep(2 * time.Millisecond) //tidy:allow sleep virtual time
		meet(6, 4, 0)
		meet(5, 1, rowraft.CodeIdentity)
		again := &Port{marks: m, begun: time.Now(), remotes: map[rowraft.NodeID]*remote{}}
		if _, err := again.recordProcess("n", marks.Process{Start: 7, Nonce: 9}); err != nil {
			t.Errorf("a port that has just started has heard no process: %v", err)
		}
	})
}

// countedListener counts the writes of the connections that it accepts.
type countedListener struct {
	net.Listener
	accepted chan *testutil.WriteCounter
}

func (l *countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	counter := &testutil.WriteCounter{Conn: c}
	l.accepted <- counter
	return counter, nil
}

// TestWritesOverTLSAreBatched: those of the server that dials, and those of the one that accepts.
func TestWritesOverTLSAreBatched(t *testing.T) {
	ca, err := certs.NewCA(filepath.Join(t.TempDir(), "ca"), "lab", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	files, err := ca.Issue(filepath.Join(t.TempDir(), "n"), certs.Request{Hosts: []string{"127.0.0.1"},
		Identity: certs.Identity{Role: certs.Server, Name: "n"}, Valid: 50 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	source, err := files.Open(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	counted := &countedListener{accepted: make(chan *testutil.WriteCounter, 1)}
	port, addr := testPort(t, func(o *Options) {
		counted.Listener = o.Listener
		o.Listener = certs.NewListener(counted, source.Server(certs.Server))
	})
	dialled := make(chan *testutil.WriteCounter, 1)
	other, _ := testPort(t, func(o *Options) {
		o.Node = "node-1"
		o.DialTLS = func() *tls.Config { return source.Client(certs.Server) }
		o.Resolve = func(rowraft.NodeID) (string, error) { return addr, nil }
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			counter := &testutil.WriteCounter{Conn: c}
			dialled <- counter
			return counter, err
		}
	})
	layer, otherLayer := port.Layer("g", nil), other.Layer("g", nil)
	defer layer.Close()
	defer otherLayer.Close()
	here, err := otherLayer.Dial("node-0", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	there, err := layer.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	testutil.WantBatches(t, "the server that dialled", here, there, <-dialled)
	testutil.WantBatches(t, "the server that accepted", there, here, <-counted.accepted)
}

// testPort opens the peer port of node-0 of cluster c1 on loopback.
func testPort(t *testing.T, more func(*Options)) (p *Port, addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	o := Options{Cluster: "c1", Node: "node-0", Listener: ln, DialTimeout: time.Minute, Logger: quiet}
	if more != nil {
		more(&o)
	}
	m, err := marks.Open(vfs.NewMem(), "/", quiet)
	if err != nil {
		t.Fatal(err)
	}
	p = Listen(o, m)
	t.Cleanup(func() { p.Close() })
	return p, ln.Addr().String()
}
