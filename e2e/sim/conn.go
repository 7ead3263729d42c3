package sim

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/rowraft/rowraft/e2e/cluster"
)

const (
	pieceBytes = 32 << 10
	// windowBytes are under way in one direction; beyond that a writer waits.
	windowBytes = 256 << 10
)

// pipe is one direction of a connection. Guarded by Net.mu.
type pipe struct {
	link  cluster.Link
	queue []piece
	size  int       // bytes in queue
	last  time.Time // when the newest piece is due
}

// piece is bytes on their way; none at all is the end of the stream.
type piece struct {
	b    []byte
	sent int
	due  time.Time
}

// conn is one end of a connection.
type conn struct {
	n             *Net
	host          *Host
	peer          *conn
	local, remote netAddr
	dialled       bool // the end that called Dial
	in, out       *pipe

	// Guarded by n.mu, which is also what the conditions use.
	readable, writable *sync.Cond
	read, write        deadline
	arrival            *time.Timer // wakes the reader when the next piece is due
	err                error       // why the connection is no more
	closed             bool        // by this end
	stale              bool        // the other end is no more, and could not tell
}

func newConn(n *Net, h *Host, local, remote netAddr) *conn {
	c := &conn{n: n, host: h, local: local, remote: remote, readable: sync.NewCond(&n.mu), writable: sync.NewCond(&n.mu)}
	c.read.cond, c.write.cond = c.readable, c.writable
	return c
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// failedLocked is why a call of this end fails now, if it does.
func (c *conn) failedLocked(d *deadline) error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.err != nil:
		return c.err
	case d.passed():
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (c *conn) Read(b []byte) (int, error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	for {
		if err := c.failedLocked(&c.read); err != nil {
			return 0, c.opError("read", err)
		}
		if len(b) == 0 {
			return 0, nil
		}
		if wait, ok := c.arrivedLocked(); ok {
			return c.takeLocked(b)
		} else if wait > 0 {
			if c.arrival != nil {
				c.arrival.Stop()
			}
			c.arrival = time.AfterFunc(wait, c.wakeReader)
		}
		c.readable.Wait()
	}
}

func (c *conn) wakeReader() {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.readable.Broadcast()
}

// arrivedLocked reports whether the next piece is there, or how long it still takes.
func (c *conn) arrivedLocked() (wait time.Duration, ok bool) {
	if len(c.in.queue) == 0 {
		return 0, false
	}
	if wait := time.Until(c.in.queue[0].due); wait > 0 {
		return wait, false
	}
	return 0, !c.n.policyLocked(c.in.link).Drop
}

func (c *conn) takeLocked(b []byte) (int, error) {
	p := &c.in.queue[0]
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	k := copy(b, p.b[p.sent:])
	p.sent += k
	c.in.size -= k
	c.n.statLocked(c.in.link).Passed += int64(k)
	if p.sent == len(p.b) {
		c.in.queue = c.in.queue[1:]
	}
	c.peer.writable.Broadcast()
	return k, nil
}

func (c *conn) Write(b []byte) (done int, err error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	for {
		if err := c.failedLocked(&c.write); err != nil {
			return done, c.opError("write", err)
		}
		if done == len(b) {
			return done, nil
		}
		room := windowBytes - c.out.size
		if room <= 0 {
			c.writable.Wait()
			continue
		}
		k := min(room, len(b)-done, pieceBytes)
		c.sendLocked(bytes.Clone(b[done : done+k]))
		done += k
	}
}

// sendLocked puts a piece on its way.
func (c *conn) sendLocked(b []byte) {
	n, stat := c.n, c.n.statLocked(c.out.link)
	policy := n.policyLocked(c.out.link)
	if policy.Reset {
		n.resetLocked(c)
		return
	}
	if policy.Drop {
		stat.Held += int64(max(len(b), 1))
	}
	now := time.Now()
	late := n.base.Lateness(0)
	if c.out.link.From == c.out.link.To {
		late = 0
	}
	due := now.Add(late)
	if extra := policy.Lateness(len(b)); extra > 0 {
		stat.Delayed += int64(len(b))
		due = due.Add(extra)
	}
	if policy.BytesPerSecond > 0 && c.out.last.After(now) {
		due = c.out.last.Add(due.Sub(now))
	}
	if due.Before(c.out.last) {
		due = c.out.last // a stream keeps its order
	}
	c.out.last = due
	c.out.queue = append(c.out.queue, piece{b: b, due: due})
	c.out.size += len(b)
	if c.peer.closed && !policy.Drop && len(b) > 0 {
		n.resetLocked(c) // the peer reads no more
		return
	}
	c.peer.readable.Broadcast()
}

// Close ends this end; what is under way to the other still arrives there.
func (c *conn) Close() error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	if c.err == nil {
		c.sendLocked(nil)
	}
	c.closed = true
	delete(c.n.conns, c)
	c.in.queue, c.in.size = nil, 0
	c.stopLocked()
	c.peer.writable.Broadcast()
	return nil
}

// failLocked ends this end at once.
func (c *conn) failLocked(err error) {
	if c.err == nil {
		c.err = err
	}
	c.stopLocked()
}

func (c *conn) stopLocked() {
	for _, t := range []*time.Timer{c.arrival, c.read.timer, c.write.timer} {
		if t != nil {
			t.Stop()
		}
	}
	c.wakeLocked()
}

func (c *conn) wakeLocked() {
	c.readable.Broadcast()
	c.writable.Broadcast()
}

func (c *conn) SetDeadline(t time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.read.setLocked(t)
	c.write.setLocked(t)
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.read.setLocked(t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.write.setLocked(t)
	return nil
}

func (c *conn) opError(op string, err error) error {
	if err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "sim", Source: c.local, Addr: c.remote, Err: err}
}

// deadline of one direction. Guarded by Net.mu.
type deadline struct {
	at    time.Time // zero: none
	timer *time.Timer
	cond  *sync.Cond
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (d *deadline) setLocked(t time.Time) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	if !t.IsZero() {
		cond := d.cond
		d.timer = time.AfterFunc(max(time.Until(t), 0), func() {
			cond.L.Lock()
			defer cond.L.Unlock()
			cond.Broadcast()
		})
	}
	d.cond.Broadcast()
}
