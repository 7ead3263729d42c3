package certs

import (
	"crypto/x509"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestAConnectionEndsWithItsCertificate: an idle connection is closed when the certificate of the peer
// expires, and a connection whose timer is late reads nothing after that time.
func TestAConnectionEndsWithItsCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leaf := &x509.Certificate{NotAfter: time.Now().Add(time.Hour)}
		near, far := net.Pipe()
		c := EndWithCertificate(near, leaf)
		go far.Write([]byte("before"))
		if n, err := c.Read(make([]byte, 6)); n != 6 || err != nil {
			t.Fatalf("before the end: %d bytes, %v", n, err)
		}
		begin := time.Now()
		if _, err := far.Read(make([]byte, 1)); err == nil {
			t.Error("something was sent")
		}
		if took := time.Since(begin); took != time.Hour {
			t.Errorf("an idle connection was closed after %v, want 1h", took)
		}
	})
	t.Run("the machine was suspended", func(t *testing.T) {
		near, far := net.Pipe()
		c := EndWithCertificate(near, &x509.Certificate{NotAfter: time.Now().Add(time.Hour)}).(*expiring)
		defer c.Close()
		c.leaf = &x509.Certificate{NotAfter: time.Now().Add(-time.Second)} // the timer has not fired
		go far.Write([]byte("after"))
		if n, err := c.Read(make([]byte, 5)); n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("after the end: %d bytes, %v; want none, and a closed connection", n, err)
		}
	})
}
