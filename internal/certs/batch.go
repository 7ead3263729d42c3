package certs

import (
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
)

// batchBytes is how many bytes of records are sent with one system call, or a little more.
const batchBytes = 64 << 10

// NewRecordBuffer returns a connection on conn. A TLS connection above it can be given to BatchRecords. Without
// BatchRecords, the record buffer behaves like conn.
func NewRecordBuffer(conn net.Conn) net.Conn { return &recordBuffer{Conn: conn} }

// BatchRecords returns a connection that writes to secure, and sends the records of a Write together: crypto/tls makes
// a system call for each record of at most 16 KiB. If secure is not a TLS connection on a record buffer, BatchRecords
// returns it unchanged. TLS must be 1.3, in which no Write waits for a reply of the peer after the handshake.
func BatchRecords(secure net.Conn) net.Conn {
	if s, ok := secure.(*tls.Conn); ok {
		if r, ok := s.NetConn().(*recordBuffer); ok {
			return &batchedConn{Conn: s, records: r}
		}
	}
	return secure
}

// NewListener returns a listener of TLS connections on the connections of l. They can be given to BatchRecords.
func NewListener(l net.Listener, conf *tls.Config) net.Listener { return &listener{l, conf} }

type listener struct {
	net.Listener
	conf *tls.Config
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tls.Server(NewRecordBuffer(c), l.conf), nil
}

// batchedConn is a TLS connection that sends the records of a Write together. Safe for concurrent use, like tls.Conn.
type batchedConn struct {
	*tls.Conn
	records *recordBuffer
	calls   atomic.Int32 // 2 for each Write that runs, and 1 after Close
}

// Write writes b. With an error, it returns 0, although a part of b may have been sent.
func (c *batchedConn) Write(b []byte) (int, error) {
	if c.calls.Add(2)&1 != 0 {
		c.calls.Add(-2)
		return 0, net.ErrClosed
	}
	defer c.calls.Add(-2)
	if err := c.Handshake(); err != nil { // first, because its messages must not be held
		return 0, err
	}
	c.records.hold()
	n, err := c.Conn.Write(b)
	if failed := c.records.release(); err == nil {
		err = failed
	}
	if err != nil {
		return 0, err
	}
	return n, nil
}

// Close closes the connection. If a Write is running, it sends no close message, which would wait for the Write.
func (c *batchedConn) Close() error {
	switch before := c.calls.Or(1); {
	case before&1 != 0:
		return net.ErrClosed
	case before != 0:
		return c.records.Conn.Close()
	}
	return c.Conn.Close()
}

// recordBuffer is a connection that can hold the records that crypto/tls writes. Also a Read of crypto/tls may write
// one, for an alert or new keys. It must not implement syscall.Conn: then gRPC would hide the TLS connection from
// BatchRecords.
type recordBuffer struct {
	net.Conn

	mu      sync.Mutex // held while records are sent; crypto/tls sends one after the other, too
	holding bool
	held    *[]byte // the records that are held, in one of batchBuffers; nil if there is none
	failed  error   // the first error of sendHeld; all later writes return it, because the stream has a gap
}

// batchBuffers have room for batchBytes and one more record.
var batchBuffers = sync.Pool{New: func() any { b := make([]byte, 0, batchBytes+(32<<10)); return &b }}

// NetConn returns the connection below.
func (r *recordBuffer) NetConn() net.Conn { return r.Conn }

func (r *recordBuffer) Write(record []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.failed != nil:
		return 0, r.failed
	case !r.holding:
		return r.Conn.Write(record)
	case r.held == nil:
		r.held = batchBuffers.Get().(*[]byte)
	}
	*r.held = append(*r.held, record...)
	if len(*r.held) >= batchBytes {
		r.sendHeld()
	}
	return len(record), r.failed
}

// hold makes Write hold the records that follow.
func (r *recordBuffer) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holding = true
}

// release sends the held records, and makes Write hold no more. It returns the first error of a send. Each
// batchedConn.Write calls it, so that none returns before its records are sent. Other Writes that run only get smaller
// batches.
func (r *recordBuffer) release() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holding = false
	if r.held != nil {
		r.sendHeld()
	}
	return r.failed
}

// sendHeld sends the held records.
// REQUIRES: r.mu is held, and r.held is not nil.
func (r *recordBuffer) sendHeld() {
	if _, err := r.Conn.Write(*r.held); err != nil {
		r.failed = err
	}
	*r.held = (*r.held)[:0]
	batchBuffers.Put(r.held)
	r.held = nil
}
