package transport

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/raftstore/peer"
)

// Network is raft's network transport, but only snapshots take raft's connections: these have buffers of 256 KiB at
// each end, and raft's encoding copies each entry twice at the receiving end, which is a tenth of all work of a
// follower. Small messages share connections with those of all other groups (Shared) when they can; all others take
// connections that the group has for entries.
type Network struct {
	*raft.NetworkTransport
	layer   *peer.Layer
	shared  *Shared       // nil in tests
	timeout time.Duration // of one request

	mu     sync.Mutex // guards idle and closed; not held across I/O except Close of a connection
	idle   map[raft.ServerAddress][]*appendConn
	closed bool // no connection becomes idle any more
}

// appendConn carries one request at a time.
type appendConn struct {
	net.Conn
	buf []byte // scratch: the head of a request and small data
}

const (
	// idleAppendConns bounds the idle connections to one node. Raft sends entries to a follower one request at a time; a
	// second connection serves a request after a time-out, or a heartbeat that cannot share a connection.
	idleAppendConns = 2
	// directDataBytes is the size from which on data is written without a copy into buf.
	directDataBytes = 16 << 10
)

func newNetwork(n *raft.NetworkTransport, layer *peer.Layer, shared *Shared, timeout time.Duration) *Network {
	return &Network{
		NetworkTransport: n, layer: layer, shared: shared, timeout: timeout,
		idle: map[raft.ServerAddress][]*appendConn{},
	}
}

func (t *Network) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	sent, err := t.send(target, appendKind, args, resp)
	if !sent {
		return t.NetworkTransport.AppendEntries(id, target, args, resp)
	}
	return err
}

// send sends a request and reads the answer. sent is false if only raft's encoding can carry the request.
func (t *Network) send(target raft.ServerAddress, k kind, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) (sent bool, err error) {
	if t.shared != nil && mayShare(args) {
		if sent, err := t.shared.send(t.layer, target, k, args, resp, t.timeout); sent {
			return true, err
		}
	}
	c, err := t.conn(target)
	if err != nil {
		return true, err
	}
	head, ok := marshalAppend(c.buf, k, args)
	c.buf = head
	if !ok {
		t.put(target, c)
		return false, nil
	}
	whole, err := c.call(args, resp, t.timeout)
	if !whole {
		t.drop(target) // the cause most likely ended the idle connections too
		return true, errors.Join(err, c.Close())
	}
	t.put(target, c)
	return true, err
}

// call sends the request whose head is in c.buf, and reads the answer. whole is false if the connection cannot be used
// again.
func (c *appendConn) call(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
	timeout time.Duration) (whole bool, err error) {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return false, err
	}
	for _, l := range args.Entries {
		if len(l.Data) < directDataBytes {
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

// conn returns an idle connection to target, or a new one.
func (t *Network) conn(target raft.ServerAddress) (*appendConn, error) {
	t.mu.Lock()
	if idle := t.idle[target]; len(idle) > 0 {
		c := idle[len(idle)-1]
		t.idle[target] = idle[:len(idle)-1]
		t.mu.Unlock()
		return c, nil
	}
	t.mu.Unlock()
	c, err := t.layer.DialEntries(target, t.timeout)
	if err != nil {
		return nil, err
	}
	return &appendConn{Conn: c}, nil
}

// put makes c idle, or closes it.
func (t *Network) put(target raft.ServerAddress, c *appendConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.idle[target]) >= idleAppendConns {
		c.Close()
		return
	}
	t.idle[target] = append(t.idle[target], c)
}

// drop closes the idle connections to target.
func (t *Network) drop(target raft.ServerAddress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropLocked(target)
}

// dropLocked is drop.
// REQUIRES: t.mu is held.
func (t *Network) dropLocked(target raft.ServerAddress) {
	for _, c := range t.idle[target] {
		c.Close()
	}
	delete(t.idle, target)
}

// closeIdle closes the idle connections, for good.
func (t *Network) closeIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for target := range t.idle {
		t.dropLocked(target)
	}
}

// acceptAppends serves the entry connections that other nodes open.
func (t *Transport) acceptAppends() {
	for {
		select {
		case c := <-t.layer.EntryConns():
			t.wg.Go(func() { t.serveAppends(c) })
		case <-t.layer.Context().Done():
			return
		case <-t.stop:
			return
		}
	}
}

// serveAppends answers the requests of one connection, one after the other, until it ends.
func (t *Transport) serveAppends(c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(c, 4<<10)
	for {
		k, args, err := readAppend(r, t.maxEntryBytes, t.maxRPCBytes)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				t.log.Warn("closing an entry connection", "remote", c.RemoteAddr(), "err", err)
			}
			return
		}
		answer := make(chan raft.RPCResponse, 1) // so that raft does not wait if the connection has ended
		if !t.pass(raft.RPC{Command: k.command(args), RespChan: answer}) {
			return
		}
		select {
		case a := <-answer:
			if _, err := c.Write(marshalAppendReply(reply(a))); err != nil {
				return
			}
		case <-t.stop:
			return
		}
	}
}
