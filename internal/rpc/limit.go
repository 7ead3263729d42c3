package rpc

import (
	"net"

	"github.com/rowraft/rowraft/internal/quota"
)

// Limits of the open connections of a port.
const (
	MaxConns        = 8192
	MaxConnsPerHost = 2048 // per address; high, because tests and demos use one address
)

// LimitListener limits the open connections of l to total, and those of one address to perHost. A
// connection is anonymous until quota.Authenticate, which the credentials of this package call after the
// handshake; a new connection can replace an anonymous one (quota.Conns). Without certificates (anonymous
// is false) all clients are equal: a connection beyond a limit is closed at once.
func LimitListener(l net.Listener, total, perHost int, anonymous bool) net.Listener {
	return &limitListener{Listener: l, conns: quota.NewConns(total, perHost), anonymous: anonymous}
}

type limitListener struct {
	net.Listener
	conns     *quota.Conns
	anonymous bool
}

func (l *limitListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		place := l.conns.Enter(c)
		if place == nil {
			c.Close()
			continue
		}
		if !l.anonymous {
			place.Authenticate()
		}
		return quota.NewConn(c, place), nil
	}
}
