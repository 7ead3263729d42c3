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
)

// GroupID names the metadata group in raftstore.
const GroupID = "meta"

// Defaults of a new cluster.
const (
	DefaultShards     = 4
	ReplicasPerShard  = 3 // fewer if there are fewer servers
	HeartbeatInterval = 500 * time.Millisecond
	SuspectAfter      = 4 * HeartbeatInterval
	DownAfter         = 12 * HeartbeatInterval
)

const (
	reconcileInterval  = 100 * time.Millisecond
	repairTimeout      = 5 * time.Second
	createTableTimeout = 30 * time.Second // if the caller has no deadline
	maxMapWait         = time.Minute
)

// Log is the metadata group as the scheduler sees it.
type Log interface {
	// Propose appends entry and returns what Apply returned for it.
	Propose(ctx context.Context, entry []byte) (any, error)
	// Leader returns who leads the group as far as this member knows ("" if
	// unknown), in which term, and whether that is this member.
	Leader() (node rowraft.NodeID, term rowraft.Term, self bool)
	// Barrier returns on the leader once its machine has applied all that earlier
	// leaders committed.
	Barrier(ctx context.Context) error
	Seats
}

// LeaderHint says who was last seen leading a shard. It may be stale.
type LeaderHint struct {
	Shard rowraft.ShardID
	Node  rowraft.NodeID
	Term  rowraft.Term
}

// Options configure the scheduler of one server.
type Options struct {
	Identity *identity.Dir
	Self     clustermap.Node       // ID and Scheduler included
	Version  string                // of the binary
	Announce rowraft.FormatVersion // the newest that this server claims to understand; 0: what it does
	Join     []string              // addresses of the founders, this server's included; empty: alone
	Servers  int                   // shards are made once so many have registered; 0: as many as founders
	Shards   int                   // of a new cluster; 0: DefaultShards
	Exact    bool                  // refuse servers beyond Servers
	Workers  int                   // that every job has; 0: any number
	TLS      *certs.Source         // for calls to other servers; nil is plaintext
	CA       *certs.CA             // that signs for machines with join tokens; nil: this server cannot

	// ReplaceAfter is how long a server may be silent before its replicas are rebuilt
	// elsewhere; 0: DefaultReplaceAfter, negative: for ever.
	ReplaceAfter time.Duration
	NoRebalance  bool // replicas and leads move only where they must

	// CheckpointDestinations are where trainers may have checkpoints written, and below;
	// empty: nowhere.
	CheckpointDestinations []string

	// Dial opens connections to other servers; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// Hints returns the shard leaders that this server's own replicas know; may be nil.
	Hints  func() []LeaderHint
	Logger *slog.Logger // slog.Default()
}

// Scheduler answers the Cluster service of one server, and runs the control
// plane while this server leads the metadata group.
//
// Goroutines: it starts none by itself; Run is one, and waits for those it starts.
//
// Lock order: pulse.mu, then soft.mu or workers.mu. Those, driver.mu, generations.mu and attendance.mu are else held alone, never across a call out of
// this package.
type Scheduler struct {
	rowraftv1.UnimplementedClusterServer

	opts    Options
	logger  *slog.Logger
	view    *View
	machine *machine
	conns   *route.Pool
	log     atomic.Pointer[Log] // nil until Attach
	kick    chan struct{}       // capacity 1: wakes Run
	soft    soft
	pulse   pulse
	driver  driver

	leadRest          time.Duration // leadRest, but in tests
	ensureCallTimeout time.Duration // the same
	helloTimeout      time.Duration // the same

	// driving is held for reading while a table is driven into a shard.
	driving sync.RWMutex
	// dropping is held while the drop of a table is logged.
	dropping turn

	checkpoints  *Checkpoints
	jobs         *Jobs
	certificates *Certificates

	workers     workers
	generations generations
	jobKick     chan struct{} // capacity 1: wakes keepJobs
	attendance  *attendance
	policyRuns  tasks // of policies, which exclude others to their destination

	waiting     atomic.Pointer[string] // what Form waits for
	registering turn                   // held while a server is counted, added or marked
	connected   atomic.Uint64          // servers and workers that were last told of
	ranks       lastRanks

	// hello asks one address; tests put their own network here.
	hello func(ctx context.Context, addr string, req *rowraftv1.HelloRequest) (*rowraftv1.HelloReply, error)
}

// soft is what the leader of the metadata group keeps in memory, for one term.
type soft struct {
	clock func() time.Time // nil: time.Now; set before use

	mu      sync.Mutex
	term    rowraft.Term
	since   time.Time // when this leader first noticed that it leads
	beats   map[rowraft.NodeID]beat
	ensured map[ensuredKey]struct{}
	ended   map[[16]byte]time.Time // when the stages of a restore were dropped, or closed

	versions map[rowraft.NodeID]rowraft.FormatVersion // the newest that each server understands
	oldest   string                                   // names the server that understands least, for messages; empty if all are equal
}

type beat struct {
	at         time.Time
	since      time.Time // of the first one without a gap
	stopping   bool
	version    string
	uptime     time.Duration
	mapVersion rowraft.MapVersion // that the server follows
	replicas   []*rowraftv1.ReplicaStatus
	disk       *rowraftv1.Disk     // nil: unknown
	certEnds   uint64              // in Unix seconds; 0: it has no certificate
	profile    string              // of Raft timers
	slowness   *rowraftv1.Slowness // nil: unknown

	metaReplica    bool   // it has a replica of the metadata group, with a seat or without
	metaRolledBack string // why that one found that its disk was rolled back; "": it did not
}

// now is what heartbeats are timed by.
func (s *soft) now() time.Time {
	if s.clock != nil {
		return s.clock()
	}
	return time.Now()
}

type ensuredKey struct {
	table rowraft.TableID
	shard rowraft.ShardID
	gone  bool // a dropped table is not there; else a table is
}

// New returns a scheduler that answers Hello and GetMap. Close it.
func New(opts Options) (*Scheduler, error) {
	if opts.Shards == 0 {
		opts.Shards = DefaultShards
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
	case opts.Shards < 1 || opts.Shards > clustermap.MaxShards:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%d shards: want 1 to %d", opts.Shards, clustermap.MaxShards)
	case opts.Servers < 1 || opts.Servers > MaxNodes:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%d servers: want 1 to %d", opts.Servers, MaxNodes)
	}
	opts.Self.ID = opts.Identity.Identity().Node
	view := NewView()
	s := &Scheduler{
		opts: opts, logger: opts.Logger.With("component", "scheduler"),
		leadRest: leadRest, ensureCallTimeout: ensureCallTimeout, helloTimeout: helloTimeout,
		view: view, machine: newMachine(view), conns: route.NewPool(opts.TLS, opts.Dial, 1), kick: make(chan struct{}, 1),
		registering: newTurn(), dropping: newTurn(), attendance: newAttendance(), jobKick: make(chan struct{}, 1),
	}
	s.hello = s.helloTo
	s.generations.drive, s.generations.positions, s.generations.end = s.driveMembers, s.positionsOf, s.endMembers
	s.generations.rest = s.restMembers
	s.checkpoints, s.jobs = &Checkpoints{s: s}, &Jobs{s: s}
	s.certificates = &Certificates{s: s, strangers: rpc.Throttle{Burst: 20, Every: 3 * time.Second}}
	return s, nil
}

// Close closes the connections to other servers. Call it after Run returned.
func (s *Scheduler) Close() error { return s.conns.Close() }

// Machine is the state machine of the metadata group, to be started with it.
func (s *Scheduler) Machine() raftstore.StateMachine { return s.machine }

// View is the newest map this server knows. Members of the metadata group keep
// it up to date themselves; on other servers the node sets it.
func (s *Scheduler) View() *View { return s.view }

// Attach gives the scheduler its metadata group.
func (s *Scheduler) Attach(l Log) {
	s.log.Store(&l)
	s.wake()
}

// wake makes Run look at once.
func (s *Scheduler) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// notLeader tells a caller that another server leads the metadata group.
type notLeader struct {
	msg  string
	hint rowraft.NotLeaderError
}

func (e *notLeader) Error() string { return e.msg }
func (e *notLeader) Unwrap() error { return &e.hint }

// leading returns the term in which this member leads the metadata group, or
// the error that sends the caller to the leader.
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

// startTerm drops the soft state of an older term.
func (s *Scheduler) startTerm(term rowraft.Term) {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	if s.soft.beats != nil && s.soft.term == term {
		return
	}
	s.soft.term, s.soft.since = term, s.soft.now()
	s.soft.beats = make(map[rowraft.NodeID]beat)
	s.soft.ensured = make(map[ensuredKey]struct{})
	s.soft.ended = make(map[[16]byte]time.Time)
	s.soft.versions, s.soft.oldest = make(map[rowraft.NodeID]rowraft.FormatVersion), ""
}

// addrOf returns the address of a node as the map or the founding knows it, ""
// if neither does.
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

// propose logs c and returns its result, or the error it was refused with.
func (s *Scheduler) propose(ctx context.Context, c *rowraftv1.MetaCommand) (any, error) {
	return s.proposeVersion(ctx, requiredVersion(c), c)
}

// proposeVersion is propose of an entry of a version.
func (s *Scheduler) proposeVersion(ctx context.Context, version rowraft.FormatVersion, c *rowraftv1.MetaCommand) (any, error) {
	l, _, err := s.leading()
	if err != nil {
		return nil, err
	}
	if err := s.mayLog(version); err != nil {
		return nil, err
	}
	entry, err := encodeFrame(entryMagic, version, c)
	if err != nil {
		return nil, err
	}
	result, err := l.Propose(ctx, entry)
	if hint, ok := errors.AsType[*rowraft.NotLeaderError](err); ok {
		// The group counts as shard 0 in its own text, which would mislead.
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

// proposeCommand is propose for commands that answer with nothing.
func (s *Scheduler) proposeCommand(ctx context.Context, c *rowraftv1.MetaCommand) error {
	_, err := s.propose(ctx, c)
	return err
}

// proposeFor is propose for commands that answer with a T.
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
