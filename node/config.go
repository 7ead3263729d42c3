package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/node/admit"
	"github.com/rowraft/rowraft/node/replica"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/timers"
	"github.com/rowraft/rowraft/wire"
)

// Config configures a server. Listener, PeerListener and DataDir are required. Run closes the listeners.
type Config struct {
	DataDir string
	FS      vfs.FS // the file system of DataDir; nil: that of the operating system
	Name    string // shown to people; "": the id
	Version string // of the binary

	Listener     net.Listener // gRPC services
	PeerListener net.Listener // Raft groups
	OpsListener  net.Listener // HTTP: /metrics, /livez, /readyz, /debug/pprof; nil: none

	// Dial opens connections to other servers' listeners, below TLS; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// Advertise and PeerAdvertise are the addresses at which other machines reach the listeners; "": those
	// of the listeners.
	Advertise, PeerAdvertise string

	WithScheduler bool     // run a member of the scheduler
	SchedulerOnly bool     // host no shard replicas
	Join          []string // gRPC addresses of the founders; empty: a cluster of one
	Servers       int      // the scheduler creates the shards once this many servers have registered; 0: len(Join)
	Shards        int      // of a new cluster; 0: 4
	Slots         int      // of a new cluster; 0: rowraft.DefaultSlots
	Exact         bool     // refuse servers beyond Servers
	Workers       int      // number of workers of every job; 0: any

	Labels string // key=value, comma-separated; the scheduler spreads the replicas of a shard by "zone"
	// ReplaceAfter is how long a server may be silent before the scheduler rebuilds its replicas elsewhere;
	// 0: 5 minutes, negative: forever.
	ReplaceAfter time.Duration
	// CheckpointDestinations are the destinations that trainers may write checkpoints to; see
	// scheduler.Options.
	CheckpointDestinations []string
	NoRebalance            bool // the scheduler moves replicas and leaders only where it must

	// StartTimeout limits the wait for the cluster's shards; after it Run returns CodeDeadline. 0: forever.
	StartTimeout time.Duration

	LogBackend string // one of raftlog.Backends; "": "rowlog"
	// Profile selects the timers of Raft: "fast", "default", "dense", or "auto", which chooses by the
	// number of replicas on a server; "": "default".
	Profile string
	// DiskStallLimit is how long a write to the log of a shard may hang before its leader gives its lead up; after ten
	// times as long the server stops. 0: the larger of 500 ms and two heartbeats.
	DiskStallLimit time.Duration
	// DiskReserveBytes is the free space below which the server refuses pushes; 0: 256 MiB.
	DiskReserveBytes int64
	// Limits of the bytes that clients have in flight here, and of memory.
	Limits admit.Limits
	// SetHeapLimit sets the limit of Go's heap, as debug.SetMemoryLimit does, to the part of Limits.Memory
	// that the rows leave; nil: the limit stays as it is.
	SetHeapLimit func(bytes int64)

	// SnapshotEveryBytes is the amount of log between two snapshots of a shard; 0: the size of its last
	// snapshot, at least 512 MiB and at most SnapshotMaxBytes.
	SnapshotEveryBytes int64
	SnapshotMaxBytes   int64 // 0: 4 GiB
	// TrailingLogBytes is the amount of log that the server keeps before a snapshot, for replicas that were
	// away; 0: 64 MiB.
	TrailingLogBytes int64
	// SnapshotSendBytesPerSecond is the total rate at which the server sends snapshots to replicas that are
	// too far behind; 0: 64 MiB.
	SnapshotSendBytesPerSecond int64
	// LogSegmentBytes is the size of a file of the log; 0: 64 MiB.
	LogSegmentBytes int

	// ProofEvery is how often the leader of a shard compares its replicas while rows change; 0: 5 s,
	// negative: never.
	ProofEvery time.Duration

	// SweepEvery is the pause between two searches for expired rows in the shards that this server leads;
	// 0: 10 s, negative: never.
	SweepEvery time.Duration

	// CopiesBytes is the memory for copies of rows of shards that have no replica on this server, which answer bounded
	// reads; 0: 64 MiB, negative: none. It is allocated at the first such read.
	CopiesBytes int64

	// ScrubBytesPerSecond is the highest rate at which the server compares rows with their digests, over all
	// replicas together, but at least 64 KiB for each of them; 0: 16 MiB, negative: none.
	ScrubBytesPerSecond int

	TLS rpc.TLSFiles
	// CAKey is the file with the key of a CA in TLS.CA. A server with a scheduler signs certificates with
	// it, for machines with a join token and for renewals. "": it signs nothing.
	CAKey     string
	RenewCert bool // ask the scheduler for a new certificate before TLS.Cert ends, and write it there
	Insecure  bool // plaintext, on loopback only

	Logger *slog.Logger    // nil: slog.Default()
	Ready  func(info Info) // called once the server serves its replicas; may be nil

	// Pages are additional pages of the ops port, by their path below /debug/.
	Pages map[string]func(io.Writer) error

	// Fatal is called at once when the server must not continue: the log failed, or the disk hangs. A
	// process should exit in it, because an orderly stop waits for that disk. If it returns, or is nil, Run
	// stops in order and returns the error.
	Fatal func(error)

	// Only tests set these two. wrapStore returns a store around the one that runs the groups of the shards.
	wrapStore func(replica.Store) replica.Store
	memoryUse func() admit.MemoryUse

	// announce is the newest format version that this server claims to understand. Only tests set it to
	// less than the real one.
	announce rowraft.FormatVersion
}

// Info describes a server that is ready.
type Info struct {
	Cluster  rowraft.ClusterID
	Node     rowraft.NodeID
	Name     string
	Addr     string
	PeerAddr string
}

func (c *Config) setDefaults() error {
	bad := func(format string, args ...any) error {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
	}
	switch {
	case c.DataDir == "":
		return bad("no data directory: give --data-dir")
	case c.Listener == nil || c.PeerListener == nil:
		return rowraft.Errorf(rowraft.CodeInternal, "no listeners")
	case c.TLS.IsZero() && !c.Insecure:
		return bad("no certificates: give --cert, --key and --cacert, or --insecure for loopback")
	case !c.TLS.IsZero() && c.Insecure:
		return bad("both certificates and --insecure are given: want one of them")
	case c.SnapshotEveryBytes < 0 || c.SnapshotMaxBytes < 0 || c.TrailingLogBytes < 0:
		return bad("snapshot every %d bytes, at most every %d bytes, trailing log %d bytes: want ≥ 0", c.SnapshotEveryBytes,
			c.SnapshotMaxBytes, c.TrailingLogBytes)
	}
	if _, err := profileOf(c.Profile); err != nil {
		return err
	}
	if err := c.Limits.SetDefaults(os.DirFS("/")); err != nil {
		return err
	}
	if c.LogBackend != "" && !slices.Contains(raftlog.Backends, c.LogBackend) {
		return bad("log backend %q: want %s", c.LogBackend, strings.Join(raftlog.Backends, ", "))
	}
	if c.Insecure {
		for _, l := range []net.Listener{c.Listener, c.PeerListener, c.OpsListener} {
			if l == nil {
				continue
			}
			if err := rpc.CheckInsecure(l.Addr()); err != nil {
				return err
			}
		}
	}
	for _, d := range c.CheckpointDestinations {
		if err := depot.CheckAllowed(d); err != nil {
			return fmt.Errorf("--checkpoint-destination: %w", err)
		}
	}
	var err error
	if c.Labels, err = clustermap.ParseLabels(c.Labels); err != nil {
		return err
	}
	c.WithScheduler = c.WithScheduler || c.SchedulerOnly
	c.FS = vfs.OrOS(c.FS)
	if c.Advertise == "" {
		c.Advertise = c.Listener.Addr().String()
	}
	if c.PeerAdvertise == "" {
		c.PeerAdvertise = c.PeerListener.Addr().String()
	}
	if c.ProofEvery == 0 {
		c.ProofEvery = 5 * time.Second
	}
	if c.SweepEvery == 0 {
		c.SweepEvery = 10 * time.Second
	}
	if c.CopiesBytes == 0 {
		c.CopiesBytes = 64 << 20
	}
	if c.ScrubBytesPerSecond == 0 {
		c.ScrubBytesPerSecond = 16 << 20
	}
	if c.wrapStore == nil {
		c.wrapStore = func(s replica.Store) replica.Store { return s }
	}
	if c.announce == 0 {
		c.announce = wire.NewestVersion()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Version == "" {
		c.Version = "dev"
	}
	return nil
}

func profileOf(name string) (timers.Profile, error) {
	switch name {
	case "fast", profileAuto: // until there is a map
		return timers.Fast, nil
	case "", "default":
		return timers.Default, nil
	case "dense":
		return timers.Dense, nil
	}
	return timers.Profile{}, rowraft.Errorf(rowraft.CodeInvalidArgument, "profile %q: want auto, fast, default or dense",
		name)
}
