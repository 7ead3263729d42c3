package quota

import (
	"net"
	"sync"
)

// Quota counts what each owner has taken. Safe for concurrent use.
type Quota[K comparable] struct {
	each int

	mu sync.Mutex
	by map[K]int // owners with 0 are not in it
}

// New returns a Quota that gives each owner up to each.
func New[K comparable](each int) *Quota[K] {
	return &Quota[K]{each: each, by: make(map[K]int)}
}

// Take adds one for owner. It returns false if owner has reached the limit.
func (q *Quota[K]) Take(owner K) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.by[owner] >= q.each {
		return false
	}
	q.by[owner]++
	return true
}

// Give removes one that owner has taken.
func (q *Quota[K]) Give(owner K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.by[owner]--; q.by[owner] == 0 {
		delete(q.by, owner)
	}
}

// HostOf returns the owner of a connection from addr: its host, or the whole address if it has no port.
func HostOf(addr net.Addr) string {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	return host
}
