package rpc

import (
	"net"

	"github.com/rowraft/rowraft/internal/quota"
)

// Limits of the open connections of a port.
const (
	MaxConns        = 8192
	MaxConnsPerHost = 2048 // of one address: tests and demos are all on one
)

// LimitListener bounds the open connections of l to total, and those of one address to perHost.
// Connections are anonymous until quota.Authenticate, which the credentials of this package call after
// the handshake, and make room for each other (quota.Conns). Without certificates (anonymous is false)
// all clients are equally known: a connection beyond a limit is closed at once.
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
