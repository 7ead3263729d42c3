package quota

import (
	"fmt"
	"net"
	"testing"
)

// fakeConn is a connection from one host that remembers whether it was closed.
type fakeConn struct {
	net.Conn
	host   string
	closed bool
}

func (c *fakeConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.host), Port: 1} }
func (c *fakeConn) Close() error         { c.closed = true; return nil }

// TestAnonymousConnectionsMakeRoom: two hosts fill a port with connections that never authenticate. A third
// host gets a connection and keeps it during the flood, and an authenticated connection is never closed for
// another one.
func TestAnonymousConnectionsMakeRoom(t *testing.T) {
	c := NewConns(8, 4)
	enter := func(host string) (*fakeConn, *Place) {
		f := &fakeConn{host: host}
		return f, c.Enter(f)
	}
	known, place := enter("10.0.0.1")
	Authenticate(NewConn(NewConn(known, place), place))
	var flood []*fakeConn
	for i := range 40 {
		f, p := enter(fmt.Sprintf("10.0.0.%d", 1+i%2))
		if p == nil {
			t.Fatalf("connection %d of the flood has no place, though each of it is anonymous", i)
		}
		flood = append(flood, f)
	}
	honest, p := enter("10.0.0.3")
	if p == nil {
		t.Fatal("a third host has no place next to two that flood the port")
	}
	for i := range 40 {
		f, _ := enter(fmt.Sprintf("10.0.0.%d", 1+i%2))
		flood = append(flood, f)
	}
	if honest.closed {
		t.Error("the handshake of an honest host was closed for one of the flood")
	}
	if known.closed {
		t.Error("an authenticated connection was closed for an anonymous one")
	}
	left := 0
	for _, f := range flood {
		if !f.closed {
			left++
		}
	}
	if left != 6 {
		t.Errorf("%d connections of the flood are open, want 6: 8 in all, 2 of others", left)
	}
}

// TestAuthenticatedConnectionsFillAPort: at the limits, a connection is refused if all others are
// authenticated, and each connection that ends frees one place, once.
func TestAuthenticatedConnectionsFillAPort(t *testing.T) {
	c := NewConns(3, 2)
	var places []*Place
	for i, step := range []struct {
		host string
		want bool
	}{{"::1", true}, {"::1", true}, {"::1", false}, {"::2", true}, {"::2", false}, {"::3", false}} {
		p := c.Enter(&fakeConn{host: step.host})
		if (p != nil) != step.want {
			t.Errorf("step %d: a connection of %s has a place: %v, want %v", i, step.host, p != nil, step.want)
		}
		if p != nil {
			p.Authenticate()
			places = append(places, p)
		}
	}
	places[0].Leave()
	places[0].Leave()
	if c.Enter(&fakeConn{host: "::3"}) == nil {
		t.Error("a place that was given back cannot be taken")
	}
	for _, p := range places {
		p.Leave()
	}
	if len(c.hosts) != 1 || c.open != 1 {
		t.Errorf("after all but one have left: %d hosts, %d connections", len(c.hosts), c.open)
	}
}
