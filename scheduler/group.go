package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
	"golang.org/x/sync/semaphore"
)

// group is the scheduler's group as this server sees it: its log, its state, and the memory of its leader for one term.
// The services and the control loops share it.
type group struct {
	opts    Options
	logger  *slog.Logger
	view    *meta.View
	machine *meta.Machine
	conns   *route.Pool
	log     atomic.Pointer[Log] // nil until Attach

	soft  soft
	pulse pulse
	stats stats
	// synced is the last term in which this leader had applied what earlier leaders logged. Terms begin at 1.
	synced      atomic.Uint64
	registering *semaphore.Weighted // of 1; held while a server is counted, added or marked
}

// soft is the memory of the scheduler's leader for one term. It is never logged: a new leader starts with an empty one.
type soft struct {
	clock func() time.Time // nil: time.Now; set before use

	mu    sync.Mutex
	term  rowraft.Term
	since time.Time // when this leader first saw that it leads
	beats map[rowraft.NodeID]beat

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

	metaReplica    bool   // the server has a replica of the scheduler's group, as a member or not
	metaRolledBack string // why the metadata replica found its disk rolled back; "": it found nothing
}

// now returns the time by which heartbeats are measured.
func (s *soft) now() time.Time {
	if s.clock != nil {
		return s.clock()
	}
	return time.Now()
}

// notLeader is the error of a member that does not lead the scheduler. It unwraps to the hint for the client.
type notLeader struct {
	msg  string
	hint rowraft.NotLeaderError
}

func (e *notLeader) Error() string { return e.msg }
func (e *notLeader) Unwrap() error { return &e.hint }

// leading returns the log and the term in which this member leads the scheduler. Otherwise it returns an error
// that redirects the caller to the leader.
func (g *group) leading() (Log, rowraft.Term, error) {
	p := g.log.Load()
	if p == nil {
		if g.opts.Self.Scheduler {
			return nil, 0, rowraft.Errorf(rowraft.CodeStarting, "the scheduler of this server is starting")
		}
		return nil, 0, &notLeader{msg: "this server runs no scheduler: ask another one"}
	}
	node, term, self := (*p).Leader()
	switch {
	case self:
		g.soft.startTerm(term)
		return *p, term, nil
	case node == "" && g.isStandby():
		return nil, 0, &notLeader{msg: "this server is no member of the scheduler, but a standby: ask another one"}
	case node == "":
		return nil, 0, rowraft.Errorf(rowraft.CodeNoLeader, "the scheduler has no leader at present")
	}
	e := &notLeader{
		msg:  fmt.Sprintf("this server does not lead the scheduler, server %s at %s does", node, g.addrOf(node)),
		hint: rowraft.NotLeaderError{Leader: node, Term: term},
	}
	return nil, 0, e
}

// lastTerm returns the last term in which this member is known to have led, 0 if there is none.
func (g *group) lastTerm() rowraft.Term {
	g.soft.mu.Lock()
	defer g.soft.mu.Unlock()
	return g.soft.term
}

// startTerm clears the memory at the first call of a new term.
func (s *soft) startTerm(term rowraft.Term) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.beats != nil && s.term == term {
		return
	}
	s.term, s.since = term, s.now()
	s.beats = make(map[rowraft.NodeID]beat)
	s.versions, s.oldest = make(map[rowraft.NodeID]rowraft.FormatVersion), ""
}

// addrOf returns the address of a node from the map or from the list of founders; "" if neither has it.
func (g *group) addrOf(id rowraft.NodeID) string {
	if id == g.opts.Self.ID {
		return g.opts.Self.Addr
	}
	if m := g.view.Map(); m != nil {
		if n, ok := m.Node(id); ok {
			return n.Addr
		}
	}
	f, _ := g.opts.Identity.Identity().FindFounder(id)
	return f.Addr
}

// propose logs c. It returns the result of Apply, or the error with which Apply or the group refused c.
func (g *group) propose(ctx context.Context, c *rowraftv1.MetaCommand) (any, error) {
	result, err := g.proposeOnce(ctx, c)
	g.stats.proposed(c, result, err)
	return result, err
}

func (g *group) proposeOnce(ctx context.Context, c *rowraftv1.MetaCommand) (any, error) {
	// Checked again by the log itself. Asking first gives the caller the hint to the leader, and starts the memory of a
	// new term before the command's result is used.
	l, _, err := g.leading()
	if err != nil {
		return nil, err
	}
	c.AtNs = uint64(g.soft.now().UnixNano())
	entry, err := g.entryOf(meta.RequiredVersion(c), c)
	if err != nil {
		return nil, err
	}
	result, err := l.Propose(ctx, entry)
	if hint, ok := errors.AsType[*rowraft.NotLeaderError](err); ok {
		// raftstore's message would name shard 0, which is the number of the scheduler's group there and misleads the user.
		return nil,
			&notLeader{msg: fmt.Sprintf("this server has just lost the lead of the scheduler (server %q may have it)",
				hint.Leader), hint: *hint}
	}
	if err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	// The state machine has refused the command, so the entry is in the log and changed nothing.
	if refused, ok := result.(error); ok {
		return nil, refused
	}
	return result, nil
}

// entryOf encodes c as an entry of a version. It refuses a version above that of the cluster: a member with an older
// binary could not apply the entry, and would stop.
func (g *group) entryOf(version rowraft.FormatVersion, c *rowraftv1.MetaCommand) ([]byte, error) {
	if err := g.mayLog(version); err != nil {
		return nil, err
	}
	return meta.EncodeEntry(version, c)
}

// proposeResult is propose for commands whose result is a T.
func proposeResult[T any](ctx context.Context, g *group, c *rowraftv1.MetaCommand) (T, error) {
	result, err := g.propose(ctx, c)
	if err != nil {
		var zero T
		return zero, err
	}
	t, ok := result.(T)
	if !ok {
		return t, rowraft.Errorf(rowraft.CodeInternal, "command %T of the scheduler returned %T, want %T", c.Command,
			result, t)
	}
	return t, nil
}

// leadingInSync is leading, but it refuses until this leader has applied what earlier leaders logged. Before that it
// would answer from an old map.
func (g *group) leadingInSync(ctx context.Context) (Log, error) {
	l, term, err := g.leading()
	if err == nil && !g.inSync(ctx, l, term) {
		err = rowraft.Errorf(rowraft.CodeStarting,
			"the new leader of the scheduler still reads what was logged before it")
	}
	return l, err
}

// inSync makes sure, once per term, that this leader has applied everything that earlier leaders logged. It reports
// whether that is so.
func (g *group) inSync(ctx context.Context, l Log, term rowraft.Term) bool {
	// A term has one leader, so nothing can be logged behind this leader's back while the term lasts.
	if rowraft.Term(g.synced.Load()) == term {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, membersTimeout)
	defer cancel()
	if l.Barrier(ctx) != nil {
		return false
	}
	g.synced.Store(uint64(term))
	return true
}

// mapVersion returns the version of the newest map, 0 without a map.
func (g *group) mapVersion() uint64 {
	if m := g.view.Map(); m != nil {
		return uint64(m.Version)
	}
	return 0
}

// waitingFor describes what a cluster without shards waits for.
func (g *group) waitingFor() string {
	n := 0
	if m := g.view.Map(); m != nil {
		n = len(m.Servers())
	}
	if n < g.opts.Servers {
		return fmt.Sprintf("%d of %d servers have registered", n, g.opts.Servers)
	}
	return "they are being made"
}
