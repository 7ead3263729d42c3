package scheduler

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/scheduler/checkpoints"
	"github.com/rowraft/rowraft/scheduler/jobs"
	"github.com/rowraft/rowraft/scheduler/meta"
	"golang.org/x/sync/semaphore"
)

// GroupID names the scheduler's group in raftstore.
const GroupID = "meta"

// Defaults of a new cluster.
const (
	DefaultShards     = 4
	HeartbeatInterval = 500 * time.Millisecond
	SuspectAfter      = 4 * HeartbeatInterval
	DownAfter         = 12 * HeartbeatInterval
)

const (
	reconcileInterval  = 125 * time.Millisecond
	repairTimeout      = 5 * time.Second
	createTableTimeout = 30 * time.Second // used if the caller has no deadline
	maxMapWait         = time.Minute
)

// Log is the interface through which the scheduler uses its Raft group.
type Log interface {
	// Propose appends entry and returns the result of Apply.
	Propose(ctx context.Context, entry []byte) (any, error)
	// Leader returns the leader of the group as this member knows it ("" if unknown), its term, and whether this member
	// is the leader.
	Leader() (node rowraft.NodeID, term rowraft.Term, self bool)
	// Barrier returns on the leader after its machine has applied every entry that earlier leaders committed.
	Barrier(ctx context.Context) error
	Seats
}

// LeaderHint names the leader of a shard and its term. The hint may be stale.
type LeaderHint struct {
	Shard rowraft.ShardID
	Node  rowraft.NodeID
	Term  rowraft.Term
}

// Options configure the scheduler of one server.
type Options struct {
	Identity *identity.Dir
	Self     clustermap.Node       // ID and Scheduler are set
	Version  string                // of the binary
	Announce rowraft.FormatVersion // newest format version to announce; 0: what it supports
	Join     []string              // addresses of the founders, including this server; empty: a cluster of one server
	// number of registered servers at which the shards are created; 0: the number of founders
	Servers int
	Shards  int               // number of shards of a new cluster; 0: DefaultShards
	Slots   rowraft.SlotCount // number of slots of a new cluster; 0: rowraft.DefaultSlots
	Exact   bool              // refuse registrations beyond Servers
	Workers int               // number of workers that every job must have; 0: any number
	TLS     *certs.Source     // for calls to other servers; nil: plaintext
	CA      *certs.CA         // signs certificates for machines with join tokens; nil: this server cannot sign

	// ReplaceAfter is the silence after which the scheduler rebuilds a server's replicas on other servers. 0:
	// DefaultReplaceAfter; negative: never.
	ReplaceAfter time.Duration
	NoRebalance  bool // move replicas and leadership only where it is necessary

	// CheckpointDestinations lists the directories and URLs below which trainers may let the cluster write checkpoints.
	// Empty: trainers may request none.
	CheckpointDestinations []string

	// Dial opens connections to other servers; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// Hints returns the shard leaders known to this server's own replicas. May be nil.
	Hints  func() []LeaderHint
	Logger *slog.Logger // nil: slog.Default()
}

// Scheduler implements the Cluster service of one server. While this server leads the scheduler, it also runs the
// control plane. Each control loop is a type of its own, with its own memory and lock.
//
// Goroutines: New starts none. Run blocks, starts the control loops, and waits for them before it returns.
//
// Lock order: pulse.mu before soft.mu and jobs.leases.mu (pulse.discount). Every other mutex is held alone, and no call
// leaves the package under it.
type Scheduler struct {
	rowraftv1.UnimplementedClusterServer
	*group
	*formation

	kick      chan struct{} // capacity 1: wakes Run
	connected atomic.Uint64 // number of servers and workers at the last log message

	driver       *driver
	placeLoop    *placeLoop
	tables       *tables
	jobs         *jobs.Service
	checkpoints  *checkpoints.Service
	certificates *Certificates
}

// New returns a scheduler that serves Hello and GetMap. The caller must call Close.
func New(opts Options) (*Scheduler, error) {
	if opts.Shards == 0 {
		opts.Shards = DefaultShards
	}
	if opts.Slots == 0 {
		opts.Slots = rowraft.DefaultSlots
	}
	if opts.Servers == 0 {
		opts.Servers = max(len(opts.Join), 1)
	}
	if opts.ReplaceAfter == 0 {
		opts.ReplaceAfter = DefaultReplaceAfter
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	switch {
	case opts.Identity == nil:
		return nil, rowraft.Errorf(rowraft.CodeInternal, "scheduler without a data directory")
	case opts.Slots.Check() != nil:
		return nil, opts.Slots.Check()
	case opts.Shards < 1 || opts.Shards > clustermap.ShardLimit(opts.Slots):
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"%d shards: want 1 to %d, one for %d of the cluster's %d slots",
			opts.Shards, clustermap.ShardLimit(opts.Slots), clustermap.SlotsPerShard, opts.Slots)
	case opts.Servers < 1 || opts.Servers > meta.MaxNodes:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%d servers: want 1 to %d", opts.Servers, meta.MaxNodes)
	}
	opts.Self.ID = opts.Identity.Identity().Node
	view := meta.NewView()
	g := &group{
		opts: opts, logger: opts.Logger.With("component", "scheduler"), view: view, machine: meta.New(view),
		conns: route.NewPool(opts.TLS, opts.Dial, 1), registering: semaphore.NewWeighted(1),
	}
	s := &Scheduler{group: g, formation: newFormation(g), kick: make(chan struct{}, 1), driver: newDriver(g),
		tables: newTables(g)}
	s.placeLoop = &placeLoop{group: g, driver: s.driver, leadRest: leadRest}
	g.pulse.discount = func(lost time.Duration) {
		s.jobs.DiscountPause(lost)
		g.soft.discountPause(lost)
	}
	s.jobs = jobs.New(jobs.Options{
		Leader: leader{g}, Machine: s.machine, View: view, Logger: s.logger, Workers: opts.Workers, Entered: s.tellConnected,
	})
	s.checkpoints = checkpoints.New(checkpoints.Options{
		Leader: leader{g}, Trainers: s.jobs.Trainers(), Machine: s.machine, View: view, Logger: s.logger,
		Version: opts.Version, Destinations: opts.CheckpointDestinations,
	})
	s.jobs.Trainers().Serve(s.checkpoints)
	s.certificates = &Certificates{group: g, strangers: rpc.Throttle{Burst: 20, Every: 3 * time.Second}}
	return s, nil
}

// Close closes the connections to other servers. Call it after Run has returned.
func (s *Scheduler) Close() error { return s.conns.Close() }

// Machine returns the state machine of the scheduler's group. The caller starts the group with it.
func (s *Scheduler) Machine() raftstore.StateMachine { return s.machine }

// Jobs returns the service of training jobs.
func (s *Scheduler) Jobs() *jobs.Service { return s.jobs }

// Checkpoints returns the service that makes and restores checkpoints.
func (s *Scheduler) Checkpoints() *checkpoints.Service { return s.checkpoints }

// View returns the newest map that this server knows. Members of the scheduler update it in Apply; on other
// servers package node sets it.
func (s *Scheduler) View() *meta.View { return s.view }

// Attach gives the scheduler its Raft group.
func (s *Scheduler) Attach(l Log) {
	s.log.Store(&l)
	s.wake()
}

// wake makes Run start its next round at once.
func (s *Scheduler) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}
