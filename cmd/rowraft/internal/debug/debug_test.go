package debug

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

// TestOpsPorts: a loopback port is asked only on its own machine. 192.0.2.1 is of no machine (RFC 5737).
func TestOpsPorts(t *testing.T) {
	own := "127.0.0.2"
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			own = p.Addr().String()
		}
	}
	for _, tc := range []struct{ listens, at, want string }{
		{"[::]:7072", "192.0.2.1:7070", "192.0.2.1:7072"},
		{"0.0.0.0:7072", "n1.example:7070", "n1.example:7072"},
		{"192.0.2.2:7072", "192.0.2.1:7070", "192.0.2.2:7072"},
		{"127.0.0.1:7072", "127.0.0.1:7070", "127.0.0.1:7072"},
		{"127.0.0.1:7072", "localhost:7070", "127.0.0.1:7072"},
		{"127.0.0.1:7072", own + ":7070", "127.0.0.1:7072"},
		{"127.0.0.1:7072", "192.0.2.1:7070", ""},
		{"[::1]:7072", "192.0.2.1:7070", ""},
	} {
		got, err := opsAddr(t.Context(), tc.listens, tc.at)
		if got != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("the port %s of the server at %s: %q, %v, want %q", tc.listens, tc.at, got, err, tc.want)
		}
		if err != nil && !strings.Contains(err.Error(), "listens on "+tc.listens) {
			t.Errorf("%s: %v", tc.listens, err)
		}
	}
}
