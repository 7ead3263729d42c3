// Package quota bounds how many of something there are, in all and of each owner.
package quota

import (
	"net"
	"sync"
)

// Quota counts what is taken. Safe for concurrent use.
type Quota[K comparable] struct {
	total, each int

	mu    sync.Mutex
	taken int
	by    map[K]int // owners without any are not in it
}

// New returns a quota of total, and of each for one owner.
func New[K comparable](total, each int) *Quota[K] {
	return &Quota[K]{total: total, each: each, by: make(map[K]int)}
}

// Take takes one for owner, if there is one left for it.
func (q *Quota[K]) Take(owner K) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.taken >= q.total || q.by[owner] >= q.each {
		return false
	}
	q.taken++
	q.by[owner]++
	return true
}

// Give gives back one that owner has taken.
func (q *Quota[K]) Give(owner K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken--
	if q.by[owner]--; q.by[owner] == 0 {
		delete(q.by, owner)
	}
}

// Taken is how many are taken in all.
func (q *Quota[K]) Taken() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.taken
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
