package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/rpc"
)

// Cluster is server processes behind a Network.
type Cluster struct {
	*localcluster.Cluster
	Net *Network
	Admins

	owners owners

	mu      sync.Mutex
	fronted []*localcluster.Server // complete before the first process starts
	killed  map[string]int         // server → pid of a life that a fault has ended
	refused map[string]bool        // servers that must not start
	paused  map[string]bool

	rolledBack []string // replicas whose disk a fault has rolled back
}

// Start starts the servers and returns when all serve. opts.Front is set here.
func Start(ctx context.Context, opts localcluster.Options) (*Cluster, error) {
	c := &Cluster{Net: NewNetwork(), Admins: make(Admins), killed: make(map[string]int), refused: make(map[string]bool),
		paused: make(map[string]bool)}
	opts.Front = c.front
	opts.Args = append(slices.Clone(opts.Args), "--rebalance=false") // faults move replicas themselves
	var err error
	if c.Cluster, err = localcluster.Start(ctx, opts); err != nil {
		c.Net.Close()
		return nil, err
	}
	for _, s := range c.Servers() {
		// Past the proxies: the harness sees through every fault.
		if c.Admins[s.Name], err = rpc.Dial(s.Addr, nil, nil); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// front puts proxies before a server.
func (c *Cluster) front(s *localcluster.Server) (err error) {
	if s.Advertise, err = c.Net.proxyFor(s.Name, s.Addr, c.socketSource); err != nil {
		return err
	}
	if s.PeerAdvertise, err = c.Net.proxyFor(s.Name, s.Peer, c.peerSource); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fronted = append(c.fronted, s)
	return nil
}

// Close stops the servers and the network.
func (c *Cluster) Close() error {
	c.Net.Heal()
	var errs []error
	for _, s := range c.Servers() {
		errs = append(errs, c.Continue(s.Name))
	}
	for _, a := range c.Admins {
		errs = append(errs, a.Close())
	}
	errs = append(errs, c.Stop())
	c.Net.Close()
	return errors.Join(errs...)
}

func (c *Cluster) list() []*localcluster.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fronted
}

// Names lists the servers.
func (c *Cluster) Names() []string {
	var out []string
	for _, s := range c.list() {
		out = append(out, s.Name)
	}
	return out
}

// Others lists the servers but those named.
func (c *Cluster) Others(but ...string) []string {
	var out []string
next:
	for _, s := range c.list() {
		for _, b := range but {
			if s.Name == b {
				continue next
			}
		}
		out = append(out, s.Name)
	}
	return out
}

// Server returns the server called name, or nil.
func (c *Cluster) Server(name string) *localcluster.Server {
	for _, s := range c.list() {
		if s.Name == name {
			return s
		}
	}
	return nil
}

func (c *Cluster) byID(id rowraft.NodeID) *localcluster.Server {
	for _, s := range c.list() {
		if s.ID() == id {
			return s
		}
	}
	return nil
}

// Kill ends servers with SIGKILL, all at one moment.
func (c *Cluster) Kill(names ...string) error {
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		s := c.Server(name)
		if pid := s.Pid(); pid != 0 {
			c.mu.Lock()
			c.killed[name] = pid
			c.mu.Unlock()
		}
		wg.Go(func() { errs[i] = s.Kill() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// RestartAll starts servers that have ended, together, and returns when all serve.
func (c *Cluster) RestartAll(ctx context.Context, names ...string) error {
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { errs[i] = c.Restart(ctx, c.Server(name)) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// stopLimit is longer than a server takes that hands its leads over in vain, on a busy machine.
const stopLimit = time.Minute

// Terminate ends a server with SIGTERM and returns when it is gone.
//
// Errors: it took longer than stopLimit and was killed.
func (c *Cluster) Terminate(name string) error {
	s := c.Server(name)
	if pid := s.Pid(); pid != 0 {
		c.mu.Lock()
		c.killed[name] = pid
		c.mu.Unlock()
	}
	return s.Stop(stopLimit)
}

// Running reports whether a server's process is there.
func (c *Cluster) Running(name string) bool { return c.Server(name).Running() }

// Connect opens a connection to a port of a server, past its proxy.
func (c *Cluster) Connect(ctx context.Context, name string, peerPort bool) (net.Conn, error) {
	s := c.Server(name)
	addr := s.Addr
	if peerPort {
		addr = s.Peer
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// Paused reports that a server's process is stopped.
func (c *Cluster) Paused(name string) bool { return c.ProcessState(name) == "T" }

// ProcessState returns the kernel's letter for the state of a server's process
// ("T": stopped), "" if there is none.
func (c *Cluster) ProcessState(name string) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Server(name).Pid()))
	if err != nil {
		return ""
	}
	// pid (name) state …; the name may hold anything but is followed by the last ")".
	rest := b[bytes.LastIndexByte(b, ')')+1:]
	if len(rest) < 2 {
		return ""
	}
	return string(rest[1:2])
}

// Pause stops a server's process with SIGSTOP.
func (c *Cluster) Pause(name string) error {
	c.mu.Lock()
	c.paused[name] = true
	c.mu.Unlock()
	return c.Server(name).Signal(syscall.SIGSTOP)
}

// Continue lets a paused server run on.
func (c *Cluster) Continue(name string) error {
	c.mu.Lock()
	paused := c.paused[name]
	delete(c.paused, name)
	c.mu.Unlock()
	if !paused {
		return nil
	}
	if err := c.Server(name).Signal(syscall.SIGCONT); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Dead lists the servers that have ended though no fault has killed them.
func (c *Cluster) Dead() []string {
	var out []string
	for _, s := range c.list() {
		if s.Running() {
			continue
		}
		c.mu.Lock()
		pid, killed := c.killed[s.Name]
		killed = killed && pid == s.LastPid() || c.refused[s.Name]
		c.mu.Unlock()
		if !killed {
			out = append(out, s.Name)
		}
	}
	return out
}

// Installs counts the snapshots of leaders that a server has installed, over all its
// lives, by its log; 0 if that cannot be read.
func (c *Cluster) Installs(name string) int {
	b, err := os.ReadFile(c.Server(name).LogFile)
	if err != nil {
		return 0
	}
	return bytes.Count(b, []byte(`"msg":"installed a snapshot`))
}
