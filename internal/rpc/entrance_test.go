package rpc

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// TestASilentClientIsClosed: a silent client without a certificate is disconnected, for any deadlines of the
// connection.
func TestASilentClientIsClosed(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	g := newGuest(here, time.Millisecond)
	if err := g.SetDeadline(time.Time{}); err != nil && !errors.Is(err, io.ErrClosedPipe) { // it may be closed already
		t.Fatal(err)
	}
	there.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := there.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%v, want the end of the connection", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
