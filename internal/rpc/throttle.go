package rpc

import (
	"maps"
	"net"
	"sync"
	"time"

	"github.com/rowraft/rowraft/internal/quota"
	"golang.org/x/time/rate"
)

// maxThrottled limits the number of addresses that a Throttle remembers.
const maxThrottled = 4096

// Throttle allows each address Burst calls, and then one call per Every. Safe for concurrent use.
type Throttle struct {
	Burst int
	Every time.Duration

	mu sync.Mutex
	by map[string]*rate.Limiter
}

// Allow reports whether addr may make a call now. While it remembers maxThrottled addresses, it refuses
// every new address.
func (t *Throttle) Allow(addr net.Addr, now time.Time) bool {
	host := networkOf(addr)
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.by[host]
	if l == nil {
		if len(t.by) >= maxThrottled {
			whole := func(_ string, l *rate.Limiter) bool { return l.TokensAt(now) >= float64(t.Burst) }
			maps.DeleteFunc(t.by, whole)
		}
		if len(t.by) >= maxThrottled {
			return false
		}
		if t.by == nil {
			t.by = make(map[string]*rate.Limiter)
		}
		l = rate.NewLimiter(rate.Every(t.Every), t.Burst)
		t.by[host] = l
	}
	return l.AllowN(now, 1)
}

// networkOf returns the unit that is throttled: an IPv4 address, or the /64 network of an IPv6 address,
// which one machine can have.
func networkOf(addr net.Addr) string {
	host := quota.HostOf(addr)
	ip := net.ParseIP(host)
	if ip == nil || ip.To4() != nil {
		return host
	}
	return ip.Mask(net.CIDRMask(64, 128)).String()
}
