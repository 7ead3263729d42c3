package quota

import (
	"net"
	"sync"
)

// Conns bounds the open connections of a port, in all and of each host.
//
// A connection is anonymous until Authenticate. When a limit is reached, the oldest anonymous
// connection is closed and the new one takes its place: of the same host at the limit of one host, of
// the host with the most anonymous connections at the limit of all. A client without a certificate can
// therefore not keep clients with one out, from however few addresses it connects: the handshake of an
// honest client takes milliseconds, and its host has fewer anonymous connections than those that flood
// the port. An authenticated connection is never closed for another one.
//
// Safe for concurrent use.
type Conns struct {
	total, perHost int

	mu    sync.Mutex
	open  int
	hosts map[string]*hostConns // hosts without a connection are not in it
}

type hostConns struct {
	open      int
	anonymous []*Place // oldest first
}

// Place is one open connection of a port.
type Place struct {
	of   *Conns
	host string
	conn net.Conn
	left bool // guarded by of.mu
}

// NewConns returns a bound of total open connections, and of perHost of one host.
func NewConns(total, perHost int) *Conns {
	return &Conns{total: total, perHost: perHost, hosts: make(map[string]*hostConns)}
}

// Enter counts conn as anonymous. It returns nil if there is no place and no anonymous connection that it
// could close. In this case the caller closes conn.
func (c *Conns) Enter(conn net.Conn) *Place {
	p := &Place{of: c, host: HostOf(conn.RemoteAddr()), conn: conn}
	c.mu.Lock()
	h := c.hosts[p.host]
	var closed *Place
	switch {
	case h != nil && h.open >= c.perHost:
		closed = h.oldest()
	case c.open >= c.total:
		closed = c.mostAnonymousLocked().oldest()
	}
	if closed != nil {
		c.leaveLocked(closed)
	}
	if h = c.hosts[p.host]; c.open >= c.total || h != nil && h.open >= c.perHost {
		c.mu.Unlock()
		return nil
	}
	if h == nil {
		h = &hostConns{}
		c.hosts[p.host] = h
	}
	c.open++
	h.open++
	h.anonymous = append(h.anonymous, p)
	c.mu.Unlock()
	if closed != nil {
		closed.conn.Close()
	}
	return p
}

// Open returns how many connections have a place.
func (c *Conns) Open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

// mostAnonymousLocked returns the host with the most anonymous connections, or nil.
func (c *Conns) mostAnonymousLocked() (most *hostConns) {
	for _, h := range c.hosts {
		if most == nil || len(h.anonymous) > len(most.anonymous) {
			most = h
		}
	}
	return most
}

func (h *hostConns) oldest() *Place {
	if h == nil || len(h.anonymous) == 0 {
		return nil
	}
	return h.anonymous[0]
}

// Authenticate marks the connection of p as authenticated.
func (p *Place) Authenticate() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if !p.left {
		p.of.hosts[p.host].forget(p)
	}
}

// Leave frees the place; a second call does nothing.
func (p *Place) Leave() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.of.leaveLocked(p)
}

func (c *Conns) leaveLocked(p *Place) {
	if p.left {
		return
	}
	p.left = true
	h := c.hosts[p.host]
	h.forget(p)
	c.open--
	if h.open--; h.open == 0 {
		delete(c.hosts, p.host)
	}
}

// forget removes p from the anonymous connections.
func (h *hostConns) forget(p *Place) {
	for i, q := range h.anonymous {
		if q == p {
			h.anonymous = append(h.anonymous[:i], h.anonymous[i+1:]...)
			return
		}
	}
}

// Conn is a connection that frees its place when it is closed.
type Conn struct {
	net.Conn
	place *Place
}

// NewConn returns conn as a Conn with the given place.
func NewConn(conn net.Conn, place *Place) *Conn { return &Conn{conn, place} }

// Close closes the connection and frees its place.
func (c *Conn) Close() error {
	defer c.place.Leave()
	return c.Conn.Close()
}

// Authenticate marks conn as authenticated, if it is a *Conn or wraps one (NetConn, as in *tls.Conn). Other
// connections are unchanged.
func Authenticate(conn net.Conn) {
	for {
		switch c := conn.(type) {
		case *Conn:
			c.place.Authenticate()
			return
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
		default:
			return
		}
	}
}
