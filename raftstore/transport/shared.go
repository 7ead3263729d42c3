package transport

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/peer"
)

// Shared carries messages of all groups of a server over two connections to each other server: one for those without
// entries, such as heartbeats and votes, so that these do not wait for others, and one for small entries. Messages that
// are ready at the same time cost one write and one read, and a vote rarely dials. Snapshots and large entries have
// connections of their group. Safe for concurrent use.
//
// Shared changes the path of a message: each group's own main loop still answers (#695), and a group that does not
// answer delays no other one. A message for a group goes over a shared connection only while this replica and the
// process at the other end have compared what they remember of each other (peer.Layer.MaySend), and only such a message
// is answered. All others use a connection of the group. Shared also tells the groups when the process of another
// server has ended.
type Shared struct {
	layer *peer.Layer // of peer.ServerGroup
	log   *slog.Logger
	wg    sync.WaitGroup // all goroutines

	mu     sync.Mutex // guards the fields below; not held across I/O
	groups map[string]*Transport
	peers  map[raft.ServerAddress]*sharedPeer
	closed bool
}

// sharedPeer is what Shared knows of another server.
type sharedPeer struct {
	departures departures
	conns      [connClasses]classConn // guarded by Shared.mu
	looking    bool                   // a dial tests whether its process has ended; guarded by Shared.mu
}

// connClass says which messages a connection is for.
type connClass int

const (
	controlClass connClass = iota // without entries
	entryClass
	connClasses
)

func classOf(a *raft.AppendEntriesRequest) connClass {
	if len(a.Entries) > 0 {
		return entryClass
	}
	return controlClass
}

// classConn is a connection to another server.
type classConn struct {
	conn    *sharedConn // nil: none
	dialing bool
	retryAt time.Time // when it may dial again
}

const (
	// sharedRedial is the pause after a failed dial. Messages then travel on the connections of their groups.
	sharedRedial = time.Second
	// maxSharedWaiting bounds the messages of one group that wait for its main loop.
	maxSharedWaiting = 16
	// maxSharedBatch bounds the messages that are answered together.
	maxSharedBatch = 1 << 10
	// sharedReadBytes is the buffer of a connection that another server has dialled: a message with entries fits.
	sharedReadBytes = 128 << 10
	// sharedWriteBytes is how much must be written within RPCTimeout.
	sharedWriteBytes = 256 << 10
	// maxUnsentBytes is how much may wait for a connection before requests take another one.
	maxUnsentBytes = 1 << 20
)

// NewShared returns the Shared of a server. layer is that of peer.ServerGroup; Close closes it.
func NewShared(layer *peer.Layer, log *slog.Logger) *Shared {
	h := &Shared{layer: layer, log: log, groups: map[string]*Transport{},
		peers: map[raft.ServerAddress]*sharedPeer{}}
	h.wg.Go(h.accept)
	return h
}

// Close closes the connections and waits for the goroutines. The groups must be closed before.
func (h *Shared) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.layer.Close()
	h.wg.Wait()
}

// join makes t receive the messages for its group, in the place of an earlier transport.
func (h *Shared) join(t *Transport) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.groups[t.layer.Group()] = t
}

// leave ends join. No message reaches t from then on.
func (h *Shared) leave(t *Transport) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.groups[t.layer.Group()] == t {
		delete(h.groups, t.layer.Group())
	}
}

// REQUIRES: h.mu is held.
func (h *Shared) peerLocked(target raft.ServerAddress) *sharedPeer {
	p := h.peers[target]
	if p == nil {
		p = &sharedPeer{}
		h.peers[target] = p
	}
	return p
}

// departuresTo returns when messages without news leave for target.
func (h *Shared) departuresTo(target raft.ServerAddress) *departures {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &h.peerLocked(target).departures
}

// connTo returns the connection to target for messages of class, or nil. It then dials.
func (h *Shared) connTo(target raft.ServerAddress, class connClass) *sharedConn {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.peerLocked(target).conns[class]
	if s.conn != nil && !s.conn.silent.Load() {
		return s.conn
	}
	if !s.dialing && !h.closed && time.Now().After(s.retryAt) {
		s.dialing = true
		h.wg.Go(func() { h.dial(target, s) })
	}
	return nil
}

// dial connects to a server and reads its answers until the connection ends.
func (h *Shared) dial(target raft.ServerAddress, s *classConn) {
	c, err := h.layer.DialShared(target, RPCTimeout)
	h.mu.Lock()
	s.dialing = false
	if err != nil {
		s.retryAt = time.Now().Add(sharedRedial)
		h.mu.Unlock()
		h.log.Debug("the groups share no connection", "server", string(target), "err", err)
		return
	}
	b := &sharedConn{Conn: c, out: newGatheredWriter(c), waiting: map[uint64]chan<- sharedResult{}}
	s.conn = b
	h.mu.Unlock()
	h.wg.Go(b.out.run)
	err = b.readAnswers()
	h.mu.Lock()
	if s.conn == b {
		s.conn = nil
	}
	h.mu.Unlock()
	c.Close()
	b.out.end()
	b.fail(b.out.failure(err))
	if b.heard.Load() > 0 {
		h.ended(c)
	}
}

// ended tells the groups if the process at the other end of c, a connection that has ended, has ended too.
func (h *Shared) ended(c net.Conn) {
	node := peer.NodeOf(c)
	if node == "" {
		return
	}
	h.mu.Lock()
	p := h.peerLocked(raft.ServerAddress(node))
	first := !p.looking // several connections to a process end together
	p.looking = true
	h.mu.Unlock()
	if !first {
		return
	}
	ended := h.layer.Ended(c)
	h.mu.Lock()
	p.looking = false
	groups := slices.Collect(maps.Values(h.groups))
	h.mu.Unlock()
	if !ended {
		return
	}
	for _, t := range groups {
		t.replica.ServerEnded(node)
	}
}

// send sends a message of group to the server target and waits for the answer. sent is false if the message must use
// the connection of its group.
func (h *Shared) send(from *peer.Layer, target raft.ServerAddress, k kind, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse, timeout time.Duration) (sent bool, err error) {
	c := h.connTo(target, classOf(args))
	if c == nil || !from.MaySend(c.Conn) {
		return false, nil
	}
	return c.call(from, k, args, resp, timeout)
}

// sharedConn is a connection that this server has dialled.
type sharedConn struct {
	net.Conn
	out   *gatheredWriter
	heard atomic.Int64 // answers read
	// silent is set when an answer is late and none has come meanwhile: new requests take another connection.
	silent atomic.Bool

	mu      sync.Mutex    // guards the fields below; not held across I/O
	last    uint64        // id of the last request
	longest time.Duration // time limit of a request
	waiting map[uint64]chan<- sharedResult
	failed  error // why the connection has ended; no request waits then
}

// sharedResult is the body of an answer, or the error of the connection.
type sharedResult struct {
	body []byte
	err  error
}

// call sends a request and waits for the answer.
func (c *sharedConn) call(from *peer.Layer, k kind, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse, timeout time.Duration) (sent bool, err error) {
	result := make(chan sharedResult, 1)
	c.mu.Lock()
	if c.failed != nil {
		c.mu.Unlock()
		return false, nil
	}
	c.last++
	id := c.last
	c.waiting[id] = result
	c.longest = max(c.longest, timeout)
	c.mu.Unlock()
	defer c.forget(id)
	heard := c.heard.Load()
	late := time.NewTimer(timeout)
	defer late.Stop()
	if !c.out.add(id, func(b []byte) ([]byte, bool) { return appendSharedRequest(b, k, from.Group(), args) }) {
		return false, nil
	}
	select {
	case r := <-result:
		if r.err != nil {
			return true, r.err
		}
		answered, err, corrupt := parseSharedAnswer(r.body, resp)
		if corrupt != nil {
			c.Close()
			return true, corrupt
		}
		return answered, err
	case <-from.Context().Done(): // the group ends
		return true, ErrStopped
	case <-late.C:
		// Most likely the connection is dead if no group answers. The requests that came later have their time, too: an
		// answer may be a vote.
		if c.heard.Load() == heard && !c.silent.Swap(true) {
			c.mu.Lock()
			time.AfterFunc(c.longest, func() { c.Close() })
			c.mu.Unlock()
		}
		return true, rowraft.Errorf(rowraft.CodeDeadline, "no answer within %v", timeout)
	}
}

func (c *sharedConn) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// readAnswers passes answers to their calls until the connection ends.
func (c *sharedConn) readAnswers() error {
	r := bufio.NewReaderSize(c.Conn, 16<<10)
	for {
		m, err := readShared(r, maxSharedAnswer)
		if err != nil {
			return err
		}
		c.heard.Add(1)
		c.mu.Lock()
		result := c.waiting[m.id]
		delete(c.waiting, m.id)
		c.mu.Unlock()
		if result != nil {
			result <- sharedResult{body: m.body}
		}
	}
}

// fail ends all calls with err.
func (c *sharedConn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = err
	for _, result := range c.waiting {
		result <- sharedResult{err: err}
	}
	clear(c.waiting)
}

// accept serves the connections that other servers dial.
func (h *Shared) accept() {
	for {
		c, err := h.layer.Accept()
		if err != nil {
			return
		}
		h.wg.Go(func() { h.serve(c) })
	}
}

// serve passes the requests on one connection to their groups until it ends. Those that arrived together are answered
// together, except by groups that are busy: each of these answers from a goroutine of its own.
func (h *Shared) serve(c net.Conn) {
	out := newGatheredWriter(c)
	h.wg.Go(out.run)
	used := false // the dial of Layer.Ended sends nothing: else the two ends would dial each other for ever
	defer func() {
		out.end()
		c.Close()
		if used {
			h.ended(c)
		}
	}()
	r := bufio.NewReaderSize(c, sharedReadBytes)
	var passed []*sharedRequest
	for {
		m, err := readShared(r, maxSharedRequest)
		if err == nil {
			used = true
			var one *sharedRequest
			if one, err = h.receive(c, out, &m); one != nil {
				passed = append(passed, one)
			}
		}
		if err == nil && len(passed) < maxSharedBatch && hasShared(r) {
			continue
		}
		runtime.Gosched() // the main loops answer
		for _, one := range passed {
			one.finish(out)
		}
		passed = passed[:0]
		if err != nil {
			if err = out.failure(err); !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				h.log.Warn("closing a connection of all groups", "remote", c.RemoteAddr(), "err", err)
			}
			return
		}
	}
}

// receive passes a request to its group, or refuses it and returns nil. The error is that of the encoding.
func (h *Shared) receive(c net.Conn, out *gatheredWriter, m *sharedMessage) (*sharedRequest, error) {
	kind, group, args, err := parseSharedRequest(m.body)
	if err != nil {
		return nil, err
	}
	t := h.enter(c, group)
	if t == nil {
		out.answer(m.id, func(b []byte) ([]byte, bool) { return append(b, sharedRefused), true })
		return nil, nil
	}
	result := make(chan raft.RPCResponse, 1) // so that raft does not wait for finish
	one := &sharedRequest{id: m.id, to: t, rpc: raft.RPC{Command: kind.command(args), RespChan: result},
		result: result}
	if one.taken = t.screen(one.rpc); !one.taken {
		select {
		case t.consume <- one.rpc:
			one.taken = true
		default: // raft's main loop is busy
		}
	}
	return one, nil
}

// enter returns the transport of group if it takes requests of c. It is not closed before finish has been called.
func (h *Shared) enter(c net.Conn, group string) *Transport {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.groups[group]
	if t == nil || !t.layer.MayReceive(c) || t.waiting.Load() >= maxSharedWaiting {
		return nil
	}
	t.wg.Add(1)
	return t
}

// sharedRequest is a request that was passed to a group.
type sharedRequest struct {
	id     uint64
	to     *Transport
	rpc    raft.RPC
	result chan raft.RPCResponse
	taken  bool // raft has the request, or it has a result without raft
}

// finish appends the answer to out, or lets a new goroutine wait for the answer and write it.
func (r *sharedRequest) finish(out *gatheredWriter) {
	t := r.to
	defer t.wg.Done()
	select {
	case a := <-r.result:
		out.answer(r.id, answerOf(a))
	default:
		t.waiting.Add(1)
		t.wg.Go(func() {
			defer t.waiting.Add(-1)
			out.answer(r.id, answerOf(r.wait()))
		})
	}
}

// wait returns the answer of raft, or ErrStopped when the transport ends.
func (r *sharedRequest) wait() raft.RPCResponse {
	if r.taken || r.to.deliver(r.rpc) {
		select {
		case a := <-r.result:
			return a
		case <-r.to.stop:
		}
		select { // both may be there
		case a := <-r.result:
			return a
		default:
		}
	}
	return raft.RPCResponse{Error: ErrStopped}
}

// answerOf returns the function that appends an answer of raft.
func answerOf(a raft.RPCResponse) func([]byte) ([]byte, bool) {
	resp, err := reply(a)
	return func(b []byte) ([]byte, bool) { return appendSharedAnswer(b, resp, err) }
}

// gatheredWriter writes the messages of many goroutines, which do not wait for it. What they add at the same moment is
// one write.
type gatheredWriter struct {
	c     net.Conn
	added chan struct{} // of 1: buf is not empty
	ended chan struct{} // closed by end

	mu     sync.Mutex // guards the fields below; not held across I/O
	buf    []byte
	failed error // why a write has failed
}

func newGatheredWriter(c net.Conn) *gatheredWriter {
	return &gatheredWriter{c: c, added: make(chan struct{}, 1), ended: make(chan struct{})}
}

// add adds a message. It returns false if body fails, a write has failed, or too much waits.
func (w *gatheredWriter) add(id uint64, body func([]byte) ([]byte, bool)) (ok bool) {
	w.mu.Lock()
	if w.failed == nil && len(w.buf) <= maxUnsentBytes {
		w.buf, ok = appendShared(w.buf, id, body)
	}
	w.mu.Unlock()
	if ok {
		select {
		case w.added <- struct{}{}:
		default:
		}
	}
	return ok
}

// answer adds an answer, or closes the connection: otherwise the request would wait for it.
func (w *gatheredWriter) answer(id uint64, body func([]byte) ([]byte, bool)) {
	if !w.add(id, body) {
		w.c.Close()
	}
}

// run writes what is added until end or an error, after which it closes the connection.
func (w *gatheredWriter) run() {
	var out []byte
	for {
		select {
		case <-w.added:
		case <-w.ended:
			return
		}
		runtime.Gosched() // the goroutines that were woken together add their messages
		w.mu.Lock()
		out, w.buf = w.buf, out[:0]
		w.mu.Unlock()
		if err := w.write(out); err != nil {
			w.mu.Lock()
			w.failed, w.buf = err, nil
			w.mu.Unlock()
			w.c.Close()
			return
		}
	}
}

// write writes b, each sharedWriteBytes of it within RPCTimeout.
func (w *gatheredWriter) write(b []byte) error {
	for part := range slices.Chunk(b, sharedWriteBytes) {
		if err := w.c.SetWriteDeadline(time.Now().Add(RPCTimeout)); err != nil {
			return err
		}
		if _, err := w.c.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// failure returns the error of a write, or err if none has failed.
func (w *gatheredWriter) failure(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return w.failed
	}
	return err
}

// end ends run.
func (w *gatheredWriter) end() { close(w.ended) }
