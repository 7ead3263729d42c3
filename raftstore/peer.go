package raftstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/quota"
)

const (
	// maxHandshakes bounds the connections in a handshake, and maxHandshakesPerHost those of one
	// address. Beyond them the oldest one is closed (quota.Conns).
	maxHandshakes        = 256
	maxHandshakesPerHost = 64
	// maxConnsPerPeer bounds the connections of one node to one group: raft keeps
	// at most three and opens a few more while snapshots and votes overlap.
	maxConnsPerPeer = 16
)

// peerPort accepts the connections of all groups of a node and hands each to its
// group once its preamble is right.
type peerPort struct {
	opts *Options
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	handshakes *quota.Conns
	refusals   *logRate // of each status

	mu     sync.Mutex
	groups map[string]*streamLayer
	early  map[net.Conn]bool // in handshake
	closed bool
}

func newPeerPort(o *Options) *peerPort {
	p := &peerPort{
		opts:       o,
		handshakes: quota.NewConns(maxHandshakes, maxHandshakesPerHost),
		refusals:   newLogRate(),
		groups:     map[string]*streamLayer{},
		early:      map[net.Conn]bool{},
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.wg.Add(1)
	go p.accept()
	return p
}

// Close ends the port; layers are closed by their groups.
func (p *peerPort) Close() error {
	p.stop()
	err := p.opts.Listener.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.early {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
	return err
}

func (p *peerPort) accept() {
	defer p.wg.Done()
	for {
		c, err := p.opts.Listener.Accept()
		if err != nil {
			if p.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			p.opts.Logger.Warn("accept on the peer port", "err", err)
			select { // out of files, most likely
			case <-time.After(50 * time.Millisecond):
			case <-p.ctx.Done():
			}
			continue
		}
		place := p.handshakes.Enter(c)
		if place == nil {
			c.Close()
			continue
		}
		p.wg.Add(1)
		go p.handshake(c, place)
	}
}

// handshake answers the preamble of c and passes c on.
func (p *peerPort) handshake(c net.Conn, place *quota.Place) {
	defer p.wg.Done()
	defer place.Leave()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		c.Close()
		return
	}
	p.early[c] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.early, c)
		p.mu.Unlock()
	}()

	c.SetDeadline(time.Now().Add(p.opts.DialTimeout))
	pre, status, err := readPreamble(c)
	var layer *streamLayer
	if err == nil {
		layer, status, err = p.admit(c, &pre)
	}
	if err != nil {
		p.logRefusal(c.RemoteAddr(), &pre, status, err)
		c.Write(marshalReply(status, err.Error()))
		c.Close()
		return
	}
	place.Leave() // no other handshake closes it from here on
	if _, err := c.Write(marshalReply(peerOK, "")); err != nil {
		c.Close()
		layer.perPeer.Give(pre.from)
		return
	}
	c.SetDeadline(time.Time{})
	if s, ok := c.(*tls.Conn); ok {
		c = certs.EndWithCertificate(s, s.ConnectionState().PeerCertificates[0])
	}
	layer.deliver(c, &pre)
}

// logRefusal tells of each status once per logPause: a peer with an old map, or whose other end has
// a new disk, dials many times a second in every group.
func (p *peerPort) logRefusal(remote net.Addr, pre *preamble, status peerStatus, err error) {
	args := []any{"remote", remote, "from", pre.from, "group", pre.group, "err", err}
	if status == peerUnknownGroup { // it starts, or was removed
		p.opts.Logger.DebugContext(p.ctx, "peer connection refused", args...)
		return
	}
	if args, ok := p.refusals.allow(fmt.Sprint(status), args, time.Now()); ok {
		p.opts.Logger.WarnContext(p.ctx, "peer connection refused", args...)
	}
}

// admit finds the group of a preamble and takes a place among the connections of
// its sender, which deliver or leave gives back.
func (p *peerPort) admit(c net.Conn, pre *preamble) (*streamLayer, peerStatus, error) {
	switch {
	case pre.cluster != p.opts.Cluster:
		return nil, peerWrongCluster, fmt.Errorf("this node is of cluster %s, the connection is for cluster %s", p.opts.Cluster, pre.cluster)
	case pre.to != p.opts.Node:
		return nil, peerWrongNode, fmt.Errorf("this is node %s, the connection is for node %s", p.opts.Node, pre.to)
	}
	if p.opts.Authorize != nil {
		if err := p.opts.Authorize(c, pre.from); err != nil {
			return nil, peerDenied, err
		}
	}
	p.mu.Lock()
	layer := p.groups[pre.group]
	p.mu.Unlock()
	if layer == nil {
		return nil, peerUnknownGroup, fmt.Errorf("node %s runs no group %s", p.opts.Node, pre.group)
	}
	if !layer.perPeer.Take(pre.from) {
		return nil, peerBusy, fmt.Errorf("%d connections of node %s to group %s are open already", maxConnsPerPeer, pre.from, pre.group)
	}
	return layer, peerOK, nil
}

// layer opens the stream layer of a group.
func (p *peerPort) layer(group string) *streamLayer {
	l := &streamLayer{
		port: p, group: group,
		incoming: make(chan net.Conn),
		entries:  make(chan net.Conn),
		conns:    map[*trackedConn]bool{},
		perPeer:  quota.New[rowraft.NodeID](maxConnsPerPeer),
	}
	l.ctx, l.stop = context.WithCancel(p.ctx)
	p.mu.Lock()
	p.groups[group] = l
	p.mu.Unlock()
	return l
}

// streamLayer is the peer port as one run of one group sees it. It knows all its
// connections, so that closing it ends every goroutine that waits on one: raft's
// own transport forgets them.
type streamLayer struct {
	port  *peerPort
	group string

	ctx      context.Context
	stop     context.CancelFunc
	incoming chan net.Conn                // for raft
	entries  chan net.Conn                // entry connections
	perPeer  *quota.Quota[rowraft.NodeID] // connections that it accepted

	mu     sync.Mutex
	conns  map[*trackedConn]bool
	closed bool
	open   sync.WaitGroup // accepted connections that raft has not closed yet
}

var _ raft.StreamLayer = (*streamLayer)(nil)

func (l *streamLayer) deliver(c net.Conn, pre *preamble) {
	t := l.track(c, func() {
		l.perPeer.Give(pre.from)
		l.open.Done()
	}, true)
	if t == nil {
		l.perPeer.Give(pre.from)
		return
	}
	to := l.incoming
	if pre.channel == entryChannel {
		to = l.entries
	}
	select {
	case to <- t:
	case <-l.ctx.Done():
		t.Close()
	}
}

// track registers c; nil if the layer is closed, and then c is closed too.
func (l *streamLayer) track(c net.Conn, done func(), accepted bool) *trackedConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		c.Close()
		return nil
	}
	if accepted {
		l.open.Add(1)
	}
	t := &trackedConn{Conn: c, layer: l, done: done}
	l.conns[t] = true
	return t
}

// Accept is called by raft's transport.
func (l *streamLayer) Accept() (net.Conn, error) {
	select {
	case c := <-l.incoming:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close ends the layer and its connections. It does not wait.
func (l *streamLayer) Close() error {
	l.stop()
	p := l.port
	p.mu.Lock()
	if p.groups[l.group] == l {
		delete(p.groups, l.group)
	}
	p.mu.Unlock()
	l.mu.Lock()
	l.closed = true
	for c := range l.conns {
		c.cutLocked()
	}
	l.mu.Unlock()
	return nil
}

// Addr is the node ID: the address that raft knows this node by.
func (l *streamLayer) Addr() net.Addr { return nodeAddr(l.port.opts.Node) }

type nodeAddr rowraft.NodeID

func (nodeAddr) Network() string  { return "node" }
func (a nodeAddr) String() string { return string(a) }

// Dial connects to the group on the node whose ID is address.
func (l *streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return l.dial(address, timeout, raftChannel)
}

func (l *streamLayer) dial(address raft.ServerAddress, timeout time.Duration, speak channel) (net.Conn, error) {
	o := l.port.opts
	to := rowraft.NodeID(address)
	host, err := o.Resolve(to)
	if err != nil {
		return nil, fmt.Errorf("resolve node %s: %w", to, err)
	}
	timeout = min(timeout, o.DialTimeout)
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	c, err := o.Dial(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("dial node %s: %w", to, err)
	}
	c.SetDeadline(time.Now().Add(timeout))
	t := l.track(c, nil, false)
	if t == nil {
		return nil, net.ErrClosed
	}
	if err := l.introduce(ctx, t, host, to, speak); err != nil {
		t.Close()
		return nil, fmt.Errorf("dial node %s at %s for group %s: %w", to, host, l.group, err)
	}
	c.SetDeadline(time.Time{})
	return t, nil
}

// introduce does the TLS handshake and exchanges the preamble.
func (l *streamLayer) introduce(ctx context.Context, t *trackedConn, host string, to rowraft.NodeID, speak channel) error {
	o := l.port.opts
	if o.DialTLS != nil {
		conf := o.DialTLS().Clone()
		if conf.ServerName == "" {
			name, _, err := net.SplitHostPort(host)
			if err != nil {
				return err
			}
			conf.ServerName = name
		}
		s := tls.Client(t.Conn, conf)
		if err := s.HandshakeContext(ctx); err != nil {
			return err
		}
		l.mu.Lock()
		t.Conn = s
		l.mu.Unlock()
	}
	pre := preamble{cluster: o.Cluster, from: o.Node, to: to, group: l.group, channel: speak}
	if _, err := t.Write(pre.marshal()); err != nil {
		return err
	}
	return readReply(t)
}

// trackedConn leaves its layer when raft closes it.
type trackedConn struct {
	net.Conn
	layer *streamLayer
	once  sync.Once
	done  func()
}

// cutLocked closes the connection below TLS, whose farewell could wait for a peer
// that does not read.
// REQUIRES: t.layer.mu is held.
func (t *trackedConn) cutLocked() {
	lowest := t.Conn
	for {
		above, ok := lowest.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		lowest = above.NetConn()
	}
	lowest.Close()
}

// Close says farewell in TLS; until it has, the layer can still cut the connection.
func (t *trackedConn) Close() error {
	err := t.Conn.Close()
	t.layer.mu.Lock()
	delete(t.layer.conns, t)
	t.layer.mu.Unlock()
	t.once.Do(func() {
		if t.done != nil {
			t.done()
		}
	})
	return err
}
