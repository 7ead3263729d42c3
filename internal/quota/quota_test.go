package quota

import (
	"net"
	"testing"
)

func TestQuota(t *testing.T) {
	q := New[string](2)
	for i, step := range []struct {
		owner string
		want  bool
	}{{"a", true}, {"a", true}, {"a", false}, {"b", true}, {"b", true}, {"b", false}, {"c", true}} {
		if got := q.Take(step.owner); got != step.want {
			t.Errorf("step %d: %s takes one: %v, want %v", i, step.owner, got, step.want)
		}
	}
	q.Give("a")
	if !q.Take("a") || q.Take("a") {
		t.Error("after one came back, not just one is left")
	}
	for _, owner := range []string{"a", "a", "b", "b", "c"} {
		q.Give(owner)
	}
	if n := len(q.by); n != 0 {
		t.Errorf("all came back; it knows %d owners", n)
	}
}

func TestHostOf(t *testing.T) {
	for _, tc := range []struct {
		addr net.Addr
		want string
	}{
		{&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7}, "10.0.0.1"},
		{&net.TCPAddr{IP: net.IPv6loopback, Port: 7}, "::1"},
		{&net.UnixAddr{Name: "@pipe"}, "@pipe"},
	} {
		if got := HostOf(tc.addr); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.addr, got, tc.want)
		}
	}
}
