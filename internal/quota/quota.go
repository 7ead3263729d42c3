package quota

import (
	"net"
	"sync"
)

// Quota counts what each owner has taken. Safe for concurrent use.
type Quota[K comparable] struct {
	each int

	mu sync.Mutex
	by map[K]int // owners without any are not in it
}

// New returns a quota of each for one owner.
func New[K comparable](each int) *Quota[K] {
	return &Quota[K]{each: each, by: make(map[K]int)}
}

// Take takes one for owner, if there is one left for it.
func (q *Quota[K]) Take(owner K) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.by[owner] >= q.each {
		return false
	}
	q.by[owner]++
	return true
}

// Give gives back one that owner has taken.
func (q *Quota[K]) Give(owner K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.by[owner]--; q.by[owner] == 0 {
		delete(q.by, owner)
	}
}

// HostOf is the owner of a connection from addr: its host, or all of an address that has
// no port.
func HostOf(addr net.Addr) string {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	return host
}
