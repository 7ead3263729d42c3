package rpc

import (
	"net"
	"sync"
)

// Limits of the open connections of a port.
const (
	MaxConns        = 8192
	MaxConnsPerHost = 2048 // of one address: tests and demos are all on one
)

// LimitListener closes at once what is beyond total connections, or beyond perHost of
// one address, so that a client which opens ever more takes the places of nobody else.
func LimitListener(l net.Listener, total, perHost int) net.Listener {
	return &limitListener{Listener: l, total: total, perHost: perHost, hosts: make(map[string]int)}
}

type limitListener struct {
	net.Listener
	total, perHost int

	mu    sync.Mutex
	open  int
	hosts map[string]int
}

func (l *limitListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil {
			host = c.RemoteAddr().String()
		}
		if l.enter(host) {
			return &limitedConn{Conn: c, leave: sync.OnceFunc(func() { l.leave(host) })}, nil
		}
		c.Close()
	}
}

func (l *limitListener) enter(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.total || l.hosts[host] >= l.perHost {
		return false
	}
	l.open++
	l.hosts[host]++
	return true
}

func (l *limitListener) leave(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.hosts[host]--; l.hosts[host] == 0 {
		delete(l.hosts, host)
	}
}

type limitedConn struct {
	net.Conn
	leave func()
}

func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
