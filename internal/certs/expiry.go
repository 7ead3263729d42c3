package certs

import (
	"crypto/x509"
	"fmt"
	"net"
	"time"
)

// expiring is a connection that ends when the certificate of the peer expires.
type expiring struct {
	net.Conn
	leaf *x509.Certificate
	end  *time.Timer
}

// EndWithCertificate returns a connection that is closed when leaf, the certificate of its peer, expires. A
// call may outlive the certificate with which it began; a new handshake uses the renewed one. A timer ends
// an idle connection. The timer does not count time in which the machine is suspended, so each read checks
// the clock, too.
func EndWithCertificate(conn net.Conn, leaf *x509.Certificate) net.Conn {
	return &expiring{conn, leaf, time.AfterFunc(time.Until(leaf.NotAfter), func() { conn.Close() })}
}

func (c *expiring) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if time.Now().After(c.leaf.NotAfter) {
		c.Close()
		return 0, fmt.Errorf("the certificate %q of the peer expired at %s: %w",
			c.leaf.Subject.CommonName, c.leaf.NotAfter.Format(time.RFC3339), net.ErrClosed)
	}
	return n, err
}

func (c *expiring) Close() error {
	c.end.Stop()
	return c.Conn.Close()
}

// NetConn returns the wrapped connection.
func (c *expiring) NetConn() net.Conn { return c.Conn }
