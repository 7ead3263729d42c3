package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/cert"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/node"
	"github.com/rowraft/rowraft/node/admit"
)

// serverFlags are the flags of `rowraft server`.
type serverFlags struct {
	proofEvery               time.Duration
	sweepEvery               time.Duration
	config                   string
	dataDir, name            string
	listen, peerListen       string
	opsListen                string
	listenFD, peerListenFD   int
	advertise, peerAdvertise string
	withScheduler            bool
	schedulerOnly            bool
	join, schedulers         []string
	joinOrigin               string // what set join, if not the command line
	servers, shards, slots   int
	logBackend, profile      string
	diskStall                time.Duration
	diskReserve              int64
	snapshotEvery, trailing  int64
	snapshotMax              int64
	snapshotSend             int64
	copies                   int64
	segment                  int
	limits                   admit.Limits
	cpuProfile               string
	readyFile                string
	logLevel, logFormat      string
	recent                   *recentLog // its last lines
	effective                string     // the configuration, from configPage

	placementFlags
	tokens    cert.TokenFlags
	caKey     string
	renewCert bool

	exact        bool // for `rowraft start`: refuse more servers than expected
	workers      int
	startTimeout time.Duration
}

// NewServerCmd returns the command `rowraft server`.
func NewServerCmd(g *remote.Flags) *cobra.Command {
	var f serverFlags
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a server; list, drain and remove the servers of a cluster",
		Long: `Run a server: it holds replicas of shards, and, with --with-scheduler, a member of the
scheduler. It stops cleanly on SIGTERM or SIGINT.

A cluster is formed by the servers that --join names, each started with --with-scheduler and the
same list; they wait for each other, in any order. Later servers join through the same list. Where
` + "`rowraft scheduler`" + ` runs as a process of its own, every server joins it with --scheduler.

The commands below it (list, status, drain, decommission and their opposites) show and change the
servers of a cluster that runs.`,
		Example: `  # three servers of a new cluster; on the other machines with their own --listen and --advertise
  rowraft server --data-dir /var/lib/rowraft --with-scheduler --join 10.0.0.1:7070,10.0.0.2:7070,10.0.0.3:7070 \
    --listen 10.0.0.1:7070 --peer-listen 10.0.0.1:7071 --cert server.pem --key server.key --cacert ca.pem

  # a server of a cluster whose scheduler is a process of its own
  rowraft server --data-dir /var/lib/rowraft --scheduler 10.0.0.9:7070 --listen 10.0.0.1:7070 --peer-listen 10.0.0.1:7071 \
    --cert server.pem --key server.key --cacert ca.pem

  # one server on this machine, to try it
  rowraft server --data-dir ./data --with-scheduler --insecure`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.command(cmd, g) },
	}
	fl := cmd.Flags()
	f.processFlags(fl)
	fl.StringVar(&f.labels, "labels", "",
		"key=value, comma-separated; replicas of a shard are spread over the values of zone")
	fl.BoolVar(&f.withScheduler, "with-scheduler", false, "form the cluster and run a member of its scheduler")
	fl.StringSliceVar(&f.join, "join", nil,
		"gRPC addresses of all servers with a scheduler, this one included; none: a cluster of one")
	fl.StringSliceVar(&f.schedulers, "scheduler", nil,
		"host:port of the scheduler, or of its three processes, where it is no part of a server")
	cli.Exclusive(fl, "scheduler", []string{"scheduler"}, []string{"join", "with-scheduler"})
	fl.IntVar(&f.servers, "servers", 0,
		"the shards are made once so many servers are there; default: as many as --join names")
	fl.Int64Var(&f.diskReserve, "disk-reserve-bytes", 0,
		"pushes are refused when less is free on the disk; default 256 MiB, at least two log segments and 16 MiB a shard")
	fl.DurationVar(&f.sweepEvery, "sweep-every", 10*time.Second,
		"pause between two looks for expired rows in the shards that this server leads; negative: never")
	fl.DurationVar(&f.proofEvery, "proof-every", 5*time.Second, "how often, while rows change, the leader of a shard "+
		"compares its replicas; one that differs from the majority is fenced; negative: never")
	fl.Int64Var(&f.limits.InFlight, "in-flight-bytes", 0, "pushes that are not applied and replies that are not taken, "+
		"of all clients together; more is refused, and clients ask again; default a sixteenth of the memory limit, 64 MiB "+
		"to 1 GiB")
	fl.Int64Var(&f.limits.Shard, "shard-in-flight-bytes", 0, "the same of one shard; default half of --in-flight-bytes")
	fl.Int64Var(&f.limits.Client, "client-in-flight-bytes", 0,
		"the same of one client: an identity or, without certificates, a connection; default a quarter of --in-flight-bytes")
	fl.Int64Var(&f.limits.Memory, "memory-limit-bytes", 0, "memory of this process; beyond nine tenths of it pushes are "+
		"refused until there is room again; default what its cgroup gives it, or the machine has")
	fl.Int64Var(&f.snapshotEvery, "snapshot-every-bytes", 0, "a shard takes a snapshot after so much log, which bounds "+
		"what a restart replays; default: as many as its last snapshot has, at least 512 MiB and at most "+
		"--snapshot-max-bytes")
	fl.Int64Var(&f.snapshotMax, "snapshot-max-bytes", 0, "without --snapshot-every-bytes, the most log of a shard "+
		"between two snapshots, however large its state is; default 4 GiB")
	fl.IntVar(&f.segment, "log-segment-bytes", 0,
		"size of a file of the log, which all shards share; default 64 MiB")
	fl.Int64Var(&f.trailing, "trailing-log-bytes", 0,
		"log of a shard kept behind its snapshot; a replica further behind is sent the snapshot; default 64 MiB")
	fl.Int64Var(&f.copies, "copies-bytes", 64<<20, "memory for copies of rows of shards without a replica here, which "+
		"answer bounded reads; 0: keep none")
	fl.Int64Var(&f.snapshotSend, "snapshot-send-bytes-per-second", 0,
		"how fast the server sends snapshots, of all shards together, to replicas that are too far behind; default 64 MiB")
	return cmd
}

// processFlags are the flags of both `rowraft server` and `rowraft scheduler`.
func (f *serverFlags) processFlags(fl *pflag.FlagSet) {
	fl.StringVar(&f.config, "config", "", "YAML file of 'flag: value' lines; flags and the environment win over it")
	fl.StringVar(&f.dataDir, "data-dir", "", "directory of this server's data, used by it alone (required)")
	fl.StringVar(&f.name, "name", "", "name of this server in the cluster, for people and commands; "+
		"default: the one it had, or n1, n2 … as it joins")
	fl.StringVar(&f.listen, "listen", remote.DefaultEndpoint,
		"host:port of the gRPC services; port 0 lets the kernel choose")
	fl.StringVar(&f.peerListen, "peer-listen", "127.0.0.1:7071",
		"host:port of the Raft groups; port 0 lets the kernel choose")
	fl.StringVar(&f.opsListen, "ops-listen", "",
		"host:port of /metrics, /livez, /readyz and /debug/pprof over HTTP, with the same certificates; default: none")
	fl.IntVar(&f.listenFD, "listen-fd", 0, "file descriptor of a listening socket to use instead of --listen")
	fl.IntVar(&f.peerListenFD, "peer-listen-fd", 0,
		"file descriptor of a listening socket to use instead of --peer-listen")
	fl.StringVar(&f.advertise, "advertise", "", "host:port at which others reach --listen; default: that address")
	fl.StringVar(&f.peerAdvertise, "peer-advertise", "",
		"host:port at which others reach --peer-listen; default: that address")
	f.placementFlags.register(fl)
	f.tokens.Register(fl)
	fl.StringVar(&f.caKey, "ca-key", "", "of a scheduler: private key of a CA in --cacert, to sign for machines with a "+
		"join token, and to renew; default: it signs nothing")
	fl.BoolVar(&f.renewCert, "renew-cert", false, "ask the scheduler for a new certificate when two thirds of this "+
		"one's time are over, and write it to --cert; with --token always")
	fl.IntVar(&f.shards, "shards", 0,
		"shards of a new cluster, at most slots/16: 256 with 4096 slots, 4096 with 65536; fixed forever; default 4")
	fl.IntVar(&f.slots, "slots", 0,
		"slots of a new cluster, a power of two from 4096 to 65536; fixed forever; default 4096, enough for 256 shards")
	fl.StringVar(&f.logBackend, "log-backend", "rowlog", "log of the Raft groups: rowlog or bolt (slower)")
	fl.StringVar(&f.profile, "profile", "auto", "Raft timers: fast (up to 24 replicas a server), default (100), dense, "+
		"or auto: by how many replicas the fullest server has")
	fl.DurationVar(&f.diskStall, "disk-stall-limit", 0,
		"a leader whose disk hangs for so long gives its lead up; a server whose disk hangs ten times as long ends; "+
			"default: 500ms or two heartbeats")
	fl.StringVar(&f.readyFile, "ready-file", "", "write one line of JSON with the addresses there once the server serves")
	fl.StringVar(&f.cpuProfile, "cpu-profile", "", "write a CPU profile of the whole run to this file (go tool pprof)")
	fl.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	fl.StringVar(&f.logFormat, "log-format", "auto", "text, json, or auto: text on a terminal")
}

// configure reads the configuration file, if there is one.
func (f *serverFlags) configure(cmd *cobra.Command, g *remote.Flags) error {
	if f.config == "" {
		return nil
	}
	if err := fromFile(cmd.Flags(), f.config); err != nil {
		return err
	}
	return g.UseCerts(cmd) // the file may set --certs
}

// ignoreSecuredCluster drops the addresses of ROWRAFT_JOIN if --insecure on the command line has dropped ROWRAFT_CERTS:
// both are of one cluster (`rowraft dev` exports them), which a server without certificates cannot join.
func (f *serverFlags) ignoreSecuredCluster(cmd *cobra.Command, g *remote.Flags) {
	const join, certs = "ROWRAFT_JOIN", "ROWRAFT_CERTS"
	if !g.Insecure || cli.Origin(cmd.Flags(), "insecure") != "--insecure" || os.Getenv(certs) == "" ||
		cli.Origin(cmd.Flags(), "join") != join {
		return
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "rowraft: warning: --insecure: %s is ignored, as %s is: they are of a cluster with "+
		"certificates; --join names the servers of another one\n", join, certs)
	f.join = nil
}

// command runs the process with these flags.
func (f *serverFlags) command(cmd *cobra.Command, g *remote.Flags) error {
	if err := f.configure(cmd, g); err != nil {
		return err
	}
	f.ignoreSecuredCluster(cmd, g)
	if len(f.schedulers) > 0 {
		if f.withScheduler || len(f.join) > 0 {
			return cli.Usagef("--scheduler: the scheduler is a process of its own; leave out --with-scheduler and --join")
		}
		f.join = f.schedulers
	}
	for _, name := range []string{"join", "scheduler"} {
		if from := cli.Origin(cmd.Flags(), name); len(f.join) > 0 && from != "--"+name {
			f.joinOrigin = from
		}
	}
	if err := f.checkScheduler(); err != nil {
		return err
	}
	f.effective = configPage(cmd.Flags())
	return f.run(cmd.Context(), g, cmd.ErrOrStderr())
}

func (f *serverFlags) run(ctx context.Context, g *remote.Flags, stderr io.Writer) error {
	if f.dataDir == "" {
		return cli.Usagef("no data directory: give --data-dir")
	}
	logger, err := f.logger(stderr)
	if err != nil {
		return err
	}
	if f.joinOrigin != "" {
		logger.Info("the addresses of the other servers are not from the command line", "from", f.joinOrigin, "addrs",
			strings.Join(f.join, ","))
	}
	disk, err := openDisk(logger)
	if err != nil {
		return err
	}
	listener, err := listen("--listen", f.listen, f.listenFD)
	if err != nil {
		return err
	}
	peers, err := listen("--peer-listen", f.peerListen, f.peerListenFD)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	if err := f.joinCluster(ctx, g, logger, listener.Addr(), peers.Addr()); err != nil {
		return errors.Join(err, listener.Close(), peers.Close())
	}
	cfg := node.Config{
		DataDir: f.dataDir, FS: disk, Name: f.name, Version: g.Version, Listener: listener, PeerListener: peers,
		WithScheduler: f.withScheduler, SchedulerOnly: f.schedulerOnly, Join: f.join, Servers: f.servers, Shards: f.shards,
		Slots: f.slots,
		Exact: f.exact, Workers: f.workers, StartTimeout: f.startTimeout,
		LogBackend: f.logBackend, Profile: f.profile, DiskStallLimit: f.diskStall, DiskReserveBytes: f.diskReserve,
		SnapshotEveryBytes: f.snapshotEvery, SnapshotMaxBytes: f.snapshotMax, ProofEvery: f.proofEvery,
		SweepEvery: f.sweepEvery, TrailingLogBytes: f.trailing, SnapshotSendBytesPerSecond: f.snapshotSend,
		CopiesBytes:     cmp.Or(f.copies, -1),
		LogSegmentBytes: f.segment,
		Limits:          f.limits,
		TLS:             g.TLS, CAKey: f.caKey, RenewCert: f.renewCert, Insecure: g.Insecure, Logger: logger,
		Pages: f.pages(),
	}
	moreProcs()
	if os.Getenv("GOMEMLIMIT") == "" {
		cfg.SetHeapLimit = func(bytes int64) { debug.SetMemoryLimit(bytes) }
	}
	f.placementFlags.set(&cfg)
	if f.opsListen != "" {
		if cfg.OpsListener, err = listen("--ops-listen", f.opsListen, 0); err != nil {
			return errors.Join(err, listener.Close(), peers.Close())
		}
	}
	if cfg.Advertise, err = advertised("--advertise", f.advertise, listener); err == nil {
		cfg.PeerAdvertise, err = advertised("--peer-advertise", f.peerAdvertise, peers)
	}
	if err != nil {
		return errors.Join(err, listener.Close(), peers.Close())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cfg.Ready = func(info node.Info) {
		if err := f.writeReady(info); err != nil {
			cancel(err)
		}
	}
	cfg.Fatal = func(err error) {
		// An orderly stop would wait for the disk, which may be what has failed, while this server's groups still look
		// alive to the others.
		logger.Error("the server must stop", "err", err)
		g.Exit(cli.ExitCode(context.Background(), endOfServer(err)))
	}
	stop, err := cli.StartProfile(f.cpuProfile)
	if err != nil {
		return err
	}
	defer stop()
	if err := node.Run(ctx, cfg); err != nil {
		return endOfServer(err)
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	logger.Info("stopped")
	return nil
}

// logger writes to stderr: a server writes only data to stdout.
func (f *serverFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return nil, cli.Usagef("--log-level %q: want debug, info, warn or error", f.logLevel)
	}
	file, isFile := w.(*os.File)
	terminal := isFile && term.IsTerminal(int(file.Fd()))
	var out slog.Handler
	switch {
	case f.logFormat == "text" || f.logFormat == "auto" && terminal:
		noColor := !terminal || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb"
		out = tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: "15:04:05.000", NoColor: noColor})
	case f.logFormat == "json" || f.logFormat == "auto":
		out = slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})
	default:
		return nil, cli.Usagef("--log-format %q: want text, json or auto", f.logFormat)
	}
	if f.recent == nil {
		f.recent = newRecentLog(recentLogBytes)
	}
	return slog.New(slog.NewMultiHandler(out, slog.NewJSONHandler(f.recent, &slog.HandlerOptions{Level: level}))), nil
}

// recentLogBytes is the size of the log that a server keeps in memory for `rowraft debug zip`.
const recentLogBytes = 256 << 10

// pages returns the pages that `rowraft debug zip` fetches in addition to metrics and profiles.
func (f *serverFlags) pages() map[string]func(io.Writer) error {
	return map[string]func(io.Writer) error{
		"log": func(w io.Writer) error {
			_, err := f.recent.WriteTo(w)
			return err
		},
		"config": func(w io.Writer) error {
			_, err := io.WriteString(w, f.effective)
			return err
		},
	}
}

// listen opens addr, or uses the socket that the parent process opened.
func listen(flag, addr string, fd int) (net.Listener, error) {
	if fd == 0 {
		l, err := net.Listen("tcp", addr)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, cli.Hint(fmt.Errorf("%s %s: %w", flag, addr, err),
				"another process has this port; choose another with "+flag)
		}
		if errors.Is(err, syscall.EADDRNOTAVAIL) { // also at a boot, until the network is up
			return nil, cli.Hint(fmt.Errorf("%s %s: %w", flag, addr, err), "this machine does not have that address now")
		}
		if err != nil {
			return nil, cli.Usagef("%s %s: %w", flag, addr, err)
		}
		return l, nil
	}
	if fd < 3 {
		return nil, cli.Usagef("%s-fd %d: want a descriptor from 3 on", flag, fd)
	}
	file := os.NewFile(uintptr(fd), flag)
	l, err := net.FileListener(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, cli.Usagef("%s-fd %d: not a listening socket: %w", flag, fd, err)
	}
	return l, nil
}

// advertised returns the address that other processes use.
func advertised(flag, given string, l net.Listener) (string, error) {
	if given != "" {
		if _, port, err := net.SplitHostPort(given); err != nil || port == "" || port == "0" {
			return "", cli.Usagef("%s %q: want host:port", flag, given)
		}
		return given, nil
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return "", cli.Usagef("the server listens on all addresses (%s): say with %s at which others reach it", l.Addr(),
			flag)
	}
	return l.Addr().String(), nil
}

// Ready is the contract of the file that --ready-file names.
type Ready struct {
	Schema    string `json:"schema"`
	ClusterID string `json:"cluster_id"`
	ServerID  string `json:"server_id"`
	Name      string `json:"name"`
	Addr      string `json:"addr"`
	PeerAddr  string `json:"peer_addr"`
	PID       int    `json:"pid"`
}

// writeReady replaces the ready file atomically, so that a reader never sees a part of it.
func (f *serverFlags) writeReady(info node.Info) error {
	if f.readyFile == "" {
		return nil
	}
	raw, err := json.Marshal(Ready{cli.JSONSchema, string(info.Cluster), string(info.Node), info.Name, info.Addr,
		info.PeerAddr, os.Getpid()})
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(f.readyFile), ".ready-*")
	if err != nil {
		return fmt.Errorf("ready file: %w", err)
	}
	_, err = temp.Write(append(raw, '\n'))
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), f.readyFile)
	}
	if err != nil {
		return fmt.Errorf("ready file: %w", errors.Join(err, os.Remove(temp.Name())))
	}
	return nil
}

// endOfServer returns the error that ended a server, marked if a restart would end the same way: its data are damaged,
// or they or its certificates belong to another cluster.
func endOfServer(err error) error {
	if _, ok := errors.AsType[*identity.InUseError](err); ok {
		return err
	}
	switch rowraft.CodeOf(err) {
	case rowraft.CodeCorrupt, rowraft.CodeVersionTooNew, rowraft.CodeIdentity, rowraft.CodeDenied:
		return cli.Spoiled(err)
	}
	return err
}

// moreProcs gives the Go runtime one processor more than there are cores. The log's writer is in system calls most of
// the time, and keeps a processor meanwhile: with two cores and 4 shards, pushes took 4 % less CPU time a row
// (bench/results/2026-11-29-epyc-2c.txt). Where the environment or a control group sets the number, it stays, and the
// runtime follows changes of the control group.
var moreProcs = sync.OnceFunc(func() {
	if n := runtime.GOMAXPROCS(0); os.Getenv("GOMAXPROCS") == "" && n == runtime.NumCPU() {
		runtime.GOMAXPROCS(n + 1)
	}
})
