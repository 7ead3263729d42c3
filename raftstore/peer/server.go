package peer

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
)

// ServerGroup is the group of the connections that all groups of two servers share. No group has this name.
const ServerGroup = "*"

// met has the processes with which a replica has compared what they remember of each other.
type met map[meeting]bool

type meeting struct {
	with *remote
	how  direction
}

// direction says which end dialled the connection on which two ends have met.
type direction bool

const (
	dialled  direction = false
	accepted direction = true
)

// DialShared connects to the server whose ID is address, for messages of all groups. l is the layer of
// ServerGroup.
func (l *Layer) DialShared(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return l.dial(l.ctx, address, timeout, sharedChannel)
}

// MaySend reports whether the replica of l may send to the process at the other end of c, a connection of ServerGroup:
// l has dialled that process, so both replicas have compared what they remember of each other.
func (l *Layer) MaySend(c net.Conn) bool { return l.hasMet(c, dialled) }

// MayReceive reports whether the replica of l may answer the process at the other end of c, a connection of
// ServerGroup: l has accepted a connection of that process and compared what it remembers.
func (l *Layer) MayReceive(c net.Conn) bool { return l.hasMet(c, accepted) }

func (l *Layer) hasMet(c net.Conn, how direction) bool {
	t, ok := c.(*conn)
	if !ok || t.peer == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.closed && l.met[meeting{t.peer, how}]
}

// Ended dials the server at the other end of c, a connection of ServerGroup that has ended, and reports whether the
// process there has ended too: its port is closed, it runs no groups any more, or another process answers. A process
// that does not answer may be slow. l is the layer of ServerGroup.
func (l *Layer) Ended(c net.Conn) bool {
	for range 5 {
		again, err := l.DialShared(raft.ServerAddress(NodeOf(c)), l.port.opts.DialTimeout)
		switch {
		case l.ctx.Err() != nil:
			return false
		case err == nil:
			defer again.Close()
			return again.(*conn).peer != c.(*conn).peer
		case errors.Is(err, syscall.ECONNREFUSED) || rowraft.CodeOf(err) == rowraft.CodeStarting:
			return true
		case !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF):
			return false
		}
		select { // the process may be ending, or have too many handshakes
		case <-time.After(5 * time.Millisecond):
		case <-l.ctx.Done():
		}
	}
	return false
}

// Group returns the name of the group.
func (l *Layer) Group() string { return l.group }

// NodeOf returns the server at the other end of c, a connection of a layer; "" if it is not known.
func NodeOf(c net.Conn) rowraft.NodeID {
	if t, ok := c.(*conn); ok && t.peer != nil {
		return t.peer.node
	}
	return ""
}
