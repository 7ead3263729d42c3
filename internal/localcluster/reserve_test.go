package localcluster

import (
	"net"
	"testing"
)

// TestReservedPortStaysOurs listens and stops, as a server that is killed and
// restarted does.
func TestReservedPortStaysOurs(t *testing.T) {
	p, err := ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	l, err := p.Listen()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", p.Addr); err == nil {
		c.Close()
		t.Error("a port without a listener accepts connections")
	}
	if other, err := ReservePort(); err != nil {
		t.Fatal(err)
	} else {
		if other.Addr == p.Addr {
			t.Error("the same port was reserved twice")
		}
		other.Release()
	}
	for range 3 { // the server comes back, each time
		l, err := p.Listen()
		if err != nil {
			t.Fatalf("listen again: %v", err)
		}
		if c, err := net.Dial("tcp", p.Addr); err != nil {
			t.Errorf("the reserved port does not take connections: %v", err)
		} else {
			c.Close()
		}
		l.Close()
	}
}
