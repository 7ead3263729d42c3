package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/hclogger"
	"github.com/rowraft/rowraft/raftstore/logstore"
	"github.com/rowraft/rowraft/raftstore/marks"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/registry"
	"github.com/rowraft/rowraft/raftstore/snapstore"
	"github.com/rowraft/rowraft/raftstore/turns"
	"golang.org/x/sync/semaphore"
)

// Group is one replica of one Raft group. All methods are safe for concurrent use.
//
// Lock order: life before leadership.mu or an instance's mu. life is held across I/O, but only start, restart and close
// wait for it. The supervisor uses TryAcquire, because Close holds life while it waits for the supervisor.
type Group struct {
	store   *Store
	cfg     GroupConfig
	dir     string
	log     *slog.Logger
	logRate *hclogger.Rate

	// The stores and the machine outlive the raft instances: a restart in place costs an election, not a reload.
	inner  raftlog.Log // for reads that must not stop the group; raft uses glog
	glog   *logstore.Log
	ledger *logstore.Ledger
	snaps  *snapstore.Store
	watch  *snapstore.Watch // snaps as raft uses it
	fsm    *fsm
	clock  *stageClock // nil: stages are not counted

	waiters *waiters

	// life is held by start, restart and Close. A semaphore of 1, not a mutex: its waiters wait on a channel, which lets
	// virtual time advance (testing/synctest).
	life     *semaphore.Weighted
	closed   bool                     // guarded by life
	closeErr error                    // guarded by life
	run      atomic.Pointer[instance] // nil while raft does not run

	failOnce sync.Once
	failure  atomic.Pointer[error] // error that stopped the group forever; set before dead is closed
	dead     chan struct{}         // closed with failure
	stopOnce sync.Once
	stop     chan struct{}  // closed by Close
	wg       sync.WaitGroup // supervisor, leadership, pollOwn, askPeers

	rollback rollbackGuard

	timers     groupTimers
	turns      turns.Group
	leadership leadership
	snapshots  snapshotter
	// Both have capacity 1, so that a goroutine of raft can request a restart without a wait.
	wantRestart chan string
	stalled     chan string // the same, because a write to the log hangs

	restarts atomic.Int64 // in place, unplanned
	installs atomic.Int64 // snapshots from the leader that replaced older state
}

// openGroup opens the log and the snapshots and starts raft. fresh means that the directory was just created.
// REQUIRES: the group is claimed.
func openGroup(s *Store, cfg GroupConfig, dir string, rec registry.Record, fresh bool) (_ *Group, err error) {
	g := &Group{
		store: s, cfg: cfg, dir: dir,
		log:         s.opts.Logger.With("group", cfg.ID, "replica", string(cfg.Replica)),
		logRate:     hclogger.NewRate(),
		dead:        make(chan struct{}),
		life:        semaphore.NewWeighted(1),
		stop:        make(chan struct{}),
		wantRestart: make(chan string, 1), stalled: make(chan string, 1),
	}
	g.waiters, g.timers.g, g.snapshots.g = newGroupWaiters(g), g, g
	g.rollback = rollbackGuard{g, make(chan struct{})}
	owner := s.owner(cfg.ID, cfg.Replica)
	g.snaps, err = snapstore.Open(s.opts.FS, filepath.Join(dir, "snapshots"), owner.String(), g.log, func(string, error) {
		g.snapshots.wanted.Store(true)
	})
	if err != nil {
		return nil, err
	}
	g.watch = snapstore.NewWatch(g.snaps, s.opts.WedgeTimeout/2, func() {
		if g.glog.IsStarted() { // a start may find no snapshot
			g.snapshots.wanted.Store(true)
		}
	}, g.snapshots.note)
	g.inner, err = raftlog.Open(s.opts.FS, cfg.Backend, filepath.Join(dir, "log"), owner, s.rows, g.log)
	if err != nil {
		return nil, err
	}
	if s.opts.hooks.wrapLog != nil {
		g.inner = s.opts.hooks.wrapLog(cfg.ID, g.inner)
	}
	g.ledger = logstore.NewLedger(g.waiters.moved)
	g.clock = newStageClock(cfg.Stages)
	g.glog = logstore.New(logstore.Options{
		Inner: g.inner, Ledger: g.ledger, Shared: s.logs, Timers: s.timers,
		FS: s.opts.FS, Dir: filepath.Join(dir, "log"), Logger: g.log,
		IsLeader: g.isRaftLeader, Fatal: g.fail, Compactable: g.snapshots.compactable,
		Restart:   func(reason string) { request(g.wantRestart, reason) },
		Stalled:   func(reason string) { request(g.stalled, reason) },
		Stored:    g.stored,
		Committed: func() uint64 { return max(g.fsm.applied.Load(), s.marks.Of(cfg.ID, cfg.Replica).Index) },
	})
	defer func() {
		if err != nil {
			err = errors.Join(err, g.glog.Close())
		}
	}()
	if err := g.prepare(s, rec, fresh); err != nil {
		return nil, err
	}
	g.fsm = newFSM(cfg.Machine, g.ledger, g.fail, g.glog.Raise)
	g.fsm.clock = g.clock
	g.fsm.yield, g.fsm.moved = g.snapshots.newYield, g.waiters.moved
	g.fsm.installed = func(from, to uint64) {
		g.installs.Add(1)
		g.log.Info("installed a snapshot: the leader's log begins after the end of this replica's log", "applied", from,
			"index", to)
		if list, err := g.snaps.List(); err == nil && len(list) > 0 {
			g.snapshots.note(list[0])
		}
	}
	g.leadership.init() // before startRaft: raft may elect this replica before it returns
	if err := g.startRaft(); err != nil {
		return nil, err
	}
	g.wg.Go(func() { g.waiters.pollOwn(g.stop) })
	if err := g.rollback.Compare(s.opts.Node, &marks.Statement{Replica: cfg.Replica,
		Mark: s.marks.Of(cfg.ID, cfg.Replica)}); err != nil {
		g.log.Warn("this server itself remembers more than the replica has", "err", err)
	}
	n := g.run.Load()
	g.wg.Go(func() { g.rollback.askPeers(n) })
	g.wg.Add(2)
	go g.supervise()
	go g.deliverLeadership()
	return g, nil
}

// prepare bootstraps a new group, or checks that the files of an existing one fit together.
// REQUIRES: the group is claimed.
func (g *Group) prepare(s *Store, rec registry.Record, fresh bool) error {
	if fresh {
		if g.cfg.Bootstrap != nil {
			if err := g.bootstrap(); err != nil {
				return err
			}
		}
		return s.activate(g.cfg.ID, rec)
	}
	has, err := raft.HasExistingState(g.glog, g.glog, g.snaps)
	if err != nil {
		return err
	}
	if rec.Founded && !has {
		return rowraft.Errorf(rowraft.CodeIdentity, "%s is empty but replica %s ran here: its data was lost; remove the "+
			"replica from the group and add a new one under a new ID", g.dir, g.cfg.Replica)
	}
	return nil
}

// bootstrap writes the first log entry, which has the founding members.
func (g *Group) bootstrap() error {
	var conf raft.Configuration
	for _, m := range g.cfg.Bootstrap {
		conf.Servers = append(conf.Servers, raft.Server{
			Suffrage: raft.Voter, ID: raft.ServerID(m.Replica), Address: raft.ServerAddress(m.Node),
		})
	}
	return raft.BootstrapCluster(g.raftConfig(g.store.timers.Profile().Heartbeat, g.store.timers.Profile().Heartbeat, nil),
		g.glog, g.glog, g.snaps, nil, conf)
}

// reconcile completes an install of a leader's snapshot that a crash, or a restart in place, interrupted between the
// write of the snapshot and the clearing of the log. It clears a log that ends before the newest snapshot or has
// another entry at its index. Otherwise raft would append after the gap, and a monotonic log refuses that forever.
func (g *Group) reconcile() error {
	first, err := g.inner.FirstIndex()
	if err != nil {
		return err
	}
	last, err := g.inner.LastIndex()
	if err != nil {
		return err
	}
	list, err := g.snaps.List()
	if err != nil {
		return err
	}
	if len(list) == 0 || last == 0 {
		if first > 1 {
			return rowraft.Errorf(rowraft.CodeCorrupt,
				"%s: the log begins at entry %d and there is no good snapshot to begin from", g.dir, first)
		}
		return nil
	}
	snap := list[0]
	if first <= snap.Index && snap.Index <= last {
		var l raft.Log
		if err := g.inner.GetLog(snap.Index, &l); err != nil {
			return err
		}
		if l.Term == snap.Term {
			return nil
		}
	} else if first == snap.Index+1 {
		return nil
	} else if first > snap.Index {
		return rowraft.Errorf(rowraft.CodeCorrupt, "%s: the log begins at entry %d, the newest good snapshot ends at %d",
			g.dir, first, snap.Index)
	}
	_, r, err := g.snaps.Open(snap.ID)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); err != nil {
		return err
	}
	g.log.Warn("clearing a log that a newer snapshot replaces", "first", first, "last", last, "snapshot", snap.ID)
	return g.glog.DeleteRange(first, last)
}

// stored is called with entries after they are on the disk of this replica, before raft replicates them.
func (g *Group) stored(logs []*raft.Log) {
	g.clock.stored(logs)
	if n := g.run.Load(); n != nil {
		n.trans.Stored(logs[len(logs)-1].Index)
	}
}

// raftSnapshotThreshold disables raft's own snapshots, which count entries.
const raftSnapshotThreshold = 1 << 62

// sentEntries bounds the entries in one AppendEntries: entries are large.
const sentEntries = 32

// raftConfig returns the configuration for a heartbeat. The lease is that of the heartbeat started, because raft cannot
// change it while it runs. heartbeat must not be less than that lease.
func (g *Group) raftConfig(heartbeat, started time.Duration, notify chan<- bool) *raft.Config {
	p := g.store.timers.Profile().Stretched(started)
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(g.cfg.Replica)
	c.HeartbeatTimeout = heartbeat
	c.ElectionTimeout = heartbeat
	c.LeaderLeaseTimeout = p.LeaderLease
	c.CommitTimeout = p.Commit
	c.MaxAppendEntries = sentEntries
	c.BatchApplyCh = true
	c.ShutdownOnRemove = false
	c.SnapshotThreshold = raftSnapshotThreshold
	c.SnapshotInterval = time.Hour
	c.TrailingLogs = 0 // snapshot sets it, by bytes
	c.NotifyCh = notify
	c.NoLegacyTelemetry = true
	c.Logger = hclogger.New(g.log, "raft", g.logRate)
	return c
}

// startRaft starts a new raft instance on the group's stores and machine.
// REQUIRES: life is held, or the group is not published yet.
func (g *Group) startRaft() (err error) {
	heartbeat, started := g.timers.StartWith(g.store.timers.Heartbeat())
	n := newInstance(g, heartbeat)
	defer func() {
		if p := recover(); p != nil { // NewRaft panics when it cannot read a log entry
			err = rowraft.Errorf(rowraft.CodeCorrupt, "start raft: %v", p)
		}
		if err != nil {
			n.trans.Close()
		}
	}()
	g.glog.Prepare()
	if err := g.reconcile(); err != nil {
		return err
	}
	g.snaps.SetStopping(false)
	g.fsm.stopping.Store(false)
	g.fsm.restarted()
	conf := g.raftConfig(heartbeat, started, n.notify)
	n.started, n.lease = started, conf.LeaderLeaseTimeout
	n.raft, err = raft.NewRaft(conf, g.fsm, g.glog, g.glog, g.watch, n.trans)
	if err != nil {
		if rowraft.CodeOf(err) == rowraft.CodeUnknown {
			err = rowraft.Errorf(rowraft.CodeCorrupt, "start raft: %w", err)
		}
		return err
	}
	g.glog.Start()
	g.watch.Succeeded()
	newest, err := g.snaps.NewestIndex()
	if err == nil && n.raft.LastIndex() < newest {
		err = rowraft.Errorf(rowraft.CodeCorrupt, "%s: the snapshot at entry %d is damaged and the log ends at %d: this "+
			"replica would forget what it acknowledged; remove it from the group and add a new one under a new ID", g.dir,
			newest, n.raft.LastIndex())
	}
	if err != nil {
		return errors.Join(err, n.raft.Shutdown().Error())
	}
	if snap, err := g.snaps.List(); err == nil && len(snap) > 0 {
		g.snapshots.note(snap[0])
	}
	g.timers.Started(heartbeat, started)
	n.start()
	g.run.Store(n)
	return nil
}

// restart replaces the raft instance with a new one on the same stores and machine. level is the level of the log
// message: Error for restarts that should never be necessary.
func (g *Group) restart(level slog.Level, reason string) {
	g.restartAfter(func(n *instance) error { return n.shutdown(g.failure.Load() == nil) }, level, reason)
}

// restartAfter is restart, with what ends the raft instance.
func (g *Group) restartAfter(end func(*instance) error, level slog.Level, reason string) {
	if !g.life.TryAcquire(1) { // Close holds life and waits for the supervisor, which may call this
		return
	}
	defer g.life.Release(1)
	old := g.run.Load()
	if g.closed || old == nil || g.failure.Load() != nil {
		return
	}
	g.log.Log(context.Background(), level, "restarting the group in place", "reason", reason)
	if level > slog.LevelInfo { // not planned
		g.restarts.Add(1)
	}
	g.run.Store(nil)
	err := end(old)
	if errors.Is(err, errHangs) {
		err = old.awaitDisk()
	}
	switch {
	case isClosed(g.stop):
		g.closeErr = err
		return
	case g.failure.Load() != nil: // while raft ended
		return
	case err == nil:
		err = g.startRaft()
	}
	if err != nil {
		g.fail(fmt.Errorf("restart of group %s in place (%s): %w", g.cfg.ID, reason, err))
	}
}

// isClosed reports whether ch, on which nothing is sent, is closed.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// request sends reason to the supervisor. It does not wait.
func request(to chan<- string, reason string) {
	select {
	case to <- reason:
	default:
	}
}

// fail stops the group forever. It may run on any goroutine of raft, so it leaves the shutdown to the supervisor.
func (g *Group) fail(err error) { g.failWith(err, g.store.opts.Fatal) }

// failWith is fail with another function instead of Options.Fatal.
func (g *Group) failWith(err error, report func(error)) {
	g.failOnce.Do(func() {
		err = fmt.Errorf("group %s, replica %s: %w", g.cfg.ID, g.cfg.Replica, err)
		g.failure.Store(&err)
		close(g.dead)
		g.log.Error("the group has stopped forever", "err", err)
		report(err)
	})
}

// Err returns the error that stopped the group forever, or nil.
func (g *Group) Err() error {
	if e := g.failure.Load(); e != nil {
		return *e
	}
	return nil
}

// ID returns the name of the group.
func (g *Group) ID() string { return g.cfg.ID }

// Close stops the group. Running proposals get a short time to finish.
func (g *Group) Close() error {
	g.stopOnce.Do(func() { close(g.stop) })     // before life: a restart that waits for the disk holds it
	_ = g.life.Acquire(context.Background(), 1) // its only error is that of the context
	defer g.life.Release(1)
	if g.closed {
		return g.closeErr
	}
	g.closed = true
	n := g.run.Swap(nil)
	var err error
	if n != nil {
		err = n.shutdown(g.failure.Load() == nil)
	}
	g.wg.Wait()
	g.closeErr = errors.Join(g.closeErr, err, g.glog.Close())
	g.store.forget(g)
	return g.closeErr
}
