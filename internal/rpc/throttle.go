package rpc

import (
	"net"
	"sync"
	"time"

	"github.com/rowraft/rowraft/internal/quota"
)

// maxThrottled bounds the addresses that a Throttle remembers.
const maxThrottled = 4096

// Throttle lets each address make Burst calls, and then one every Every. Safe for
// concurrent use.
type Throttle struct {
	Burst int
	Every time.Duration

	mu   sync.Mutex
	full map[string]time.Time // when an address has its whole burst again
}

// Allow reports whether addr may make a call now. While more addresses than it can
// remember have called of late, it lets none in that is new.
func (t *Throttle) Allow(addr net.Addr, now time.Time) bool {
	host := networkOf(addr)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.full == nil {
		t.full = make(map[string]time.Time)
	}
	full, known := t.full[host]
	if !known && len(t.full) >= maxThrottled {
		for h, at := range t.full {
			if !at.After(now) {
				delete(t.full, h)
			}
		}
		if len(t.full) >= maxThrottled {
			return false
		}
	}
	if full.Before(now) {
		full = now
	}
	next := full.Add(t.Every)
	if next.Sub(now) > time.Duration(t.Burst)*t.Every {
		return false
	}
	t.full[host] = next
	return true
}

// networkOf is who counts as one: an IPv4 address, or the /64 of an IPv6 one, which is
// what one machine has.
func networkOf(addr net.Addr) string {
	host := quota.HostOf(addr)
	ip := net.ParseIP(host)
	if ip == nil || ip.To4() != nil {
		return host
	}
	return ip.Mask(net.CIDRMask(64, 128)).String()
}
