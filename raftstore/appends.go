package raftstore

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// appendTransport is raft's network transport with entries on connections of their
// own: raft's encoding copies each of them twice at the receiving end, a tenth of all that a
// follower does. Everything else, heartbeats too, goes raft's way.
type appendTransport struct {
	*raft.NetworkTransport
	layer   *streamLayer
	timeout time.Duration // of one request

	mu     sync.Mutex
	idle   map[raft.ServerAddress][]*appendConn
	closed bool
}

// appendConn carries one request at a time.
type appendConn struct {
	net.Conn
	buf []byte
}

const (
	idleAppendConns = 2
	// directData is from what size on data is written from where it is.
	directData = 16 << 10
)

func newAppendTransport(n *raft.NetworkTransport, layer *streamLayer, timeout time.Duration) *appendTransport {
	return &appendTransport{
		NetworkTransport: n, layer: layer, timeout: timeout,
		idle: map[raft.ServerAddress][]*appendConn{},
	}
}

func (t *appendTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if len(args.Entries) == 0 {
		return t.NetworkTransport.AppendEntries(id, target, args, resp)
	}
	c, err := t.conn(target)
	if err != nil {
		return err
	}
	head, ok := marshalAppend(c.buf, args)
	c.buf = head
	if !ok {
		t.put(target, c)
		return t.NetworkTransport.AppendEntries(id, target, args, resp)
	}
	whole, err := c.call(args, resp, t.timeout)
	if !whole {
		t.drop(target) // what ended one connection most likely ended all
		return errors.Join(err, c.Close())
	}
	t.put(target, c)
	return err
}

// call sends the request whose head is in c.buf, and reads the answer. whole is
// false if the connection is of no use any more.
func (c *appendConn) call(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse, timeout time.Duration) (whole bool, err error) {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return false, err
	}
	for _, l := range args.Entries {
		if len(l.Data) < directData {
			c.buf = append(c.buf, l.Data...)
			continue
		}
		for _, b := range [][]byte{c.buf, l.Data} {
			if _, err := c.Write(b); err != nil {
				return false, err
			}
		}
		c.buf = c.buf[:0]
	}
	if len(c.buf) > 0 {
		if _, err := c.Write(c.buf); err != nil {
			return false, err
		}
	}
	return readAppendReply(c, resp)
}

func (t *appendTransport) conn(target raft.ServerAddress) (*appendConn, error) {
	t.mu.Lock()
	if idle := t.idle[target]; len(idle) > 0 {
		c := idle[len(idle)-1]
		t.idle[target] = idle[:len(idle)-1]
		t.mu.Unlock()
		return c, nil
	}
	t.mu.Unlock()
	c, err := t.layer.dial(target, t.timeout, entryChannel)
	if err != nil {
		return nil, err
	}
	return &appendConn{Conn: c}, nil
}

func (t *appendTransport) put(target raft.ServerAddress, c *appendConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.idle[target]) >= idleAppendConns {
		c.Close()
		return
	}
	t.idle[target] = append(t.idle[target], c)
}

// drop closes the idle connections to target.
func (t *appendTransport) drop(target raft.ServerAddress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropLocked(target)
}

func (t *appendTransport) dropLocked(target raft.ServerAddress) {
	for _, c := range t.idle[target] {
		c.Close()
	}
	delete(t.idle, target)
}

// closeIdle closes the connections that carry nothing.
func (t *appendTransport) closeIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for target := range t.idle {
		t.dropLocked(target)
	}
}

// acceptAppends serves the entry connections that others open.
func (t *transport) acceptAppends() {
	defer t.wg.Done()
	for {
		select {
		case c := <-t.layer.entries:
			t.wg.Add(1)
			go t.serveAppends(c)
		case <-t.layer.ctx.Done():
			return
		case <-t.stop:
			return
		}
	}
}

// serveAppends answers the requests of one connection, one after the other, until
// it ends.
func (t *transport) serveAppends(c net.Conn) {
	defer t.wg.Done()
	defer c.Close()
	r := bufio.NewReaderSize(c, 64<<10)
	for {
		req, err := readAppend(r, t.maxEntryBytes, t.maxRPCBytes)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				t.log.Warn("an entry connection ends", "remote", c.RemoteAddr(), "err", err)
			}
			return
		}
		answer := make(chan raft.RPCResponse, 1)
		if !t.pass(raft.RPC{Command: req, RespChan: answer}) {
			return
		}
		select {
		case a := <-answer:
			resp, _ := a.Response.(*raft.AppendEntriesResponse)
			if resp == nil && a.Error == nil {
				a.Error = errEnded
			}
			if _, err := c.Write(marshalAppendReply(resp, a.Error)); err != nil {
				return
			}
		case <-t.stop:
			return
		}
	}
}
