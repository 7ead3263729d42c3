package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
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
	// open while snapshots, votes and the dials of Ended overlap.
	maxConnsPerPeer = 16
)

// Options configure a Port.
type Options struct {
	Cluster rowraft.ClusterID
	Node    rowraft.NodeID

	// Listener is the peer port, plain or TLS. Close closes it.
	Listener net.Listener
	// DialTLS returns the TLS configuration for an outgoing connection; nil means plain TCP. An empty ServerName is set
	// to the host that is dialled.
	DialTLS func() *tls.Config
	// Dial connects to a peer's address, below TLS.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Resolve returns the current peer address of a node. It is called for each dial.
	Resolve func(rowraft.NodeID) (string, error)
	// DialTimeout bounds a dial including its handshakes.
	DialTimeout time.Duration
	Logger      *slog.Logger
}

// Port accepts the connections of all groups of a node. It checks the preamble of each and passes it to its group.
type Port struct {
	opts Options
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	handshakes *quota.Conns
	refusals   *hclogger.Rate // by status

	marks *marks.Store
	begun time.Time // remote.at is relative to this: a monotonic clock, so that a clock that jumps refuses no peer

	// mu guards the fields below. Lock order: mu before a Layer's mu. It is not held across I/O.
	mu          sync.Mutex
	groups      map[string]*Layer
	remotes     map[rowraft.NodeID]*remote // newest process of each node that this process has spoken with
	handshaking map[net.Conn]bool          // connections in a handshake, for Close
	closed      bool
}

// remote is a process of another server.
type remote struct {
	node    rowraft.NodeID
	process marks.Process
	at      atomic.Int64 // when the process last sent bytes, in ns since Port.begun
}

// answersFor is how long after its last bytes a process counts as running.
const answersFor = 500 * time.Millisecond

// Listen accepts connections until Close. m remembers the processes of other servers.
func Listen(o Options, m *marks.Store) *Port {
	p := &Port{
		opts: o, marks: m, begun: time.Now(), remotes: map[rowraft.NodeID]*remote{},
		handshakes:  quota.NewConns(maxHandshakes, maxHandshakesPerHost),
		refusals:    hclogger.NewRate(),
		groups:      map[string]*Layer{},
		handshaking: map[net.Conn]bool{},
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.wg.Go(p.accept)
	return p
}

// Close closes the port. The groups close their layers.
func (p *Port) Close() error {
	p.stop()
	err := p.opts.Listener.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.handshaking {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
	return err
}

func (p *Port) accept() {
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
		p.wg.Go(func() { p.handshake(c, place) })
	}
}

// handshake reads the preamble of c, replies, and passes c to its group.
func (p *Port) handshake(c net.Conn, place *quota.Place) {
	defer place.Leave()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		c.Close()
		return
	}
	p.handshaking[c] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.handshaking, c)
		p.mu.Unlock()
	}()

	c.SetDeadline(time.Now().Add(p.opts.DialTimeout))
	pre, status, err := readPreamble(c)
	var layer *Layer
	if err == nil {
		layer, status, err = p.admit(&pre)
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
		p.logRefusal(c.RemoteAddr(), &pre, statusCode(reply[0]), err)
	}
	if _, werr := c.Write(reply); werr != nil || err != nil {
		c.Close()
		layer.perPeer.Give(pre.from)
		return
	}
	c.SetDeadline(time.Time{})
	if s, ok := c.(*tls.Conn); ok {
		c = certs.EndWithCertificate(certs.BatchRecords(s), s.ConnectionState().PeerCertificates[0])
	}
	layer.deliver(c, &pre, peer)
}

// greet compares what the two ends of an accepted connection remember of each other. It returns the reply to pre. With
// an error the connection is refused.
func (p *Port) greet(layer *Layer, pre *preamble) (reply []byte, peer *remote, err error) {
	if layer.member == nil {
		return marshalStatement(statusOK, &marks.Statement{}), nil, nil
	}
	refuse := func(err error) ([]byte, *remote, error) {
		status := statusBusy
		switch rowraft.CodeOf(err) {
		case rowraft.CodeFenced:
			status = statusRolledBack
		case rowraft.CodeStarting:
			status = statusUnknownGroup
		case rowraft.CodeIdentity:
			status = statusDenied
		}
		return marshalReply(status, err.Error()), nil, err
	}
	if err := layer.member.Compare(pre.from, &pre.statement); err != nil {
		return refuse(err)
	}
	statement, err := layer.member.Statement(pre.from)
	if err != nil {
		return refuse(err)
	}
	peer, err = p.recordProcess(pre.from, pre.statement.Self)
	if rowraft.CodeOf(err) == rowraft.CodeIdentity { // the caller's own comparison gives it a better error
		return marshalStatement(statusStale, &statement), nil, err
	}
	if err != nil {
		return refuse(err)
	}
	return marshalStatement(statusOK, &statement), peer, nil
}

// recordProcess records the running process of node, and closes the connections of earlier processes.
//
// Errors: CodeIdentity if a later process is known; CodeOverloaded while an earlier one still answers.
func (p *Port) recordProcess(node rowraft.NodeID, now marks.Process) (*remote, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.marks.Process(node)
	if now.Start < known.Start || now.Start == known.Start && now != known {
		return nil, rowraft.Errorf(rowraft.CodeIdentity, "start %d of server %s dials after its start %d: this process runs "+
			"on an older copy of the data directory, or another process runs on a copy", now.Start, node, known.Start)
	}
	h := p.remotes[node]
	if h != nil && h.process != now {
		if ago := p.since(h); ago < answersFor {
			return nil, rowraft.Errorf(rowraft.CodeOverloaded,
				"start %d of server %s answered %v ago: start %d must wait until it does not", h.process.Start, node,
				ago.Round(time.Millisecond), now.Start)
		}
		for _, l := range p.groups {
			l.cutPeer(h)
		}
		h = nil
	}
	if h == nil {
		h = &remote{node: node, process: now}
		p.remotes[node] = h
		p.marks.RecordProcess(node, now)
	}
	h.at.Store(int64(time.Since(p.begun)))
	return h, nil
}

func (p *Port) since(h *remote) time.Duration {
	return time.Since(p.begun) - time.Duration(h.at.Load())
}

// Answers reports whether process which of node sent something within answersFor.
func (p *Port) Answers(node rowraft.NodeID, which marks.Process) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.remotes[node]
	return h != nil && h.process == which && p.since(h) < answersFor
}

// logRefusal logs each status once per hclogger.pause: a peer with an old map, or one that must not run, dials many
// times a second in every group.
func (p *Port) logRefusal(remote net.Addr, pre *preamble, status statusCode, err error) {
	args := []any{"remote", remote, "from", pre.from, "group", pre.group, "err", err}
	closed := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
	if closed || status == statusUnknownGroup { // the peer has gone; or the group is starting, or was removed
		p.opts.Logger.DebugContext(p.ctx, "peer connection refused", args...)
		return
	}
	if args, ok := p.refusals.Allow(fmt.Sprint(status), args, time.Now()); ok {
		p.opts.Logger.WarnContext(p.ctx, "peer connection refused", args...)
	}
}

// admit finds the group of a preamble and takes one of the connections of its sender. deliver or Close releases it.
func (p *Port) admit(pre *preamble) (*Layer, statusCode, error) {
	switch {
	case pre.cluster != p.opts.Cluster:
		return nil, statusWrongCluster, fmt.Errorf("this server is of cluster %s, the connection is for cluster %s",
			p.opts.Cluster, pre.cluster)
	case pre.to != p.opts.Node:
		return nil, statusWrongNode, fmt.Errorf("this is server %s, the connection is for server %s", p.opts.Node, pre.to)
	case (pre.group == ServerGroup) != (pre.channel == sharedChannel):
		return nil, statusMalformed, fmt.Errorf("channel %d is not of group %s", pre.channel, pre.group)
	}
	p.mu.Lock()
	layer := p.groups[pre.group]
	p.mu.Unlock()
	if layer == nil {
		return nil, statusUnknownGroup, fmt.Errorf("server %s runs no group %s", p.opts.Node, pre.group)
	}
	if !layer.perPeer.Take(pre.from) {
		return nil, statusBusy, fmt.Errorf("%d connections of server %s to group %s are open already", maxConnsPerPeer,
			pre.from, pre.group)
	}
	return layer, statusOK, nil
}

// Layer creates the stream layer of a group. m may be nil in tests.
func (p *Port) Layer(group string, m Member) *Layer {
	l := &Layer{
		port: p, group: group, member: m,
		incoming: make(chan net.Conn),
		entries:  make(chan net.Conn),
		conns:    map[*conn]bool{}, met: met{},
		perPeer: quota.New[rowraft.NodeID](maxConnsPerPeer),
	}
	l.ctx, l.stop = context.WithCancel(p.ctx)
	p.mu.Lock()
	p.groups[group] = l
	p.mu.Unlock()
	return l
}

// Member is the replica of a Layer.
type Member interface {
	// Statement returns the statement for the replica on node. CodeStarting while raft does not run.
	Statement(node rowraft.NodeID) (marks.Statement, error)
	// Compare compares what another server remembers of this replica with what the replica has. An error ends the
	// replica.
	Compare(from rowraft.NodeID, s *marks.Statement) error
}

// Layer is the peer port for one raft instance of one group. It knows all its connections, so its Close ends
// every goroutine that waits on one. Raft's own transport forgets its connections.
type Layer struct {
	port   *Port
	group  string
	member Member // nil: what the two ends remember of each other is not compared

	ctx      context.Context
	stop     context.CancelFunc
	incoming chan net.Conn                // for raft
	entries  chan net.Conn                // for transport.Network
	perPeer  *quota.Quota[rowraft.NodeID] // accepted connections

	open sync.WaitGroup // accepted connections that raft has not closed

	mu     sync.Mutex // guards the fields below, and conn.Conn and conn.peer; not held across I/O that can wait
	conns  map[*conn]bool
	met    met
	closed bool
}

var _ raft.StreamLayer = (*Layer)(nil)

func (l *Layer) deliver(c net.Conn, pre *preamble, peer *remote) {
	t := l.track(c, func() {
		l.perPeer.Give(pre.from)
		l.open.Done()
	}, true)
	if t == nil {
		l.perPeer.Give(pre.from)
		return
	}
	l.setRemote(t, peer, accepted)
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
func (l *Layer) track(c net.Conn, done func(), accepted bool) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		c.Close()
		return nil
	}
	if accepted {
		l.open.Add(1)
	}
	t := &conn{Conn: c, layer: l, done: done}
	l.conns[t] = true
	return t
}

// setRemote records the process at the other end of t, with which the replica of l has compared what they remember.
func (l *Layer) setRemote(t *conn, peer *remote, how direction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.peer = peer
	if peer != nil {
		l.met[meeting{peer, how}] = true
	}
}

// cutPeer closes the connections of a process.
func (l *Layer) cutPeer(peer *remote) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		if c.peer == peer {
			c.cutLocked()
		}
	}
	delete(l.met, meeting{peer, dialled})
	delete(l.met, meeting{peer, accepted})
}

// Accept is called by raft's transport.
func (l *Layer) Accept() (net.Conn, error) {
	select {
	case c := <-l.incoming:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close closes the layer and its connections. It does not wait.
func (l *Layer) Close() error {
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
func (l *Layer) Addr() net.Addr { return nodeAddr(l.port.opts.Node) }

type nodeAddr rowraft.NodeID

func (nodeAddr) Network() string  { return "node" }
func (a nodeAddr) String() string { return string(a) }

// Dial connects to the group on the node whose ID is address.
func (l *Layer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return l.dial(l.ctx, address, timeout, raftChannel)
}

// DialEntries connects to the group on the node whose ID is address, for all requests but snapshots.
func (l *Layer) DialEntries(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return l.dial(l.ctx, address, timeout, entryChannel)
}

// Exchange connects to the group on the node whose ID is address, so that both ends compare what they remember of each
// other, and closes the connection.
func (l *Layer) Exchange(ctx context.Context, address raft.ServerAddress, timeout time.Duration) error {
	c, err := l.dial(ctx, address, timeout, entryChannel)
	if err != nil {
		return err
	}
	return c.Close()
}

// EntryConns are the accepted connections of DialEntries.
func (l *Layer) EntryConns() <-chan net.Conn { return l.entries }

// Context returns a context that ends with Close.
func (l *Layer) Context() context.Context { return l.ctx }

// Wait waits until raft has closed all accepted connections.
func (l *Layer) Wait() { l.open.Wait() }

func (l *Layer) dial(ctx context.Context, address raft.ServerAddress, timeout time.Duration,
	speak channel) (net.Conn, error) {
	o := l.port.opts
	to := rowraft.NodeID(address)
	host, err := o.Resolve(to)
	if err != nil {
		return nil, fmt.Errorf("resolve server %s: %w", to, err)
	}
	timeout = min(timeout, o.DialTimeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := o.Dial(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("dial server %s: %w", to, err)
	}
	c.SetDeadline(time.Now().Add(timeout))
	t := l.track(c, nil, false)
	if t == nil {
		return nil, net.ErrClosed
	}
	if err := l.introduce(ctx, t, host, to, speak); err != nil {
		t.Close()
		return nil, fmt.Errorf("dial server %s at %s for group %s: %w", to, host, l.group, err)
	}
	c.SetDeadline(time.Time{})
	return t, nil
}

// introduce performs the TLS handshake and exchanges the preambles.
func (l *Layer) introduce(ctx context.Context, t *conn, host string, to rowraft.NodeID, speak channel) error {
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
		s := tls.Client(certs.NewRecordBuffer(t.Conn), conf)
		if err := s.HandshakeContext(ctx); err != nil {
			return err
		}
		l.mu.Lock()
		t.Conn = certs.BatchRecords(s)
		l.mu.Unlock()
	}
	pre := preamble{cluster: o.Cluster, from: o.Node, to: to, group: l.group, channel: speak}
	if l.member != nil {
		var err error
		if pre.statement, err = l.member.Statement(to); err != nil {
			return err
		}
	}
	if _, err := t.Write(pre.marshal()); err != nil {
		return err
	}
	statement, status, err := readReply(t)
	if err != nil || l.member == nil {
		return err
	}
	if err := l.member.Compare(to, &statement); err != nil {
		return err
	}
	if status == statusStale {
		return rowraft.Errorf(rowraft.CodeIdentity, "the peer has seen start %d of this server, this is start %d",
			statement.About.Start, pre.statement.Self.Start)
	}
	peer, err := l.port.recordProcess(to, statement.Self)
	if err == nil {
		l.setRemote(t, peer, dialled)
	}
	return err
}

// conn removes itself from its layer when raft closes it.
type conn struct {
	net.Conn
	layer *Layer
	peer  *remote // nil: not known yet
	once  sync.Once
	done  func()
}

func (t *conn) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	if n > 0 && t.peer != nil {
		t.peer.at.Store(int64(time.Since(t.layer.port.begun)))
	}
	return n, err
}

// cutLocked closes the connection below TLS, because the close message of TLS could wait for a peer that does not read.
// REQUIRES: t.layer.mu is held.
func (t *conn) cutLocked() {
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
func (t *conn) Close() error {
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
