package cluster

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// LinkStats counts what happened on a link since the start.
type LinkStats struct {
	Passed  int64 // bytes delivered
	Held    int64 // bytes that met a cut
	Delayed int64 // bytes that were late on purpose
	Resets  int64 // connections closed by a policy or by ResetAll
}

type linkState struct {
	passed, held, delayed, resets atomic.Int64
}

// Network is the proxies of a cluster and the policies on their links. Safe for
// concurrent use.
//
// Goroutines: one accepts for each proxy, and each connection has five; all end in
// Close.
type Network struct {
	wg sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	proxies  []*proxy
	conns    map[*conn]bool
	rules    map[int]rule
	nextRule int
	changed  chan struct{} // closed at the next change of rules
	stats    map[Link]*linkState
}

// NewNetwork returns a network without proxies.
func NewNetwork() *Network {
	return &Network{
		conns: make(map[*conn]bool), rules: make(map[int]rule), changed: make(chan struct{}),
		stats: make(map[Link]*linkState),
	}
}

// Apply puts a policy on links and returns a function that lifts it, once.
func (n *Network) Apply(policy LinkPolicy, links ...Link) (lift func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	id := n.nextRule
	n.nextRule++
	n.rules[id] = rule{links, policy}
	n.announceLocked()
	if policy.Reset {
		for c := range n.conns {
			if n.policyLocked(Link{c.from, c.to}).Reset || n.policyLocked(Link{c.to, c.from}).Reset {
				n.resetLocked(c)
			}
		}
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.rules, id)
		n.announceLocked()
	}
}

// Heal lifts every policy.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.rules)
	n.announceLocked()
}

func (n *Network) announceLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// ResetAll closes every connection between the two ends, either way round, with
// RST, and returns how many. "" stands for any end.
func (n *Network) ResetAll(a, b string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	is := func(want, got string) bool { return want == "" || want == got }
	count := 0
	for c := range n.conns {
		if is(a, c.from) && is(b, c.to) || is(a, c.to) && is(b, c.from) {
			n.resetLocked(c)
			count++
		}
	}
	return count
}

func (n *Network) resetLocked(c *conn) {
	n.statLocked(Link{c.from, c.to}).resets.Add(1)
	delete(n.conns, c)
	c.reset()
}

// Stats sums the counters of links.
func (n *Network) Stats(links ...Link) (sum LinkStats) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range links {
		s := n.statLocked(l)
		sum.Passed += s.passed.Load()
		sum.Held += s.held.Load()
		sum.Delayed += s.delayed.Load()
		sum.Resets += s.resets.Load()
	}
	return sum
}

// Connections is how many connections are open through the proxies.
func (n *Network) Connections() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}

func (n *Network) statLocked(l Link) *linkState {
	s := n.stats[l]
	if s == nil {
		s = &linkState{}
		n.stats[l] = s
	}
	return s
}

func (n *Network) stat(l Link) *linkState {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.statLocked(l)
}

// policy returns what holds on a link now, and a channel closed at the next change.
func (n *Network) policy(l Link) (LinkPolicy, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.policyLocked(l), n.changed
}

func (n *Network) policyLocked(l Link) (p LinkPolicy) {
	for _, r := range n.rules {
		for _, have := range r.links {
			if have == l {
				p = p.Join(r.policy)
				break
			}
		}
	}
	return p
}

// proxy is the advertised address of one port of one server.
type proxy struct {
	to       string // server
	target   string // where it listens
	listener *net.TCPListener
	// source names the other end; the bytes it had to read come back in head.
	source func(c *net.TCPConn) (from string, head []byte, err error)
}

// proxyFor opens a proxy and returns its address.
func (n *Network) proxyFor(to, target string, source func(*net.TCPConn) (string, []byte, error)) (string, error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return "", fmt.Errorf("proxy of server %s: %w", to, err)
	}
	p := &proxy{to: to, target: target, listener: l, source: source}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.proxies = append(n.proxies, p)
	n.wg.Go(func() { n.accept(p) })
	return l.Addr().String(), nil
}

func (n *Network) accept(p *proxy) {
	for {
		c, err := p.listener.AcceptTCP()
		if err != nil {
			return // closed
		}
		n.wg.Go(func() { n.serve(p, c) })
	}
}

// serve joins an accepted connection to the server behind the proxy.
func (n *Network) serve(p *proxy, in *net.TCPConn) {
	c := &conn{in: in, to: p.to, done: make(chan struct{})}
	if !n.enter(c) {
		return
	}
	defer n.leave(c)
	from, head, err := p.source(in)
	if err != nil {
		c.reset()
		return
	}
	n.mu.Lock()
	c.from = from
	n.mu.Unlock()
	there, back := Link{from, p.to}, Link{p.to, from}
	// A connection cannot be made across a cut: its SYN is lost and sent again.
	if !n.passable(c, there, len(head)) || !n.passable(c, back, 0) {
		return
	}
	out, err := net.DialTimeout("tcp", p.target, time.Second)
	if err != nil {
		c.reset() // as the refusal of the server's own port
		return
	}
	if !c.attach(out.(*net.TCPConn)) {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { n.pump(c, there, in, c.out, head) })
	wg.Go(func() { n.pump(c, back, c.out, in, nil) })
	wg.Wait()
}

// passable waits until the link is not cut; false if the connection ended.
func (n *Network) passable(c *conn, l Link, bytes int) bool {
	counted := false
	for {
		p, changed := n.policy(l)
		switch {
		case p.Reset:
			n.mu.Lock()
			n.statLocked(l).resets.Add(1)
			delete(n.conns, c) // before its ends can see it
			n.mu.Unlock()
			c.reset()
			return false
		case !p.Drop:
			return true
		}
		if !counted {
			n.stat(l).held.Add(int64(max(bytes, 1)))
			counted = true
		}
		select {
		case <-changed:
		case <-c.done:
			return false
		}
	}
}

func (n *Network) enter(c *conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		c.reset()
		return false
	}
	n.conns[c] = true
	return true
}

func (n *Network) leave(c *conn) {
	n.mu.Lock()
	delete(n.conns, c)
	n.mu.Unlock()
	c.close()
}

// Close ends all connections and closes the proxies.
func (n *Network) Close() {
	n.mu.Lock()
	n.closed = true
	for _, p := range n.proxies {
		p.listener.Close()
	}
	for c := range n.conns {
		c.reset()
	}
	n.mu.Unlock()
	n.wg.Wait()
}
