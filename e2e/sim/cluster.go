package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft/e2e/cluster"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/node"
)

const (
	dataDir    = "/data"   // on a server's disk
	serversDir = "servers" // where disks are left
)

// proofEvery is how often leaders compare their replicas: often, so that a replica
// that is fenced for no reason is seen.
const proofEvery = 500 * time.Millisecond

// Harness is the end of links that nothing is done to.
const Harness = "harness"

// Options of a cluster. Dir is required.
type Options struct {
	Dir     string // logs of the servers; their disks are in memory
	Servers int    // 0: 3
	Shards  int    // 0: 2
	Slots   int    // 0: the node's default
	Profile string // "fast" (default), "default", "dense"
	Backend string // of the logs; "": the node's default

	DiskStallLimit     time.Duration // 0: that of the node
	LogLate            time.Duration // each write to a log takes so much longer, from the start on
	SnapshotEveryBytes int64
	TrailingLogBytes   int64
	LogSegmentBytes    int
}

// Cluster is nodes in this process. Safe for concurrent use.
type Cluster struct {
	Net   *Net
	Watch *Watch
	cluster.Admins

	opts    Options
	harness *Host
	clients *Host
	servers []*server

	mu     sync.Mutex
	frozen map[string]func() // by name: lifts a pause

	rolledBack []string // replicas whose disk a fault has rolled back
}

// Start starts the servers and returns when all serve.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	if opts.Servers == 0 {
		opts.Servers = 3
	}
	if opts.Shards == 0 {
		opts.Shards = 2
	}
	if opts.Profile == "" {
		opts.Profile = "fast"
	}
	c := &Cluster{
		Net: NewNet(cluster.LinkPolicy{Delay: 100 * time.Microsecond, Jitter: 200 * time.Microsecond}), Watch: newWatch(),
		Admins: make(cluster.Admins), opts: opts, frozen: make(map[string]func()),
	}
	c.harness, c.clients = c.Net.Host(Harness), c.Net.Host(cluster.Client)
	for i := range opts.Servers {
		name := fmt.Sprintf("n%d", i+1)
		s := &server{
			c: c, name: name, disk: vfs.NewMem(),
			addr: fmt.Sprintf("127.0.0.%d:7000", i+1), peer: fmt.Sprintf("127.0.0.%d:7001", i+1),
		}
		c.servers = append(c.servers, s)
	}
	err := c.RestartAll(ctx, c.Names()...)
	for _, s := range c.servers {
		conn, derr := rpc.Dial(s.addr, nil, c.harness.Dial)
		err = errors.Join(err, derr)
		c.Admins[s.name] = conn
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close ends everything and leaves the disks in Options.Dir, as data directories.
func (c *Cluster) Close() error {
	c.Watch.Close()
	c.Net.Heal()
	var errs []error
	for _, a := range c.Admins {
		errs = append(errs, a.Close())
	}
	for _, s := range c.servers {
		s.cut(false, killed)
	}
	for _, s := range c.servers {
		s.goroutines.Wait()
		errs = append(errs, dump(s.disk, dataDir, filepath.Join(c.opts.Dir, serversDir, s.name)))
	}
	c.harness.Cut(false)
	c.clients.Cut(false)
	return errors.Join(errs...)
}

// Endpoints lists where clients find the servers.
func (c *Cluster) Endpoints() []string {
	var out []string
	for _, s := range c.servers {
		out = append(out, s.addr)
	}
	return out
}

// DialClient is the Dial of clients.
func (c *Cluster) DialClient(ctx context.Context, addr string) (net.Conn, error) {
	return c.clients.Dial(ctx, addr)
}

// Names lists the servers.
func (c *Cluster) Names() []string { return c.Others() }

// Others lists the servers but those named.
func (c *Cluster) Others(but ...string) []string {
	var out []string
	for _, s := range c.servers {
		if !slices.Contains(but, s.name) {
			out = append(out, s.name)
		}
	}
	return out
}

func (c *Cluster) server(name string) *server {
	i := slices.IndexFunc(c.servers, func(s *server) bool { return s.name == name })
	return c.servers[i]
}

// Kill ends servers at one moment.
func (c *Cluster) Kill(names ...string) error {
	for _, name := range names {
		c.server(name).cut(false, killed)
	}
	return nil
}

// Running reports whether a server is alive.
func (c *Cluster) Running(name string) bool { return c.server(name).running() }

// RestartAll starts servers that have ended, together, and returns when all serve.
func (c *Cluster) RestartAll(ctx context.Context, names ...string) error {
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { errs[i] = c.server(name).start(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Terminate ends a server in order.
func (c *Cluster) Terminate(name string) error {
	s := c.server(name)
	l := s.current()
	if l == nil || l.over.Load() {
		return nil
	}
	l.told.Store(true)
	l.cancel()
	select {
	case <-l.ended:
	case <-time.After(20 * time.Second):
		s.end(l, false, killed)
		return fmt.Errorf("server %s has not stopped for 20 s", name)
	}
	return l.err
}

// Pause cuts a server off the network in both directions, as if its process were suspended.
func (c *Cluster) Pause(name string) error {
	all := append(c.Others(name), cluster.Client)
	lift := c.Net.Apply(cluster.LinkPolicy{Drop: true}, cluster.Between([]string{name}, all)...)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen[name] = lift
	return nil
}

// Continue ends a pause.
func (c *Cluster) Continue(name string) error {
	c.mu.Lock()
	lift := c.frozen[name]
	delete(c.frozen, name)
	c.mu.Unlock()
	if lift != nil {
		lift()
	}
	return nil
}

// Paused reports whether a server is.
func (c *Cluster) Paused(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.frozen[name] != nil && c.Running(name)
}

// Connect opens a connection to a port of a server, past all that is done to the
// network.
func (c *Cluster) Connect(ctx context.Context, name string, peerPort bool) (net.Conn, error) {
	s := c.server(name)
	if peerPort {
		return c.harness.Dial(ctx, s.peer)
	}
	return c.harness.Dial(ctx, s.addr)
}

// Dead tells of servers that have ended though no fault has ended them.
func (c *Cluster) Dead() []string {
	var out []string
	for _, s := range c.servers {
		if l := s.current(); l != nil && !l.told.Load() && (l.over.Load() || l.hasEnded()) {
			out = append(out, fmt.Sprintf("server %s has ended by itself; its log: %s", s.name, s.logFile()))
		}
	}
	return out
}

// replaceAfter is longer than a fault keeps a server silent: what is replaced is a replica that was refused.
const replaceAfter = 15 * time.Second

// config of a server's next life.
func (c *Cluster) config(s *server, life *life) (node.Config, error) {
	h := life.host
	l, err := h.Listen(s.addr)
	if err != nil {
		return node.Config{}, err
	}
	p, err := h.Listen(s.peer)
	if err != nil {
		return node.Config{}, errors.Join(err, l.Close())
	}
	o := &c.opts
	return node.Config{
		FS: life.disk, DataDir: dataDir, Name: s.name, Version: "sim",
		Listener: l, PeerListener: p, Dial: h.Dial,
		// faults move replicas themselves
		WithScheduler: true, Join: c.Endpoints(), Shards: o.Shards, Slots: o.Slots, NoRebalance: true,
		ReplaceAfter: replaceAfter,
		LogBackend:   o.Backend, Profile: o.Profile, DiskStallLimit: o.DiskStallLimit, DiskReserveBytes: -1,
		ProofEvery: proofEvery, SweepEvery: time.Second, SnapshotEveryBytes: o.SnapshotEveryBytes,
		TrailingLogBytes: o.TrailingLogBytes, LogSegmentBytes: o.LogSegmentBytes,
		Insecure: true,
	}, nil
}
