package localcluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
)

// Options of a cluster. Binary, Dir and Servers are required.
type Options struct {
	Binary  string // path of the rowraft binary
	Dir     string // directory for data directories, logs and ready files
	Servers int
	// Schedulers is the number of scheduler processes, 1 or 3; 0: the scheduler runs in the servers.
	Schedulers int
	Shards     int      // 0: the server's default
	Slots      int      // 0: the server's default
	Backend    string   // "rowlog" or "bolt"; empty: the server's default
	Profile    string   // "auto", "fast", "dense"; empty: "default"
	Args       []string // more flags of `rowraft server`
	Env        []string // more environment, KEY=value
	Certs      string   // directory with the servers' certificates; empty: plaintext
	// Port is that of the first server, for a cluster that keeps its addresses: the others have the next ones, and the
	// Raft groups those from Port+100 on, metrics those from Port+200 on. 0: ports that the kernel chooses.
	Port int

	// Inherit is open in every server process, too. A lock on it (flock) is held until all of them have ended.
	Inherit *os.File

	// Front is called for every server before any process starts. It may set Advertise and PeerAdvertise to
	// the addresses of proxies. nil: they equal Addr and Peer.
	Front func(*Server) error
}

// Cluster is a set of server processes. Methods are safe for concurrent use,
// but one server must not be killed and restarted at the same time.
type Cluster struct {
	opts       Options
	grown      int // number of servers added by Grow
	servers    []*Server
	schedulers []*Server
	ports      []*Port // ports of all servers, held until Stop so that each server can restart
}

// Server is one server process and its data directory, across restarts.
type Server struct {
	Name    string // n1, n2 … for servers, s1, s2 … for scheduler processes
	Addr    string // address of the gRPC services
	Peer    string // address of the Raft groups
	DataDir string
	LogFile string

	// The addresses that other processes use: Addr and Peer, or those set by Options.Front.
	Advertise, PeerAdvertise string

	scheduler bool // the process runs only a scheduler
	joined    bool // the cluster existed before
	args      []string

	mu   sync.Mutex
	id   rowraft.NodeID
	proc *process
}

// process is one run of a server.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when err is set
	err   error
}

// Start starts all servers and returns when each is ready.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	c := &Cluster{opts: opts}
	listeners := make([][2]*net.TCPListener, opts.Schedulers+opts.Servers)
	defer func() {
		for _, pair := range listeners {
			closeAll(pair)
		}
	}()
	for i := range opts.Schedulers {
		c.schedulers = append(c.schedulers, &Server{Name: fmt.Sprintf("s%d", i+1), scheduler: true})
	}
	for i := range opts.Servers {
		c.servers = append(c.servers, &Server{Name: fmt.Sprintf("n%d", i+1)})
	}
	for i, s := range c.all() {
		if err := c.prepare(s, &listeners[i]); err != nil {
			return nil, errors.Join(err, c.release())
		}
	}
	for i, s := range c.all() {
		err := c.launch(s, listeners[i])
		closeAll(listeners[i])
		listeners[i] = [2]*net.TCPListener{}
		if err != nil {
			return nil, errors.Join(err, c.Stop())
		}
	}
	for _, s := range c.all() {
		if err := s.awaitReady(ctx); err != nil {
			return nil, errors.Join(err, c.Stop())
		}
	}
	return c, nil
}

// prepare sets the files and addresses of s.
func (c *Cluster) prepare(s *Server, pair *[2]*net.TCPListener) error {
	s.DataDir = filepath.Join(c.opts.Dir, s.Name)
	s.LogFile = filepath.Join(c.opts.Dir, s.Name+".log")
	for j := range pair {
		if c.opts.Port > 0 {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", c.opts.Port+slices.Index(c.servers, s)+100*j))
			if err != nil {
				return fmt.Errorf("server %s: %w", s.Name, err)
			}
			pair[j] = l.(*net.TCPListener)
			continue
		}
		port, err := ReservePort()
		if err != nil {
			return err
		}
		c.ports = append(c.ports, port)
		if pair[j], err = port.Listen(); err != nil {
			return err
		}
	}
	s.Addr, s.Peer = pair[0].Addr().String(), pair[1].Addr().String()
	s.Advertise, s.PeerAdvertise = s.Addr, s.Peer
	if c.opts.Front != nil {
		return c.opts.Front(s)
	}
	return nil
}

// all returns all processes, scheduler processes first.
func (c *Cluster) all() []*Server { return slices.Concat(c.schedulers, c.servers) }

func closeAll(pair [2]*net.TCPListener) {
	for _, l := range pair {
		if l != nil {
			l.Close()
		}
	}
}

// Servers returns the servers in the order of their names.
func (c *Cluster) Servers() []*Server { return c.servers }

// Schedulers returns the scheduler processes, if there are separate ones.
func (c *Cluster) Schedulers() []*Server { return c.schedulers }

// Endpoints returns the addresses at which clients and servers reach the gRPC services.
func (c *Cluster) Endpoints() []string {
	return addresses(slices.DeleteFunc(slices.Clone(c.servers), func(s *Server) bool { return s.joined }))
}

// Grow adds a server, which joins the cluster with additional flags, and returns when it is ready. The
// server does not run a scheduler. Grow must not run concurrently with calls that use all servers.
func (c *Cluster) Grow(ctx context.Context, args ...string) (*Server, error) {
	c.grown++
	s := &Server{Name: fmt.Sprintf("n%d", c.opts.Servers+c.grown), joined: true, args: args}
	var pair [2]*net.TCPListener
	defer func() { closeAll(pair) }()
	if err := c.prepare(s, &pair); err != nil {
		return nil, err
	}
	if err := c.launch(s, pair); err != nil {
		return nil, err
	}
	c.servers = append(slices.Clone(c.servers), s)
	return s, s.awaitReady(ctx)
}

// Forget removes a server that has ended from the cluster's list. The rule of Grow for concurrency applies.
func (c *Cluster) Forget(s *Server) {
	c.servers = slices.DeleteFunc(slices.Clone(c.servers), func(o *Server) bool { return o == s })
}

func addresses(servers []*Server) []string {
	out := make([]string, len(servers))
	for i, s := range servers {
		out[i] = s.Advertise
	}
	return out
}

// launch starts a process for s with the listening sockets.
func (c *Cluster) launch(s *Server, pair [2]*net.TCPListener) error {
	files := make([]*os.File, 2)
	for i, l := range pair {
		f, err := l.File()
		if err != nil {
			return err
		}
		defer f.Close()
		files[i] = f
	}
	logFile, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	if err := os.Remove(s.readyFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	cmd := exec.Command(c.opts.Binary, c.args(s)...)
	cmd.ExtraFiles = files // descriptors 3 and 4
	if c.opts.Inherit != nil {
		cmd.ExtraFiles = append(files, c.opts.Inherit)
	}
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.Env = cli.WithoutFlags(os.Environ()) // the flags of this command are not for the server
	for _, e := range c.opts.Env {
		cmd.Env = append(cmd.Env, strings.ReplaceAll(e, serverName, s.Name))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start server %s: %w", s.Name, err)
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
	return nil
}

func (c *Cluster) args(s *Server) []string {
	security := "--insecure"
	if c.opts.Certs != "" {
		security = "--certs=" + c.opts.Certs
	}
	args := []string{
		"server", security,
		"--name", s.Name, "--data-dir", s.DataDir, "--ready-file", s.readyFile(),
		"--listen-fd", "3", "--peer-listen-fd", "4",
		"--advertise", s.Advertise, "--peer-advertise", s.PeerAdvertise,
		// All servers share one disk with everything else on this machine: no server must end because of a
		// stall that all of them have. Options.Args may override this.
		"--disk-stall-limit", "60s",
	}
	switch {
	case s.scheduler:
		args[0] = "scheduler"
		args = append(args, "--join", strings.Join(addresses(c.schedulers), ","), "--servers", fmt.Sprint(c.opts.Servers))
	case len(c.schedulers) > 0:
		args = append(args, "--scheduler", strings.Join(addresses(c.schedulers), ","))
	case s.joined:
		args = append(args, "--join", strings.Join(c.Endpoints(), ","))
	default:
		args = append(args, "--with-scheduler", "--join", strings.Join(c.Endpoints(), ","), "--servers",
			fmt.Sprint(c.opts.Servers))
	}
	if c.opts.Port > 0 {
		args = append(args, "--ops-listen", fmt.Sprintf("127.0.0.1:%d", c.opts.Port+200+slices.Index(c.servers, s)))
	}
	if c.opts.Shards > 0 {
		args = append(args, "--shards", fmt.Sprint(c.opts.Shards))
	}
	if c.opts.Slots > 0 {
		args = append(args, "--slots", fmt.Sprint(c.opts.Slots))
	}
	if c.opts.Backend != "" {
		args = append(args, "--log-backend", c.opts.Backend)
	}
	args = append(args, "--profile", cmp.Or(c.opts.Profile, "default")) // all servers share this machine's cores
	if !s.scheduler {
		for _, a := range c.opts.Args {
			args = append(args, strings.ReplaceAll(a, serverName, s.Name))
		}
	}
	return args
}

// serverName is the placeholder for the server's name in Options.Args and Options.Env.
const serverName = "{server}"

// PerServer returns a path for Options.Args and Options.Env that differs for each server: dir/n1suffix,
// dir/n2suffix …
func PerServer(dir, suffix string) string { return filepath.Join(dir, serverName+suffix) }

// stopPatience is how long a process may take to end on a busy machine.
const stopPatience = time.Minute

// Stop ends every process: with SIGTERM, and after a minute with SIGKILL.
func (c *Cluster) Stop() error {
	all := c.all()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() { errs[i] = s.Stop(stopPatience) })
	}
	wg.Wait()
	return errors.Join(append(errs, c.release())...)
}

// release frees the ports.
func (c *Cluster) release() error {
	var errs []error
	for _, p := range c.ports {
		errs = append(errs, p.Release())
	}
	c.ports = nil
	return errors.Join(errs...)
}

// Restart starts a server that has ended, with its data directory and addresses, and returns when it is ready.
func (c *Cluster) Restart(ctx context.Context, s *Server) error {
	if s.Running() {
		return fmt.Errorf("server %s is still running: stop it first", s.Name)
	}
	var pair [2]*net.TCPListener
	defer func() { closeAll(pair) }()
	for i, addr := range []string{s.Addr, s.Peer} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("restart server %s: %w", s.Name, err)
		}
		pair[i] = l.(*net.TCPListener)
	}
	if err := c.launch(s, pair); err != nil {
		return err
	}
	closeAll(pair)
	return s.awaitReady(ctx)
}

func (s *Server) readyFile() string { return s.DataDir + ".ready" }

// ID returns the node id, empty before the server was ready for the first time.
func (s *Server) ID() rowraft.NodeID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

func (s *Server) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// Running reports whether the process lives.
func (s *Server) Running() bool {
	p := s.process()
	if p == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Pid returns the process id of the present run, 0 if there is none.
func (s *Server) Pid() int {
	if p := s.process(); p != nil && s.Running() {
		return p.cmd.Process.Pid
	}
	return 0
}

// LastPid returns the process id of the present or the last run; 0 before the first.
func (s *Server) LastPid() int {
	if p := s.process(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// Kill sends SIGKILL and returns when the process has ended.
func (s *Server) Kill() error {
	p := s.process()
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.ended
	return nil
}

// Signal sends sig to the process.
func (s *Server) Signal(sig os.Signal) error {
	p := s.process()
	if p == nil {
		return os.ErrProcessDone
	}
	return p.cmd.Process.Signal(sig)
}

// ExitCode returns the exit code of the last run, −1 while it runs or if a signal ended it.
func (s *Server) ExitCode() int {
	if p := s.process(); p != nil && !s.Running() {
		return p.cmd.ProcessState.ExitCode()
	}
	return -1
}

// CPU returns the processor time of the last ended run.
func (s *Server) CPU() time.Duration {
	p := s.process()
	if p == nil || p.cmd.ProcessState == nil {
		return 0
	}
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// Stop ends the process with SIGTERM. After patience it sends SIGKILL and returns an error.
func (s *Server) Stop(patience time.Duration) error {
	p := s.process()
	if p == nil {
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
	}
	_ = s.Kill()
	return fmt.Errorf("server %s did not stop within %v of SIGTERM and was killed; its log: %s",
		s.Name, patience, s.LogFile)
}

// Ready is the content of a server's ready file.
type Ready struct {
	ServerID string `json:"server_id"`
	Addr     string `json:"addr"`
	Peer     string `json:"peer_addr"`
}

// awaitReady waits for the ready file, or for the process to end.
func (s *Server) awaitReady(ctx context.Context) error {
	p := s.process()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if b, err := os.ReadFile(s.readyFile()); err == nil {
			var r Ready
			if err := json.Unmarshal(b, &r); err != nil {
				return fmt.Errorf("ready file of server %s: %w", s.Name, err)
			}
			s.mu.Lock()
			s.id = rowraft.NodeID(r.ServerID)
			s.mu.Unlock()
			return nil
		}
		select {
		case <-tick.C:
		case <-p.ended:
			return fmt.Errorf("server %s ended before it was ready (%v):\n%s", s.Name, p.err, s.LogTail(2<<10))
		case <-ctx.Done():
			return fmt.Errorf("server %s is not ready: %w; the end of its log:\n%s",
				s.Name, context.Cause(ctx), s.LogTail(2<<10))
		}
	}
}

// LogTail returns the end of the server's log.
func (s *Server) LogTail(n int) string {
	b, err := os.ReadFile(s.LogFile)
	if err != nil {
		return err.Error()
	}
	if len(b) > n {
		b = b[len(b)-n:]
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	return string(b)
}
