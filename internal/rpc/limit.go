package rpc

import (
	"net"
	"sync"

	"github.com/rowraft/rowraft/internal/quota"
)

// Limits of the open connections of a port.
const (
	MaxConns        = 8192
	MaxConnsPerHost = 2048 // of one address: tests and demos are all on one
)

// LimitListener closes at once what is beyond total connections, or beyond perHost of
// one address, so that a client which opens ever more takes the places of nobody else.
func LimitListener(l net.Listener, total, perHost int) net.Listener {
	return &limitListener{Listener: l, open: quota.New[string](total, perHost)}
}

type limitListener struct {
	net.Listener
	open *quota.Quota[string] // by host
}

func (l *limitListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if host := quota.HostOf(c.RemoteAddr()); l.open.Take(host) {
			return &limitedConn{Conn: c, leave: sync.OnceFunc(func() { l.open.Give(host) })}, nil
		}
		c.Close()
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
