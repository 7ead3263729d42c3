package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
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

// GroupID names the metadata group in raftstore.
const GroupID = "meta"

// Defaults of a new cluster.
const (
	DefaultShards     = 4
	HeartbeatInterval = 500 * time.Millisecond
	SuspectAfter      = 4 * HeartbeatInterval
	DownAfter         = 12 * HeartbeatInterval
)

const (
	reconcileInterval  = 100 * time.Millisecond
	repairTimeout      = 5 * time.Second
	createTableTimeout = 30 * time.Second // used if the caller has no deadline
	maxMapWait         = time.Minute
)

// Log is the interface through which the scheduler uses the metadata group.
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
	Servers  int                   // number of registered servers at which the shards are created; 0: the number of founders
	Shards   int                   // number of shards of a new cluster; 0: DefaultShards
	Slots    rowraft.SlotCount     // number of slots of a new cluster; 0: rowraft.DefaultSlots
	Exact    bool                  // refuse registrations beyond Servers
	Workers  int                   // number of workers that every job must have; 0: any number
	TLS      *certs.Source         // for calls to other servers; nil: plaintext
	CA       *certs.CA             // signs certificates for machines with join tokens; nil: this server cannot sign

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

// Scheduler implements the Cluster service of one server. While this server leads the metadata group, it also runs the
// control plane.
//
// Goroutines: New starts none. Run blocks, starts the control loops, and waits for them before it returns.
//
// Lock order: pulse.mu before soft.mu and the locks of package jobs. Otherwise soft.mu and driver.mu are each held alone.
// No call leaves the package under them.
type Scheduler struct {
	rowraftv1.UnimplementedClusterServer

	opts    Options
	logger  *slog.Logger
	view    *meta.View
	machine *meta.Machine
	conns   *route.Pool
	log     atomic.Pointer[Log] // nil until Attach
	kick    chan struct{}       // capacity 1: wakes Run
	soft    soft
	pulse   pulse
	driver  driver

	leadRest          time.Duration // the constant leadRest, except in tests
	ensureCallTimeout time.Duration // the constant ensureCallTimeout, except in tests
	helloTimeout      time.Duration // the constant helloTimeout, except in tests

	// driving is held for reading while the scheduler creates a table in a shard. ensureDrops locks it to wait until
	// these calls have ended.
	driving sync.RWMutex
	// dropping is held while the scheduler logs the drop of a table.
	dropping *semaphore.Weighted // of 1: a mutex whose waiters honour their context

	checkpoints  *checkpoints.Service
	jobs         *jobs.Service
	certificates *Certificates

	waiting     atomic.Pointer[string] // the condition that Form waits for, for messages
	registering *semaphore.Weighted    // of 1; held while a server is counted, added or marked
	connected   atomic.Uint64          // number of servers and workers at the last log message

	// hello sends Hello to one address. Tests replace it with their own network.
	hello func(ctx context.Context, addr string, req *rowraftv1.HelloRequest) (*rowraftv1.HelloReply, error)
}

// soft is the memory of the metadata leader for one term. It is never logged: a new leader starts with an empty one.
type soft struct {
	clock func() time.Time // nil: time.Now; set before use

	mu      sync.Mutex
	term    rowraft.Term
	since   time.Time // when this leader first saw that it leads
	beats   map[rowraft.NodeID]beat
	ensured map[ensuredKey]struct{}

	versions map[rowraft.NodeID]rowraft.FormatVersion // newest format version that each server supports
	oldest   string                                   // server with the lowest version, for messages; "": all are equal
}

// leadsFor returns for how long this leader has led.
func (s *soft) leadsFor() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now().Sub(s.since)
}

type beat struct {
	at         time.Time
	since      time.Time // first heartbeat of the current series without a gap
	stopping   bool
	version    string
	uptime     time.Duration
	mapVersion rowraft.MapVersion // version of the map that the server uses
	replicas   []*rowraftv1.ReplicaStatus
	disk       *rowraftv1.Disk     // nil: unknown
	certEnds   uint64              // Unix seconds; 0: the server has no certificate
	profile    string              // name of its profile of Raft timers
	slowness   *rowraftv1.Slowness // nil: unknown

	metaReplica    bool   // the server has a replica of the metadata group, as a member or not
	metaRolledBack string // why the metadata replica found its disk rolled back; "": it found nothing
}

// now returns the time by which heartbeats are measured.
func (s *soft) now() time.Time {
	if s.clock != nil {
		return s.clock()
	}
	return time.Now()
}

type ensuredKey struct {
	table rowraft.TableID
	shard rowraft.ShardID
	gone  bool // true: the shard dropped the table; false: the shard created it
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
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%d shards: want 1 to %d, one for %d of the cluster's %d slots",
			opts.Shards, clustermap.ShardLimit(opts.Slots), clustermap.SlotsPerShard, opts.Slots)
	case opts.Servers < 1 || opts.Servers > meta.MaxNodes:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%d servers: want 1 to %d", opts.Servers, meta.MaxNodes)
	}
	opts.Self.ID = opts.Identity.Identity().Node
	view := meta.NewView()
	s := &Scheduler{
		opts: opts, logger: opts.Logger.With("component", "scheduler"),
		leadRest: leadRest, ensureCallTimeout: ensureCallTimeout, helloTimeout: helloTimeout,
		view: view, machine: meta.New(view), conns: route.NewPool(opts.TLS, opts.Dial, 1), kick: make(chan struct{}, 1),
		registering: semaphore.NewWeighted(1), dropping: semaphore.NewWeighted(1),
	}
	s.hello = s.helloTo
	s.jobs = jobs.New(jobs.Options{
		Leader: leader{s}, Machine: s.machine, View: view, Logger: s.logger, Workers: opts.Workers, Entered: s.tellConnected,
	})
	s.checkpoints = checkpoints.New(checkpoints.Options{
		Leader: leader{s}, Trainers: s.jobs.Trainers(), Machine: s.machine, View: view, Logger: s.logger,
		Version: opts.Version, Destinations: opts.CheckpointDestinations,
	})
	s.jobs.Trainers().Serve(s.checkpoints)
	s.certificates = &Certificates{s: s, strangers: rpc.Throttle{Burst: 20, Every: 3 * time.Second}}
	return s, nil
}

// Close closes the connections to other servers. Call it after Run has returned.
func (s *Scheduler) Close() error { return s.conns.Close() }

// Machine returns the state machine of the metadata group. The caller starts the group with it.
func (s *Scheduler) Machine() raftstore.StateMachine { return s.machine }

// Jobs returns the service of training jobs.
func (s *Scheduler) Jobs() *jobs.Service { return s.jobs }

// Checkpoints returns the service that makes and restores checkpoints.
func (s *Scheduler) Checkpoints() *checkpoints.Service { return s.checkpoints }

// View returns the newest map that this server knows. Members of the metadata group update it in Apply; on other
// servers package node sets it.
func (s *Scheduler) View() *meta.View { return s.view }

// Attach gives the scheduler its metadata group.
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

// notLeader is the error of a member that does not lead the metadata group. It unwraps to the hint for the client.
type notLeader struct {
	msg  string
	hint rowraft.NotLeaderError
}

func (e *notLeader) Error() string { return e.msg }
func (e *notLeader) Unwrap() error { return &e.hint }

// leading returns the log and the term in which this member leads the metadata group. Otherwise it returns an error
// that redirects the caller to the leader.
func (s *Scheduler) leading() (Log, rowraft.Term, error) {
	p := s.log.Load()
	if p == nil {
		if s.opts.Self.Scheduler {
			return nil, 0, rowraft.Errorf(rowraft.CodeStarting, "the scheduler of this server is starting")
		}
		return nil, 0, &notLeader{msg: "this server runs no scheduler: ask another one"}
	}
	node, term, self := (*p).Leader()
	switch {
	case self:
		s.startTerm(term)
		return *p, term, nil
	case node == "" && s.isStandby():
		return nil, 0, &notLeader{msg: "this server is no member of the scheduler, but a standby: ask another one"}
	case node == "":
		return nil, 0, rowraft.Errorf(rowraft.CodeNoLeader, "the metadata group has no leader at present")
	}
	e := &notLeader{
		msg:  fmt.Sprintf("this server does not lead the metadata group, node %s at %s does", node, s.addrOf(node)),
		hint: rowraft.NotLeaderError{Leader: node, Term: term},
	}
	return nil, 0, e
}

// startTerm clears the soft state at the first call of a new term.
func (s *Scheduler) startTerm(term rowraft.Term) {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	if s.soft.beats != nil && s.soft.term == term {
		return
	}
	s.soft.term, s.soft.since = term, s.soft.now()
	s.soft.beats = make(map[rowraft.NodeID]beat)
	s.soft.ensured = make(map[ensuredKey]struct{})
	s.soft.versions, s.soft.oldest = make(map[rowraft.NodeID]rowraft.FormatVersion), ""
}

// addrOf returns the address of a node from the map or from the list of founders; "" if neither has it.
func (s *Scheduler) addrOf(id rowraft.NodeID) string {
	if id == s.opts.Self.ID {
		return s.opts.Self.Addr
	}
	if m := s.view.Map(); m != nil {
		if n, ok := m.Node(id); ok {
			return n.Addr
		}
	}
	f, _ := s.opts.Identity.Identity().FindFounder(id)
	return f.Addr
}

// propose logs c. It returns the result of Apply, or the error with which Apply or the group refused c.
func (s *Scheduler) propose(ctx context.Context, c *rowraftv1.MetaCommand) (any, error) {
	return s.proposeVersion(ctx, meta.RequiredVersion(c), c)
}

// proposeVersion is propose with an explicit format version for the entry.
func (s *Scheduler) proposeVersion(ctx context.Context, version rowraft.FormatVersion, c *rowraftv1.MetaCommand) (any, error) {
	l, _, err := s.leading()
	if err != nil {
		return nil, err
	}
	if err := s.mayLog(version); err != nil {
		return nil, err
	}
	entry, err := meta.EncodeEntry(version, c)
	if err != nil {
		return nil, err
	}
	result, err := l.Propose(ctx, entry)
	if hint, ok := errors.AsType[*rowraft.NotLeaderError](err); ok {
		// raftstore's message would name shard 0, which is the metadata group's number there and misleads the user.
		return nil, &notLeader{msg: fmt.Sprintf("this server has just lost the lead of the metadata group (node %q may have it)", hint.Leader), hint: *hint}
	}
	if err != nil {
		return nil, fmt.Errorf("metadata group: %w", err)
	}
	if refused, ok := result.(error); ok {
		return nil, refused
	}
	return result, nil
}

// proposeCommand is propose for commands without a result.
func (s *Scheduler) proposeCommand(ctx context.Context, c *rowraftv1.MetaCommand) error {
	_, err := s.propose(ctx, c)
	return err
}

// proposeFor is propose for commands whose result is a T.
func proposeFor[T any](ctx context.Context, s *Scheduler, c *rowraftv1.MetaCommand) (T, error) {
	result, err := s.propose(ctx, c)
	if err != nil {
		var zero T
		return zero, err
	}
	t, ok := result.(T)
	if !ok {
		return t, rowraft.Errorf(rowraft.CodeInternal, "metadata command %T answered %T, want %T", c.Command, result, t)
	}
	return t, nil
}
