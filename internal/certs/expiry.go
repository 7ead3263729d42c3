package certs

import (
	"crypto/x509"
	"fmt"
	"net"
	"time"
)

// expiring is a connection that ends with the certificate of its other side.
type expiring struct {
	net.Conn
	leaf *x509.Certificate
	end  *time.Timer
}

// EndWithCertificate returns conn as one that is closed when leaf, the certificate of its other side,
// expires: a call may outlive the certificate that it began with, and a new handshake takes the renewed
// one. A timer ends a connection on which nothing comes; it counts time in which the machine runs, so
// each read looks at the clock as well.
func EndWithCertificate(conn net.Conn, leaf *x509.Certificate) net.Conn {
	return &expiring{conn, leaf, time.AfterFunc(time.Until(leaf.NotAfter), func() { conn.Close() })}
}

func (c *expiring) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if time.Now().After(c.leaf.NotAfter) {
		c.Close()
		return 0, fmt.Errorf("the certificate %q of the other side expired at %s: %w", c.leaf.Subject.CommonName, c.leaf.NotAfter.Format(time.RFC3339), net.ErrClosed)
	}
	return n, err
}

func (c *expiring) Close() error {
	c.end.Stop()
	return c.Conn.Close()
}

// NetConn is the connection that ends.
func (c *expiring) NetConn() net.Conn { return c.Conn }
