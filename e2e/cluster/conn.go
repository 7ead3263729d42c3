package cluster

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// conn is one connection through a proxy: in from the dialler, out to the server.
type conn struct {
	from, to string
	in       *net.TCPConn

	mu   sync.Mutex
	out  *net.TCPConn  // nil until the server has been reached
	done chan struct{} // closed when the connection ended
	over bool
}

// attach gives the connection its second half; false if it has ended.
func (c *conn) attach(out *net.TCPConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		out.Close()
		return false
	}
	c.out = out
	return true
}

func (c *conn) close() { c.end(false) }

// reset ends both halves with RST.
func (c *conn) reset() { c.end(true) }

func (c *conn) end(rst bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.over = true
	close(c.done)
	for _, half := range []*net.TCPConn{c.in, c.out} {
		if half == nil {
			continue
		}
		if rst {
			half.SetLinger(0)
		}
		half.Close()
	}
}

// piece is bytes on their way.
type piece struct {
	b   []byte
	due time.Time
}

const (
	pieceBytes = 32 << 10
	maxPieces  = 64 // under way in one direction: beyond that the sender waits, as for a full window
)

// pump carries one direction of c until it ends. An end of file is passed on, an
// error ends the connection.
func (n *Network) pump(c *conn, l Link, src, dst *net.TCPConn, head []byte) {
	pieces := make(chan piece, maxPieces)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(pieces)
		if err := n.receive(c, l, src, head, pieces); err != nil && n.passable(c, l, 0) {
			c.reset() // an RST does not cross a cut either
		}
	})
	if err := n.deliver(c, l, dst, pieces); err != nil {
		c.reset()
	} else if n.passable(c, l, 0) {
		dst.CloseWrite()
	}
	for range pieces { // receive must not wait for a reader that is gone
	}
	wg.Wait()
}

// receive reads pieces and gives each the time at which it arrives.
func (n *Network) receive(c *conn, l Link, src *net.TCPConn, head []byte, pieces chan<- piece) error {
	stat := n.stat(l)
	var last time.Time
	send := func(b []byte) bool {
		p, _ := n.policy(l)
		if p.Drop {
			stat.held.Add(int64(len(b)))
		}
		now := time.Now()
		due := now
		if late := p.Lateness(len(b)); late > 0 {
			stat.delayed.Add(int64(len(b)))
			due = now.Add(late)
		}
		if p.BytesPerSecond > 0 && last.After(now) {
			due = last.Add(due.Sub(now))
		}
		if due.Before(last) {
			due = last
		}
		last = due
		select {
		case pieces <- piece{b, due}:
			return true
		case <-c.done:
			return false
		}
	}
	if len(head) > 0 && !send(head) {
		return nil
	}
	b := make([]byte, pieceBytes)
	for {
		k, err := src.Read(b)
		if k > 0 && !send(bytes.Clone(b[:k])) {
			return nil
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// deliver writes pieces when they are due and the link is open.
func (n *Network) deliver(c *conn, l Link, dst *net.TCPConn, pieces <-chan piece) error {
	stat := n.stat(l)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for p := range pieces {
		if wait := time.Until(p.due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-c.done:
				return os.ErrClosed
			}
		}
		if !n.passable(c, l, len(p.b)) {
			return os.ErrClosed
		}
		if _, err := dst.Write(p.b); err != nil {
			return err
		}
		stat.passed.Add(int64(len(p.b)))
	}
	return nil
}
