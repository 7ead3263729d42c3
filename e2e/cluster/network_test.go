package cluster

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echoed is a server "s" behind a proxy that sends back what it gets, and a dialler
// "d" connected to it.
type echoed struct {
	t    *testing.T
	net  *Network
	addr string
}

func newEchoed(t *testing.T) *echoed {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	e := &echoed{t: t, net: NewNetwork()}
	t.Cleanup(func() {
		e.net.Close()
		l.Close()
		wg.Wait()
	})
	e.addr, err = e.net.proxyFor("s", l.Addr().String(), func(*net.TCPConn) (string, []byte, error) {
		return "d", nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *echoed) dial() net.Conn {
	e.t.Helper()
	c, err := net.Dial("tcp", e.addr)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { c.Close() })
	return c
}

// answers tells whether what is written comes back within patience.
func (e *echoed) answers(c net.Conn, text string, patience time.Duration) bool {
	e.t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		return false
	}
	got := make([]byte, len(text))
	c.SetReadDeadline(time.Now().Add(patience))
	defer c.SetReadDeadline(time.Time{})
	_, err := io.ReadFull(c, got)
	return err == nil && string(got) == text
}

// held waits until bytes on a link have met a cut.
func (e *echoed) held(l Link) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), soon)
	defer cancel()
	if err := Poll(ctx, func() error {
		if e.net.Stats(l).Held == 0 {
			return errors.New("no byte counts as held back")
		}
		return nil
	}); err != nil {
		e.t.Error(err)
	}
}

const (
	soon   = time.Minute            // on a machine whose processes stand still
	absent = 150 * time.Millisecond // long enough for an answer that must not come
)

func TestBytesPassUnchanged(t *testing.T) {
	e := newEchoed(t)
	lift := e.net.Apply(LinkPolicy{Jitter: 2 * time.Millisecond, Loss: 0.01}, Between([]string{"d"}, []string{"s"})...)
	defer lift()
	c := e.dial()
	want := make([]byte, 1<<20)
	for i := range want {
		want[i] = byte(i * i >> 8)
	}
	go c.Write(want)
	got := make([]byte, len(want))
	c.SetReadDeadline(time.Now().Add(soon))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("bytes came back changed or out of order")
	}
	if e.net.Stats(Link{"d", "s"}).Delayed == 0 {
		t.Error("nothing was delayed")
	}
}

// A cut of either direction holds the answer back; it arrives when the cut heals.
func TestCutHoldsBack(t *testing.T) {
	for _, l := range []Link{{"d", "s"}, {"s", "d"}} {
		t.Run(l.From+" to "+l.To, func(t *testing.T) {
			e := newEchoed(t)
			c := e.dial()
			if !e.answers(c, "before", soon) {
				t.Fatal("no answer without a policy")
			}
			lift := e.net.Apply(LinkPolicy{Drop: true}, l)
			if e.answers(c, "during", absent) {
				t.Error("an answer came across a cut")
			}
			e.held(l)
			if e.net.Stats(Link{l.To, l.From}).Held != 0 {
				t.Error("bytes of the other direction count as held back")
			}
			lift()
			got := make([]byte, len("during"))
			c.SetReadDeadline(time.Now().Add(soon))
			if _, err := io.ReadFull(c, got); err != nil || string(got) != "during" {
				t.Errorf("after healing: %q, %v; want what was held back", got, err)
			}
		})
	}
}

func TestNewConnectionsDoNotCrossACut(t *testing.T) {
	e := newEchoed(t)
	lift := e.net.Apply(LinkPolicy{Drop: true}, Link{"s", "d"})
	c := e.dial()
	if e.answers(c, "x", absent) {
		t.Error("an answer came across a cut")
	}
	e.held(Link{"s", "d"})
	lift()
	got := make([]byte, 1)
	c.SetReadDeadline(time.Now().Add(soon))
	if _, err := c.Read(got); err != nil || got[0] != 'x' {
		t.Errorf("after healing: %q, %v; want what was sent", got, err)
	}
	other := newEchoed(t)
	defer other.net.Apply(LinkPolicy{Drop: true}, Link{"x", "s"}, Link{"d", "x"})()
	if !other.answers(other.dial(), "y", soon) {
		t.Error("a cut of other links holds back this one")
	}
}

func TestReset(t *testing.T) {
	e := newEchoed(t)
	c := e.dial()
	if !e.answers(c, "before", soon) {
		t.Fatal("no answer without a policy")
	}
	lift := e.net.Apply(LinkPolicy{Reset: true}, Link{"s", "d"})
	refused := func(c net.Conn) {
		c.SetReadDeadline(time.Now().Add(soon))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read: %v, want a reset", err)
		}
	}
	refused(c)
	if c, err := net.Dial("tcp", e.addr); err == nil {
		refused(c)
		c.Close()
	} else if !errors.Is(err, syscall.ECONNRESET) { // which may come before Dial returns
		t.Errorf("dial: %v, want a reset", err)
	}
	lift()
	again := e.dial()
	if !e.answers(again, "after", soon) {
		t.Error("no answer after healing")
	}
	if n := e.net.ResetAll("s", "d"); n != 1 {
		t.Errorf("ResetAll has closed %d connections, want 1", n)
	}
	if e.answers(again, "x", soon) {
		t.Error("the connection lives after ResetAll")
	}
}

func TestPoliciesJoin(t *testing.T) {
	n := NewNetwork()
	l := Link{"a", "b"}
	slow := n.Apply(LinkPolicy{Delay: time.Second, BytesPerSecond: 100}, l)
	cut := n.Apply(LinkPolicy{Drop: true, Delay: time.Second, BytesPerSecond: 50}, l)
	if p, _ := n.policy(l); !p.Drop || p.Delay != 2*time.Second || p.BytesPerSecond != 50 {
		t.Errorf("both policies: %+v", p)
	}
	cut()
	if p, _ := n.policy(l); p.Drop || p.Delay != time.Second || p.BytesPerSecond != 100 {
		t.Errorf("after the cut was lifted: %+v", p)
	}
	slow()
	if p, _ := n.policy(l); p != (LinkPolicy{}) {
		t.Errorf("after all were lifted: %+v", p)
	}
}

func TestLinks(t *testing.T) {
	got := Between([]string{"a"}, []string{"b", "c", "a"})
	want := []Link{{"a", "b"}, {"a", "c"}, {"b", "a"}, {"c", "a"}}
	if !slices.Equal(got, want) {
		t.Errorf("Between = %v, want %v", got, want)
	}
}

func TestDialler(t *testing.T) {
	body := []byte("\x00\x01c\x04from\x02to\x01g")
	if id, err := dialler(body); err != nil || id != "from" {
		t.Errorf("dialler = %q, %v", id, err)
	}
	for _, bad := range []string{"", "\x00", "\x00\x01c", "\x00\x01c\x09from", "\x00\xff"} {
		if id, err := dialler([]byte(bad)); err == nil {
			t.Errorf("dialler(%q) = %q, want an error", bad, id)
		}
	}
}

// A connection belongs to the process that holds its far end, also one that was made
// after the last reading of /proc.
func TestOwners(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var o owners
	me := func() map[string]int { return map[string]int{"me": os.Getpid()} }
	noClients := func() map[string]int { return nil }
	for i := range 3 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		addr := c.LocalAddr().(*net.TCPAddr)
		if from := o.of(addr, me); from != "me" {
			t.Errorf("connection %d: owner %q, want this process", i, from)
		}
		if from := o.of(addr, noClients); from != Client {
			t.Errorf("connection %d: owner %q without servers, want %q", i, from, Client)
		}
	}
}
