package sim

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rowraft/rowraft/e2e/cluster"
)

// Net is a network in memory. What it delays waits on timers and conditions only,
// so that virtual time passes meanwhile. Safe for concurrent use.
//
// A connection has two ends, each with a Host. What one end writes arrives at the
// other in order, late by the link's policy; a cut keeps it until the cut is
// lifted, as TCP does.
//
// Lock order: mu is the only lock, and is held for moments.
type Net struct {
	base cluster.LinkPolicy // of every link between two hosts

	mu        sync.Mutex
	changed   *sync.Cond // rules, listeners, hosts: dials wait for it
	hosts     map[string]*Host
	listeners map[string]*listener // by address
	owners    map[string]string    // address → host that ever listened there
	conns     map[*conn]bool
	rules     map[int]rule
	nextRule  int
	stats     map[cluster.Link]*cluster.LinkStats
	nextPort  int
}

type rule struct {
	links  []cluster.Link
	policy cluster.LinkPolicy
}

// NewNet returns a network whose links are as base says at best.
func NewNet(base cluster.LinkPolicy) *Net {
	n := &Net{
		base: base, hosts: make(map[string]*Host), listeners: make(map[string]*listener), owners: make(map[string]string),
		conns: make(map[*conn]bool), rules: make(map[int]rule), stats: make(map[cluster.Link]*cluster.LinkStats),
	}
	n.changed = sync.NewCond(&n.mu)
	return n
}

// Host is one life of a machine on the network, from Net.Host to Cut.
type Host struct {
	n    *Net
	name string

	// Guarded by n.mu.
	gone   bool
	silent bool // gone without a word: peers hear nothing until the next life
}

// Host begins a life under name. The one before must be over.
func (n *Net) Host(name string) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	if old := n.hosts[name]; old != nil && !old.gone {
		panic(fmt.Sprintf("host %s lives twice", name))
	}
	h := &Host{n: n, name: name}
	n.hosts[name] = h
	n.sweepLocked()
	return h
}

// Cut ends the life of h: from now on nothing leaves it or reaches it, and its own
// calls fail. Peers see their connections reset if something of the machine is
// left to say so; after a power cut (silent) they see nothing at all.
func (h *Host) Cut(silent bool) {
	n := h.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.gone {
		return
	}
	h.gone, h.silent = true, silent
	for addr, l := range n.listeners {
		if l.host == h {
			l.closeLocked()
			delete(n.listeners, addr)
		}
	}
	for c := range n.conns {
		if c.host != h {
			continue
		}
		delete(n.conns, c)
		c.failLocked(errGone)
		if c.peer.host != h {
			c.peer.stale = true
		}
	}
	n.sweepLocked()
}

// errGone is what the remains of a dead host see.
var errGone = fmt.Errorf("the host is gone: %w", syscall.ENETDOWN)

// sweepLocked resets connections whose other end is no more, as soon as a packet
// could tell.
func (n *Net) sweepLocked() {
	for c := range n.conns {
		if !c.stale {
			continue
		}
		other := n.hosts[c.peer.host.name]
		if other.gone && other.silent || n.policyLocked(c.in.link).Drop || n.policyLocked(c.out.link).Drop {
			continue
		}
		delete(n.conns, c)
		c.failLocked(syscall.ECONNRESET)
	}
	n.changed.Broadcast()
}

// Apply puts a policy on links and returns a function that lifts it, once.
func (n *Net) Apply(policy cluster.LinkPolicy, links ...cluster.Link) (lift func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	id := n.nextRule
	n.nextRule++
	n.rules[id] = rule{links, policy}
	if policy.Reset {
		for c := range n.conns {
			if n.policyLocked(c.out.link).Reset {
				n.resetLocked(c)
			}
		}
	}
	n.announceLocked()
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.rules, id)
		n.announceLocked()
	}
}

// Heal lifts every policy.
func (n *Net) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.rules)
	n.announceLocked()
}

func (n *Net) announceLocked() {
	n.sweepLocked()
	for c := range n.conns {
		c.wakeLocked()
	}
}

// ResetAll closes every connection between the two ends, either way round, with
// RST, and returns how many. "" stands for any end.
func (n *Net) ResetAll(a, b string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	is := func(want, got string) bool { return want == "" && got != Harness || want == got }
	count := 0
	for c := range n.conns {
		if l := c.out.link; c.dialled && (is(a, l.From) && is(b, l.To) || is(a, l.To) && is(b, l.From)) {
			n.resetLocked(c)
			count++
		}
	}
	return count
}

func (n *Net) resetLocked(c *conn) {
	if n.conns[c] || n.conns[c.peer] {
		n.statLocked(c.out.link).Resets++
	}
	for _, end := range []*conn{c, c.peer} {
		delete(n.conns, end)
		end.failLocked(syscall.ECONNRESET)
	}
}

// Stats sums the counters of links.
func (n *Net) Stats(links ...cluster.Link) (sum cluster.LinkStats) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range links {
		s := n.statLocked(l)
		sum.Passed += s.Passed
		sum.Held += s.Held
		sum.Delayed += s.Delayed
		sum.Resets += s.Resets
	}
	return sum
}

// Connections is how many connections have an end that is open.
func (n *Net) Connections() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}

func (n *Net) statLocked(l cluster.Link) *cluster.LinkStats {
	s := n.stats[l]
	if s == nil {
		s = &cluster.LinkStats{}
		n.stats[l] = s
	}
	return s
}

// policyLocked is what the rules make of a link, base left out.
func (n *Net) policyLocked(l cluster.Link) (p cluster.LinkPolicy) {
	if l.From == l.To {
		return p
	}
	for _, r := range n.rules {
		if slices.Contains(r.links, l) {
			p = p.Join(r.policy)
		}
	}
	return p
}

// Listen opens a port of h. addr is the whole address, as peers dial it.
func (h *Host) Listen(addr string) (net.Listener, error) {
	n := h.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.gone {
		return nil, errGone
	}
	if n.listeners[addr] != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, syscall.EADDRINUSE)
	}
	l := &listener{host: h, addr: netAddr(addr), ready: sync.NewCond(&n.mu)}
	n.listeners[addr], n.owners[addr] = l, h.name
	n.changed.Broadcast()
	return l, nil
}

// Dial connects h to an address. A cut in either direction, or a host without
// power, makes it wait until ctx ends.
func (h *Host) Dial(ctx context.Context, addr string) (net.Conn, error) {
	n := h.n
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "sim", Addr: netAddr(addr), Err: err}
	}
	defer context.AfterFunc(ctx, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.changed.Broadcast()
	})()
	n.mu.Lock()
	defer n.mu.Unlock()
	for travelled := false; ; {
		switch open, err := h.openLocked(ctx, addr); {
		case err != nil:
			return fail(err)
		case !open:
			n.changed.Wait()
			continue
		}
		if travelled {
			return n.connectLocked(h, n.listeners[addr]), nil
		}
		// One round trip, in which things may change.
		there, back := h.linksTo(n.owners[addr])
		late := n.lateLocked(there, 0) + n.lateLocked(back, 0)
		travelled = true
		n.mu.Unlock()
		sleep(ctx, late)
		n.mu.Lock()
	}
}

// openLocked says whether a connection to addr can be made now; an error, that it
// cannot be made at all.
func (h *Host) openLocked(ctx context.Context, addr string) (bool, error) {
	n := h.n
	if h.gone {
		return false, errGone
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	owner, known := n.owners[addr]
	if !known {
		return false, syscall.ECONNREFUSED
	}
	there, back := h.linksTo(owner)
	p := n.policyLocked(there).Join(n.policyLocked(back))
	if p.Reset {
		n.statLocked(there).Resets++
		return false, syscall.ECONNRESET
	}
	if p.Drop {
		n.statLocked(there).Held++
		return false, nil
	}
	l := n.listeners[addr]
	if l == nil {
		if other := n.hosts[owner]; other.gone && other.silent {
			return false, nil
		}
		return false, syscall.ECONNREFUSED
	}
	return len(l.queue) < maxBacklog, nil
}

func (h *Host) linksTo(name string) (there, back cluster.Link) {
	return cluster.Link{From: h.name, To: name}, cluster.Link{From: name, To: h.name}
}

// lateLocked is how late a piece sent on l now arrives.
func (n *Net) lateLocked(l cluster.Link, bytes int) time.Duration {
	if l.From == l.To {
		return 0
	}
	return n.base.Lateness(0) + n.policyLocked(l).Lateness(bytes)
}

// connectLocked joins a new connection of h to the queue of l.
func (n *Net) connectLocked(h *Host, l *listener) net.Conn {
	n.nextPort++
	here := netAddr(fmt.Sprintf("%s:%d", h.name, 10000+n.nextPort))
	there, back := h.linksTo(l.host.name)
	a, b := newConn(n, h, here, l.addr), newConn(n, l.host, l.addr, here)
	a.peer, b.peer, a.dialled = b, a, true
	a.out, b.in = &pipe{link: there}, nil
	b.in = a.out
	b.out = &pipe{link: back}
	a.in = b.out
	n.conns[a], n.conns[b] = true, true
	l.queue = append(l.queue, b)
	l.ready.Broadcast()
	return a
}

const maxBacklog = 128

// listener is a port.
type listener struct {
	host  *Host
	addr  netAddr
	ready *sync.Cond // on Net.mu

	// Guarded by Net.mu.
	queue  []*conn
	closed bool
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) Accept() (net.Conn, error) {
	n := l.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(l.queue) == 0 {
		if l.closed {
			return nil, net.ErrClosed
		}
		l.ready.Wait()
	}
	c := l.queue[0]
	l.queue = l.queue[1:]
	n.changed.Broadcast()
	return c, nil
}

func (l *listener) Close() error {
	n := l.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[string(l.addr)] == l {
		delete(n.listeners, string(l.addr))
	}
	for _, c := range l.queue {
		n.resetLocked(c)
	}
	l.closeLocked()
	return nil
}

func (l *listener) closeLocked() {
	l.closed, l.queue = true, nil
	l.ready.Broadcast()
	l.host.n.changed.Broadcast()
}

type netAddr string

func (netAddr) Network() string  { return "sim" }
func (a netAddr) String() string { return string(a) }

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
