package raftstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/quota"
	"github.com/rowraft/rowraft/raftstore/hclogger"
	"github.com/rowraft/rowraft/raftstore/marks"
)

const (
	// maxHandshakes bounds the connections in a handshake, and maxHandshakesPerHost those from one address. Beyond that
	// the oldest one is closed (quota.Conns).
	maxHandshakes        = 256
	maxHandshakesPerHost = 64
	// maxConnsPerPeer bounds the connections of one node to one group. Raft keeps at most three, and a few more are
	// open while snapshots and votes overlap.
	maxConnsPerPeer = 16
)

// peerPort accepts the connections of all groups of a node. It checks the preamble of each and passes it to its group.
type peerPort struct {
	opts *Options
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	handshakes *quota.Conns
	refusals   *hclogger.Rate // by status

	marks *marks.Store
	begun time.Time // heardFrom.at is relative to this

	mu     sync.Mutex
	groups map[string]*streamLayer
	heard  map[rowraft.NodeID]*heardFrom
	early  map[net.Conn]bool // connections in a handshake
	closed bool
}

// heardFrom is the newest process of a server that this process has spoken with.
type heardFrom struct {
	process marks.Process
	at      atomic.Int64 // when the process last sent something
}

// answersFor is how long after its last bytes a process counts as running.
const answersFor = 500 * time.Millisecond

func newPeerPort(o *Options, m *marks.Store) *peerPort {
	p := &peerPort{
		opts: o, marks: m, begun: time.Now(), heard: map[rowraft.NodeID]*heardFrom{},
		handshakes: quota.NewConns(maxHandshakes, maxHandshakesPerHost),
		refusals:   hclogger.NewRate(),
		groups:     map[string]*streamLayer{},
		early:      map[net.Conn]bool{},
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.wg.Add(1)
	go p.accept()
	return p
}

// Close closes the port. The groups close their layers.
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
			select { // most likely no free file descriptor
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

// handshake reads the preamble of c, replies, and passes c to its group.
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
	place.Leave() // from here on no other handshake closes it
	reply, peer, err := p.greet(layer, &pre)
	if err != nil {
		p.logRefusal(c.RemoteAddr(), &pre, peerStatus(reply[0]), err)
	}
	if _, werr := c.Write(reply); werr != nil || err != nil {
		c.Close()
		layer.perPeer.Give(pre.from)
		return
	}
	c.SetDeadline(time.Time{})
	if s, ok := c.(*tls.Conn); ok {
		c = certs.EndWithCertificate(s, s.ConnectionState().PeerCertificates[0])
	}
	layer.deliver(c, &pre, peer)
}

// greet compares what the two ends of an accepted connection remember of each other. It returns the reply to pre. With
// an error the connection is refused.
func (p *peerPort) greet(layer *streamLayer, pre *preamble) (reply []byte, peer *heardFrom, err error) {
	if layer.member == nil {
		return marshalStatement(peerOK, &marks.Statement{}), nil, nil
	}
	refuse := func(err error) ([]byte, *heardFrom, error) {
		status := peerBusy
		switch rowraft.CodeOf(err) {
		case rowraft.CodeFenced:
			status = peerRolledBack
		case rowraft.CodeStarting:
			status = peerUnknownGroup
		case rowraft.CodeIdentity:
			status = peerDenied
		}
		return marshalReply(status, err.Error()), nil, err
	}
	if err := layer.member.recall(pre.from, &pre.says); err != nil {
		return refuse(err)
	}
	says, err := layer.member.statementFor(pre.from)
	if err != nil {
		return refuse(err)
	}
	peer, err = p.meet(pre.from, pre.says.Self)
	if rowraft.CodeOf(err) == rowraft.CodeIdentity { // the caller's own comparison gives it a better error
		return marshalStatement(peerStale, &says), nil, err
	}
	if err != nil {
		return refuse(err)
	}
	return marshalStatement(peerOK, &says), peer, nil
}

// meet records the running process of node, and closes the connections of earlier processes.
//
// Errors: CodeIdentity if a later process is known; CodeOverloaded while an earlier one still answers.
func (p *peerPort) meet(node rowraft.NodeID, now marks.Process) (*heardFrom, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.marks.Process(node)
	if now.Start < known.Start || now.Start == known.Start && now != known {
		return nil, rowraft.Errorf(rowraft.CodeIdentity, "start %d of node %s comes after its start %d: this process runs on an older copy of the data directory, or another process runs on a copy", now.Start, node, known.Start)
	}
	h := p.heard[node]
	if h != nil && h.process != now {
		if ago := p.since(h); ago < answersFor {
			return nil, rowraft.Errorf(rowraft.CodeOverloaded, "start %d of node %s answered %v ago: start %d must wait until it does not", h.process.Start, node, ago.Round(time.Millisecond), now.Start)
		}
		for _, l := range p.groups {
			l.cutPeer(h)
		}
		h = nil
	}
	if h == nil {
		h = &heardFrom{process: now}
		p.heard[node] = h
		p.marks.RecordProcess(node, now)
	}
	h.at.Store(int64(time.Since(p.begun)))
	return h, nil
}

func (p *peerPort) since(h *heardFrom) time.Duration {
	return time.Since(p.begun) - time.Duration(h.at.Load())
}

// answers reports whether a process of node sent something a moment ago.
func (p *peerPort) answers(node rowraft.NodeID, which marks.Process) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.heard[node]
	return h != nil && h.process == which && p.since(h) < answersFor
}

// logRefusal logs each status once per hclogger.pause: a peer with an old map, or one that must not run, dials many times a
// second in every group.
func (p *peerPort) logRefusal(remote net.Addr, pre *preamble, status peerStatus, err error) {
	args := []any{"remote", remote, "from", pre.from, "group", pre.group, "err", err}
	if status == peerUnknownGroup { // the group is starting, or was removed
		p.opts.Logger.DebugContext(p.ctx, "peer connection refused", args...)
		return
	}
	if args, ok := p.refusals.Allow(fmt.Sprint(status), args, time.Now()); ok {
		p.opts.Logger.WarnContext(p.ctx, "peer connection refused", args...)
	}
}

// admit finds the group of a preamble and takes one of the connections of its sender. deliver or Close releases it.
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

// layer creates the stream layer of a group. m may be nil in tests.
func (p *peerPort) layer(group string, m member) *streamLayer {
	l := &streamLayer{
		port: p, group: group, member: m,
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

// streamLayer is the peer port for one raft instance of one group. It knows all its connections, so its Close ends
// every goroutine that waits on one. Raft's own transport forgets its connections.
type streamLayer struct {
	port   *peerPort
	group  string
	member member // nil: what the two ends remember of each other is not compared

	ctx      context.Context
	stop     context.CancelFunc
	incoming chan net.Conn                // for raft
	entries  chan net.Conn                // for appendTransport
	perPeer  *quota.Quota[rowraft.NodeID] // accepted connections

	mu     sync.Mutex
	conns  map[*trackedConn]bool
	closed bool
	open   sync.WaitGroup // accepted connections that raft has not closed
}

var _ raft.StreamLayer = (*streamLayer)(nil)

func (l *streamLayer) deliver(c net.Conn, pre *preamble, peer *heardFrom) {
	t := l.track(c, func() {
		l.perPeer.Give(pre.from)
		l.open.Done()
	}, true)
	if t != nil {
		l.from(t, peer)
	}
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

// track registers c. If the layer is closed, it closes c and returns nil.
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

// from records the process at the other end of t.
func (l *streamLayer) from(t *trackedConn, peer *heardFrom) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.peer = peer
}

// cutPeer closes the connections of a process.
func (l *streamLayer) cutPeer(peer *heardFrom) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		if c.peer == peer {
			c.cutLocked()
		}
	}
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

// Close closes the layer and its connections. It does not wait.
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

// Addr returns the node ID, which is the address of this node in raft.
func (l *streamLayer) Addr() net.Addr { return nodeAddr(l.port.opts.Node) }

type nodeAddr rowraft.NodeID

func (nodeAddr) Network() string  { return "node" }
func (a nodeAddr) String() string { return string(a) }

// Dial connects to the group on the node whose ID is address.
func (l *streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return l.dial(address, timeout, raftChannel)
}

func (l *streamLayer) dial(address raft.ServerAddress, timeout time.Duration, speak channel) (net.Conn, error) {
	return l.dialContext(l.ctx, address, timeout, speak)
}

func (l *streamLayer) dialContext(ctx context.Context, address raft.ServerAddress, timeout time.Duration, speak channel) (net.Conn, error) {
	o := l.port.opts
	to := rowraft.NodeID(address)
	host, err := o.Resolve(to)
	if err != nil {
		return nil, fmt.Errorf("resolve node %s: %w", to, err)
	}
	timeout = min(timeout, o.DialTimeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
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

// introduce performs the TLS handshake and exchanges the preambles.
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
	if l.member != nil {
		var err error
		if pre.says, err = l.member.statementFor(to); err != nil {
			return err
		}
	}
	if _, err := t.Write(pre.marshal()); err != nil {
		return err
	}
	says, status, err := readReply(t)
	if err != nil || l.member == nil {
		return err
	}
	if err := l.member.recall(to, &says); err != nil {
		return err
	}
	if status == peerStale {
		return rowraft.Errorf(rowraft.CodeIdentity, "the peer has seen start %d of this node, this is start %d", says.About.Start, pre.says.Self.Start)
	}
	peer, err := l.port.meet(to, says.Self)
	if err == nil {
		l.from(t, peer)
	}
	return err
}

// trackedConn removes itself from its layer when raft closes it.
type trackedConn struct {
	net.Conn
	layer *streamLayer
	peer  *heardFrom // nil: not known yet
	once  sync.Once
	done  func()
}

func (t *trackedConn) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	if n > 0 && t.peer != nil {
		t.peer.at.Store(int64(time.Since(t.layer.port.begun)))
	}
	return n, err
}

// cutLocked closes the connection below TLS, because the close message of TLS could wait for a peer that does not read.
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

// Close sends the close message of TLS. Until that is sent, the layer can still cut the connection.
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
