package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/histogram"
	"github.com/rowraft/rowraft/internal/ticks"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/logstore"
	"github.com/rowraft/rowraft/raftstore/marks"
	"github.com/rowraft/rowraft/raftstore/peer"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/registry"
	"github.com/rowraft/rowraft/raftstore/timers"
	"github.com/rowraft/rowraft/raftstore/transport"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

// Store holds the groups of one node. Safe for concurrent use.
//
// Lock order: mu before the locks of marks. mu is held while the registry is written, so the callbacks of a group do
// not take it: what they need is in an atomic.
type Store struct {
	opts Options
	lock io.Closer

	port *peer.Port
	logs *logstore.Shared
	// shared carries the messages of all groups.
	shared *transport.Shared
	rows   *raftlog.Shared // the entries of all groups with backend Row

	// starts are those of the data directory. An atomic, because peers ask for them while mu may be held for a write.
	starts    atomic.Pointer[registry.Starts]
	marks     *marks.Store
	marksKept chan struct{} // closed when keepMarks has ended

	timers *timers.Server
	// of 1: held by a group that restarts for its timers, so that one at a time has no leader
	restarting *semaphore.Weighted

	// diskFull is true while less than the reserve is free. Propose reads it, so it is not under mu.
	diskFull atomic.Bool
	freeDisk atomic.Int64 // bytes; negative: unknown

	// snapshots bounds the groups that write a snapshot at the same time, because each takes disk from the logs of all.
	// pace bounds the rate at which all groups send snapshots.
	snapshots *semaphore.Weighted
	pace      *rate.Limiter
	// snapshotTook has the times of the snapshots of all groups.
	snapshotTook histogram.Durations

	stop chan struct{}
	wg   sync.WaitGroup

	// opening counts the groups that StartGroup is opening. Close waits for them, because they are not in groups yet.
	opening sync.WaitGroup

	mu struct {
		sync.Mutex
		registry *registry.Registry
		groups   map[string]*Group // nil: the group is being opened, so no other call may start or remove it
		closed   bool
	}
}

// Open opens or creates the store in opts.Dir and begins to accept peers.
func Open(opts Options) (*Store, error) {
	opts.setDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	// MkdirAll also makes a registry durable that a process renamed before it died.
	if err := vfs.MkdirAll(opts.FS, filepath.Join(opts.Dir, "groups")); err != nil {
		return nil, err
	}
	lock, err := registry.Lock(opts.FS, opts.Dir)
	if err != nil {
		return nil, err
	}
	reg, err := registry.Open(opts.FS, opts.Dir, opts.Cluster, opts.Node)
	if err != nil {
		lock.Close()
		return nil, err
	}
	if err := reg.Begin(); err != nil {
		lock.Close()
		return nil, err
	}
	known, err := marks.Open(opts.FS, opts.Dir, opts.Logger)
	if err != nil {
		lock.Close()
		return nil, err
	}
	rows, err := openRows(&opts, reg)
	if err != nil {
		lock.Close()
		return nil, err
	}
	s := &Store{
		opts: opts, lock: lock, rows: rows, marks: known, marksKept: make(chan struct{}),
		logs:      logstore.NewShared(opts.EntryCacheBytes),
		snapshots: semaphore.NewWeighted(2),
		pace:      transport.NewPace(opts.SnapshotSendBytesPerSecond),
		stop:      make(chan struct{}),
		timers: timers.NewServer(timers.ServerOptions{
			FS: opts.FS, Dir: opts.Dir, Profile: opts.Profile, StallLimit: opts.DiskStallLimit, Logger: opts.Logger,
			Fixed: opts.hooks.steady,
		}),
		restarting: semaphore.NewWeighted(1),
	}
	s.mu.registry = reg
	s.starts.Store(reg.Starts())
	s.mu.groups = map[string]*Group{}
	s.freeDisk.Store(-1)
	s.checkDisk()
	s.port = peer.Listen(peer.Options{
		Cluster: opts.Cluster, Node: opts.Node, Listener: opts.Listener, DialTLS: opts.DialTLS, Dial: opts.Dial,
		Resolve: opts.Resolve, DialTimeout: opts.DialTimeout, Logger: opts.Logger,
	}, s.marks)
	s.shared = transport.NewShared(s.port.Layer(peer.ServerGroup, serverMember{s}), opts.Logger)
	s.wg.Go(s.watchDisk)
	s.wg.Go(s.tidyRows)
	s.wg.Go(func() { s.timers.Run(s.stop) })
	go s.keepMarks()
	return s, nil
}

// openRows opens the shared log. It removes the logs of replicas that left, which a crash may have kept. What the
// registry does not know stays: a registry that is older than the log must not cost the last copy of a group.
func openRows(opts *Options, reg *registry.Registry) (*raftlog.Shared, error) {
	rows, err := raftlog.OpenShared(opts.FS, filepath.Join(opts.Dir, rowsDir), opts.Cluster, opts.Node,
		opts.SegmentSizeBytes, opts.Logger)
	if err != nil {
		return nil, err
	}
	for _, o := range rows.Owners() {
		rec, known := reg.Group(o.Group)
		if !known {
			opts.Logger.Error("the log has entries of a group that the registry does not know; they are kept",
				"group", o.Group, "replica", string(o.Replica))
			continue
		}
		if rec.Replica == o.Replica && rec.State != registry.Removed {
			continue
		}
		if err := rows.Remove(o); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
	}
	return rows, nil
}

// rowsDir is the directory of the shared log, below that of the store.
const rowsDir = "log"

// tidyEvery is the time between two checks of the shared log.
const tidyEvery = time.Second

// tidyRows keeps the shared log from growing because of a group that needs old entries, and prepares its files.
func (s *Store) tidyRows() {
	t := time.NewTicker(tidyEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if err := s.rows.Compact(s.stop); err != nil {
				s.opts.Logger.Warn("the log is not compacted", "err", err)
			}
			if free, reserve, known := s.Disk(); known && free < 2*reserve {
				continue // no room for a file that is not needed yet
			}
			if err := s.rows.Prepare(s.stop); err != nil {
				s.opts.Logger.Warn("the next file of the log is not prepared: appends to it will be slower", "err", err)
			}
		case <-s.stop:
			return
		}
	}
}

var groupName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]{0,63}$`)

// StartGroup opens a group and starts its raft, which restores its newest snapshot. Several groups may be started
// concurrently.
//
// Errors: CodeInvalidArgument; CodeAlreadyExists if the group is running; CodeIdentity if its directory does not belong
// to cfg.Replica or was lost; CodeFenced if it was rolled back; CodeCorrupt if log and snapshots do not fit together;
// CodeClosing.
func (s *Store) StartGroup(cfg GroupConfig) (*Group, error) {
	if cfg.Backend == "" {
		cfg.Backend = s.opts.Backend
	}
	if err := s.validateGroup(&cfg); err != nil {
		return nil, err
	}
	rec, fresh, err := s.claim(&cfg)
	if err != nil {
		return nil, fmt.Errorf("group %s: %w", cfg.ID, err)
	}
	defer s.opening.Done()
	g, err := openGroup(s, cfg, s.groupDir(cfg.ID), rec, fresh)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.mu.groups, cfg.ID)
		return nil, fmt.Errorf("group %s: %w", cfg.ID, err)
	}
	s.mu.groups[cfg.ID] = g                                          // from here on Close waits for this group
	if rec, _ := s.mu.registry.Group(cfg.ID); rec.RolledBack != "" { // found during the opening
		g.rolledBack("%s; %s", rec.RolledBack, copied)
	}
	return g, nil
}

// owner returns the owner of the log of a replica here.
func (s *Store) owner(id string, replica rowraft.ReplicaID) raftlog.Owner {
	return raftlog.Owner{Cluster: s.opts.Cluster, Node: s.opts.Node, Group: id, Replica: replica}
}

func (s *Store) groupDir(id string) string { return filepath.Join(s.opts.Dir, "groups", id) }

var errClosing = rowraft.Errorf(rowraft.CodeClosing, "the raft store is closing")

func (s *Store) validateGroup(cfg *GroupConfig) error {
	bad := func(format string, args ...any) error {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "group %q: "+format, append([]any{cfg.ID}, args...)...)
	}
	switch {
	case !groupName.MatchString(cfg.ID):
		return bad("the name must match %s", groupName)
	case cfg.Replica == "" || len(cfg.Replica) > raftlog.MaxNameBytes:
		return bad("the replica ID %q: want 1 to %d bytes", cfg.Replica, raftlog.MaxNameBytes)
	case cfg.Machine == nil:
		return bad("the state machine is nil")
	}
	if err := raftlog.Check(s.opts.FS, cfg.Backend); err != nil {
		return fmt.Errorf("group %q: %w", cfg.ID, err)
	}
	if cfg.Bootstrap == nil {
		return nil
	}
	replicas, nodes, self := map[rowraft.ReplicaID]bool{}, map[rowraft.NodeID]bool{}, false
	for _, m := range cfg.Bootstrap {
		if m.Replica == "" || m.Node == "" || replicas[m.Replica] || nodes[m.Node] {
			return bad("member %+v: want distinct, non-empty replicas on distinct servers", m)
		}
		replicas[m.Replica], nodes[m.Node] = true, true
		self = self || m == Member{cfg.Replica, s.opts.Node}
	}
	if !self {
		return bad("replica %s on server %s is not among the founding members", cfg.Replica, s.opts.Node)
	}
	return nil
}

// claim reserves the group, so that no other call starts or removes it. It creates the group's directory, or checks
// that the directory is the one in the registry. Without an error the caller must call opening.Done.
func (s *Store) claim(cfg *GroupConfig) (rec registry.Record, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return rec, false, errClosing
	}
	if _, taken := s.mu.groups[cfg.ID]; taken {
		return rec, false, rowraft.Errorf(rowraft.CodeAlreadyExists, "it is running")
	}
	if rec, fresh, err = s.claimLocked(cfg); err == nil {
		s.mu.groups[cfg.ID] = nil
		s.opening.Add(1)
	}
	return rec, fresh, err
}

// claimLocked creates or checks the directory for claim.
// REQUIRES: s.mu is held.
func (s *Store) claimLocked(cfg *GroupConfig) (rec registry.Record, fresh bool, err error) {
	dir := s.groupDir(cfg.ID)
	disk, reg := s.opts.FS, s.mu.registry
	rec, known := reg.Group(cfg.ID)
	switch {
	case known && rec.RolledBack != "" && rec.Replica == cfg.Replica && rec.State != registry.Removed:
		return rec, false, rowraft.Errorf(rowraft.CodeFenced, RolledBack+": %s; %s", rec.RolledBack, copied)
	case known && rec.State == registry.Active && !rec.HasRemoved(cfg.Replica):
		return rec, false, checkActive(disk, &rec, cfg, dir)
	case rec.HasRemoved(cfg.Replica):
		return rec, false, rowraft.Errorf(rowraft.CodeIdentity,
			"replica %s was removed from this server; a new replica needs a new ID", cfg.Replica)
	case !known:
		if _, err := s.opts.FS.Stat(dir); err == nil {
			return rec, false, rowraft.Errorf(rowraft.CodeIdentity,
				"%s exists but the registry does not know it: it is from another store", dir)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return rec, false, err
		}
	}
	rec = registry.Record{Replica: cfg.Replica, Backend: cfg.Backend, State: registry.Creating,
		Founded: cfg.Bootstrap != nil, Removed: rec.Removed}
	if err := reg.Set(cfg.ID, rec); err != nil {
		return rec, false, err
	}
	if err := vfs.RemoveAll(disk, dir); err != nil {
		return rec, false, err
	}
	return rec, true, vfs.MkdirAll(disk, filepath.Join(dir, "log"))
}

// checkActive makes sure that a replica that voted or acknowledged entries does not return with less than it had.
func checkActive(disk vfs.FS, rec *registry.Record, cfg *GroupConfig, dir string) error {
	if rec.Replica != cfg.Replica {
		return rowraft.Errorf(rowraft.CodeIdentity, "%s is of replica %s, not of %s", dir, rec.Replica, cfg.Replica)
	}
	if rec.Backend != cfg.Backend {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s was created with the %s backend, not %s", dir, rec.Backend,
			cfg.Backend)
	}
	names := []string{"snapshots"}
	for _, name := range raftlog.Files(rec.Backend) {
		names = append(names, filepath.Join("log", name))
	}
	for _, name := range names {
		if _, err := disk.Stat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
			return rowraft.Errorf(rowraft.CodeIdentity, "%s is missing but replica %s ran here: its data was lost, and with "+
				"it the votes it cast; remove the replica from the group and add a new one under a new ID",
				filepath.Join(dir, name), cfg.Replica)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// activate records that raft is about to run in the directory of a new group.
func (s *Store) activate(id string, rec registry.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec.State = registry.Active
	return s.mu.registry.Set(id, rec)
}

// RemoveReplica records that replica left group id, whether it ever ran here or not: it can never start on this node
// again. If the group's data are of that replica, RemoveReplica closes the group and deletes the data. It may be called
// again. The caller knows that the group has removed the replica.
func (s *Store) RemoveReplica(id string, replica rowraft.ReplicaID) error {
	if !groupName.MatchString(id) || replica == "" {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "remove replica %q of group %q: want both", replica, id)
	}
	s.mu.Lock()
	g := s.mu.groups[id]
	s.mu.Unlock()
	if g != nil && g.cfg.Replica == replica {
		if err := g.Close(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g, taken := s.mu.groups[id]; taken && (g == nil || g.cfg.Replica == replica) {
		return rowraft.Errorf(rowraft.CodeAlreadyExists, "remove replica %s: a replica of group %s is being started", replica,
			id)
	}
	rec, known := s.mu.registry.Group(id)
	mine := !known || rec.Replica == replica
	if mine && rec.State != registry.Removed || !rec.HasRemoved(replica) {
		if mine {
			rec.Replica, rec.State = replica, registry.Removed
		}
		rec.Removed = append(slices.Clone(rec.Removed), replica)
		if err := s.mu.registry.Set(id, rec); err != nil {
			return err
		}
	}
	if !mine {
		return nil
	}
	s.marks.Drop(id)
	if err := s.rows.Remove(s.owner(id, replica)); err != nil {
		return err
	}
	return vfs.RemoveAll(s.opts.FS, filepath.Join(s.opts.Dir, "groups", id))
}

// Removed reports whether RemoveReplica was called for replica of group id.
func (s *Store) Removed(id string, replica rowraft.ReplicaID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, _ := s.mu.registry.Group(id)
	return rec.HasRemoved(replica)
}

// Group returns a running group, or nil.
func (s *Store) Group(id string) *Group {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.groups[id]
}

// GroupIDs returns the groups whose data are on this node, running or not.
func (s *Store) GroupIDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.registry.Active()
}

func (s *Store) forget(g *Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.groups[g.cfg.ID] == g {
		delete(s.mu.groups, g.cfg.ID)
	}
}

// Close closes all groups, the peer port and the directory.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil
	}
	s.mu.closed = true
	s.mu.Unlock()
	s.opening.Wait()
	s.mu.Lock()
	groups := make([]*Group, 0, len(s.mu.groups))
	for _, g := range s.mu.groups {
		groups = append(groups, g)
	}
	s.mu.Unlock()
	errs := make([]error, len(groups)+3)
	var wg sync.WaitGroup
	for i, g := range groups {
		wg.Go(func() { errs[i] = g.Close() })
	}
	wg.Wait()
	close(s.stop)
	s.shared.Close()
	errs[len(groups)] = s.port.Close()
	s.wg.Wait()
	probed, cancel := context.WithTimeout(context.Background(), shutdownLimit)
	defer cancel()
	s.timers.Close(probed)
	waitFor(s.marksKept, shutdownLimit/5) // longer only if the disk hangs
	errs[len(groups)+1] = s.rows.Close()
	errs[len(groups)+2] = s.lock.Close()
	return errors.Join(errs...)
}

// watchDisk makes the store refuse proposals before the disk is full: a log that cannot be written stops the process,
// but a refused push is only late.
func (s *Store) watchDisk() {
	t := ticks.New(s.opts.hooks.tick)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.checkDisk()
		case <-s.stop:
			return
		}
	}
}

// reserveBytes returns how many bytes must stay free: the configured number, but at least two log segments and what the
// groups may have accepted and not written yet.
func (s *Store) reserveBytes() int64 {
	s.mu.Lock()
	groups := len(s.mu.groups)
	s.mu.Unlock()
	return max(s.opts.DiskReserveBytes, 2*int64(s.opts.SegmentSizeBytes)+int64(groups)*s.opts.MaxPendingBytes)
}

// Disk returns the free space of the last check and the reserve. known is false before the first check and without a
// reserve.
func (s *Store) Disk() (freeBytes, reserveBytes int64, known bool) {
	freeBytes = s.freeDisk.Load()
	if s.opts.DiskReserveBytes < 0 || freeBytes < 0 {
		return 0, 0, false
	}
	return freeBytes, s.reserveBytes(), true
}

func (s *Store) checkDisk() {
	if s.opts.DiskReserveBytes < 0 {
		return
	}
	free, err := s.opts.FS.Free(s.opts.Dir)
	if err != nil {
		s.opts.Logger.Warn("free disk space is unknown", "dir", s.opts.Dir, "err", err)
		return
	}
	s.freeDisk.Store(free)
	reserve := s.reserveBytes()
	full := free < reserve
	if was := s.diskFull.Swap(full); was != full {
		if full {
			s.opts.Logger.Error("disk nearly full: proposals are refused until space is back", "dir", s.opts.Dir, "free_bytes",
				free, "reserve_bytes", reserve)
		} else {
			s.opts.Logger.Info("disk space is back", "dir", s.opts.Dir, "free_bytes", free)
		}
	}
}

// Profile returns the timers of the store's groups while nothing is slow.
func (s *Store) Profile() timers.Profile { return s.timers.Profile() }

// SetProfile changes these timers. Running groups follow, as they do when a disk becomes slow.
func (s *Store) SetProfile(p timers.Profile) error { return s.timers.SetProfile(p) }

// Slowness returns the measurements of the server's disk and timers over the last two minutes.
func (s *Store) Slowness() timers.Slowness { return s.timers.Slowness() }

// LogWrites returns the durations of the log writes of all groups, including the fsync.
func (s *Store) LogWrites() histogram.Snapshot { return s.logs.WriteDurations() }

// SnapshotTimes returns the durations of the snapshots that the groups took.
func (s *Store) SnapshotTimes() histogram.Snapshot { return s.snapshotTook.Snapshot() }
