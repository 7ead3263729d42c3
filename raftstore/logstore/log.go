package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/histogram"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/entry"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/timers"
)

// Log implements raft.LogStore and raft.StableStore on a raftlog.Log. It caches recent entries, detects a disk that
// hangs, checks the CRC of each entry that it reads, and stops the group at the first error.
//
// After an error it does not return to raft. It ends raft's calling goroutine (runtime.Goexit runs raft's deferred
// clean-up). If it returned, raft would continue: it panics if the term cannot be stored, and after a failed append it
// keeps a wrong last index and votes with it. While NewRaft reads on the caller's goroutine, Log returns errors.
type Log struct {
	o     Options
	cache *groupCache

	// boundary is the position of the newest snapshot that the machine holds; the log continues after it. It never moves
	// down. GetLog returns it for that entry if the log has dropped the entry: raft looks for the previous entry only in
	// the log. Without this, a follower refuses the entries right after the snapshot if the leader repeats them, and the
	// leader sends the snapshot again, forever.
	boundary atomic.Pointer[entry.Position]

	// started is false while NewRaft reads on the caller's goroutine, which must not end.
	started atomic.Bool
	closed  atomic.Bool
	// failed is set before Fatal, Restart or Stalled is called. From then on, until Prepare, no write begins, nothing is
	// acknowledged and no vote is stored.
	failed atomic.Bool
	fenced atomic.Bool // the same, for ever

	stores  atomic.Int64 // StoreLogs calls
	written atomic.Int64 // end of the last one, Unix ns; 0: none since the start
}

// Options configure a Log. Callbacks are called without locks.
type Options struct {
	Inner  raftlog.Log
	Ledger *Ledger
	Shared *Shared
	Timers *timers.Server
	FS     vfs.FS
	Dir    string // of Inner
	Logger *slog.Logger

	IsLeader func() bool
	Fatal    func(error)         // stops the group; does not wait
	Restart  func(reason string) // requests a new raft instance; does not wait
	// Stalled requests that this replica gives its lead up, and a new raft instance when the write that hangs has
	// ended. It does not wait.
	Stalled func(reason string)
	// Stored is called with entries after they are on the disk.
	Stored func([]*raft.Log)
	// Compactable returns the last entry of min to max that may be deleted now.
	Compactable func(min, max uint64) uint64
	// Committed returns an index up to which this log is known to be committed. No leader may replace these entries.
	Committed func() uint64
}

// Shared is what the logs of all groups of a server share. Safe for concurrent use.
type Shared struct {
	cache   *entryCache
	took    histogram.Durations // durations of the log writes
	writing atomic.Int32        // number of logs that are being written
}

// NewShared returns the shared part of logs whose recent entries take up to cacheBytes of memory.
func NewShared(cacheBytes int64) *Shared {
	return &Shared{cache: newEntryCache(cacheBytes)}
}

// IsWriting reports whether a log is being written.
func (s *Shared) IsWriting() bool { return s.writing.Load() > 0 }

// WriteDurations returns the durations of the log writes, including the fsync.
func (s *Shared) WriteDurations() histogram.Snapshot { return s.took.Snapshot() }

// New returns the log of o for a raft that does not run yet.
func New(o Options) *Log {
	return &Log{o: o, cache: o.Shared.cache.group()}
}

// Prepare makes the log return errors, for a raft that is about to start.
func (g *Log) Prepare() {
	g.started.Store(false)
	g.failed.Store(false)
}

// Start makes each further error stop the group: raft runs.
func (g *Log) Start() { g.started.Store(true) }

// WrittenAt returns the time of the last write; zero if there was none since the start.
func (g *Log) WrittenAt() time.Time {
	if at := g.written.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// IsStarted reports whether raft runs.
func (g *Log) IsStarted() bool { return g.started.Load() }

// Fence makes all further writes end the goroutine that calls them. No vote is stored any more.
func (g *Log) Fence() { g.fenced.Store(true) }

// NeedsRestart reports whether no write begins until raft is started again.
func (g *Log) NeedsRestart() bool { return g.failed.Load() }

// Boundary returns the position of the newest snapshot that the machine holds, or nil.
func (g *Log) Boundary() *entry.Position { return g.boundary.Load() }

// Writes returns the number of StoreLogs calls.
func (g *Log) Writes() int64 { return g.stores.Load() }

// Raise moves the boundary up.
func (g *Log) Raise(index, term uint64) {
	for {
		old := g.boundary.Load()
		if old != nil && old.Index >= index || g.boundary.CompareAndSwap(old, &entry.Position{Index: index, Term: term}) {
			return
		}
	}
}

// slowStore is the duration of a log write that is worth a warning: heartbeats of followers wait behind the write.
const slowStore = 100 * time.Millisecond

var (
	_ raft.LogStore          = (*Log)(nil)
	_ raft.StableStore       = (*Log)(nil)
	_ raft.MonotonicLogStore = (*Log)(nil)
)

func (g *Log) IsMonotonic() bool { return g.o.Inner.IsMonotonic() }

func (g *Log) FirstIndex() (uint64, error) {
	i, err := g.o.Inner.FirstIndex()
	return i, g.check("read the first index of", err)
}

func (g *Log) LastIndex() (uint64, error) {
	i, err := g.o.Inner.LastIndex()
	return i, g.check("read the last index of", err)
}

func (g *Log) GetLog(index uint64, out *raft.Log) error {
	if g.cache.get(index, out) {
		return nil
	}
	err := g.o.Inner.GetLog(index, out)
	if errors.Is(err, raft.ErrLogNotFound) {
		if b := g.boundary.Load(); b != nil && b.Index == index {
			*out = raft.Log{Index: b.Index, Term: b.Term, Type: raft.LogNoop}
			return nil
		}
		return g.missing(index)
	}
	if err == nil {
		if err = entry.Check(out); err == nil && out.Index != index {
			err = rowraft.Errorf(rowraft.CodeCorrupt, "the log has entry %d at the place of entry %d", out.Index, index)
		}
	}
	if err := g.check(fmt.Sprintf("read entry %d of", index), err); err != nil {
		return err
	}
	if !g.started.Load() {
		g.o.Ledger.Observe(out)
	}
	return nil
}

// missing distinguishes an entry that was compacted or does not exist yet, which raft requests often, from a hole.
func (g *Log) missing(index uint64) error {
	first, err1 := g.o.Inner.FirstIndex()
	last, err2 := g.o.Inner.LastIndex()
	if err := errors.Join(err1, err2); err != nil {
		return g.check("read the bounds of", err)
	}
	if first == 0 || index < first || index > last {
		return raft.ErrLogNotFound
	}
	return g.check("read", rowraft.Errorf(rowraft.CodeCorrupt, "entry %d is missing between %d and %d", index, first,
		last))
}

func (g *Log) StoreLog(l *raft.Log) error { return g.StoreLogs([]*raft.Log{l}) }

func (g *Log) StoreLogs(logs []*raft.Log) error {
	g.stopIfFailed()
	for _, l := range logs {
		if err := entry.Complete(l); err != nil {
			return g.check("append to", err)
		}
	}
	stop := g.watch("append to")
	g.o.Shared.writing.Add(1)
	begun := time.Now()
	err := g.o.Inner.StoreLogs(logs)
	ended := time.Now()
	g.o.Shared.took.Observe(ended.Sub(begun))
	g.o.Shared.writing.Add(-1)
	stop()
	if err := g.check("append to", err); err != nil {
		return err
	}
	g.stopIfFailed() // the watchdog stopped the group during the write: acknowledge nothing
	g.stores.Add(1)
	g.written.Store(ended.UnixNano())
	g.o.Stored(logs)
	g.cache.put(logs)
	for _, l := range logs {
		g.o.Ledger.Observe(l)
	}
	return nil
}

// DeleteRange returns an error instead of ending the goroutine, because raft's snapshot goroutine calls it too and must
// answer a future.
func (g *Log) DeleteRange(min, max uint64) error {
	if g.hasFailed() {
		return errFailed
	}
	if g.started.Load() {
		if max = g.o.Compactable(min, max); max < min {
			return nil
		}
	}
	if err := g.contradiction(min, max); err != nil {
		return g.check("truncate", err)
	}
	stop := g.watch("truncate")
	err := g.o.Inner.DeleteRange(min, max)
	stop()
	if err != nil {
		return g.fail("truncate", err)
	}
	g.cache.remove(min, max)
	g.o.Ledger.removed(min, max)
	g.checkPhantom(max)
	// Not watched: no append, and so no heartbeat, waits for it.
	if err := g.o.Inner.Reclaim(); err != nil {
		return g.fail("reclaim the space of", err)
	}
	return nil
}

// contradiction refuses to delete the end of the log if entries there are committed. A leader that requests this was
// elected with the vote of a replica whose disk was rolled back, and this log may be the last one with these entries.
// Entries that a snapshot replaces are allowed.
func (g *Log) contradiction(min, max uint64) error {
	if !g.started.Load() {
		return nil
	}
	committed := g.o.Committed()
	if b := g.boundary.Load(); min > committed || b != nil && min <= b.Index {
		return nil
	}
	if last, err := g.o.Inner.LastIndex(); err != nil || max < last {
		return err
	}
	return rowraft.Errorf(rowraft.CodeCorrupt, "the leader has other entries from %d on than this replica, where they "+
		"are committed up to %d: the disk of another replica was rolled back; keep this directory, it may be the only one "+
		"that has them (runbook rolled-back-disk)", min, committed)
}

// checkPhantom restarts raft if it cleared a log that reached beyond the snapshot it installed. Raft then keeps the
// last index of the cleared log in memory, votes with it, acknowledges entries after it, and panics on the hole. Raft
// clears the log on its main goroutine, which ends here. The restart reads the right index.
func (g *Log) checkPhantom(max uint64) {
	b := g.boundary.Load()
	if b == nil || max <= b.Index || !g.started.Load() {
		return
	}
	if last, err := g.o.Inner.LastIndex(); err != nil || last != 0 {
		return
	}
	if g.failed.CompareAndSwap(false, true) {
		g.o.Restart(fmt.Sprintf("raft cleared its log up to entry %d for a snapshot of entry %d", max, b.Index))
		runtime.Goexit()
	}
}

func (g *Log) Set(key, val []byte) error {
	g.stopIfFailed()
	if string(key) == keyLastVoteCand {
		val, _, _ = bytes.Cut(val, []byte{0}) // after the node, the address of a sender has more (docs/formats/peer.md)
	}
	stop := g.watch("store the vote in")
	err := g.o.Inner.Set(key, val)
	stop()
	return g.check("store the vote in", err)
}

func (g *Log) SetUint64(key []byte, val uint64) error {
	g.stopIfFailed()
	stop := g.watch("store the term in")
	err := g.o.Inner.SetUint64(key, val)
	stop()
	return g.check("store the term in", err)
}

// Get and GetUint64 return errors unchanged: raft recognizes "not found" by its text.
func (g *Log) Get(key []byte) ([]byte, error)       { return g.o.Inner.Get(key) }
func (g *Log) GetUint64(key []byte) (uint64, error) { return g.o.Inner.GetUint64(key) }

func (g *Log) Close() error {
	g.closed.Store(true)
	return g.o.Inner.Close()
}

// keyLastVoteCand is raft's key of the candidate that it voted for.
const keyLastVoteCand = "LastVoteCand"

var errFailed = rowraft.Errorf(rowraft.CodeInternal, "the log failed before")

// check returns nil for nil. Otherwise it stops the running group and ends the goroutine.
func (g *Log) check(what string, err error) error {
	if err == nil {
		return nil
	}
	err = g.fail(what, err)
	if g.started.Load() {
		runtime.Goexit()
	}
	return err
}

func (g *Log) fail(what string, err error) error {
	hint := ""
	if errors.Is(err, syscall.ENOSPC) {
		hint = " (the disk is full)"
	} else if free, ferr := g.o.FS.Free(g.o.Dir); ferr == nil && free < 64<<20 {
		hint = fmt.Sprintf(" (the disk is nearly full: %d bytes are free)", free)
	}
	err = fmt.Errorf("%s the log in %s%s: %w", what, g.o.Dir, hint, err)
	if g.started.Load() && !g.closed.Load() {
		g.failed.Store(true)
		g.o.Fatal(err)
	}
	return err
}

func (g *Log) hasFailed() bool { return g.failed.Load() || g.fenced.Load() }

func (g *Log) stopIfFailed() {
	if g.hasFailed() && g.started.Load() {
		runtime.Goexit()
	}
}

// The number of checks of a write that hangs, until a leader gives its lead up, and until the replica stops forever.
const (
	stallChecks = 10
	fatalChecks = timers.FatalStalls * stallChecks
)

// watch acts if the returned function is not called in time. A leader whose disk hangs would keep its followers from an
// election and lead forever (#503), so after the limit it gives its lead up. A follower blocks nothing. After ten times
// the limit the replica stops forever. watch counts its own checks instead of the clock: while the whole process is
// suspended, no check runs, and the disk is not blamed.
func (g *Log) watch(what string) (stop func()) {
	begin := time.Now()
	begun := g.o.Timers.Delays.Begin(begin)
	var expired atomic.Int32
	var state atomic.Int32 // running, gaveUp or ended
	const running, gaveUp, ended = 0, 1, 2
	var t *time.Timer
	armed := make(chan struct{})
	limit := g.o.Timers.StallLimit()
	t = time.AfterFunc(limit/stallChecks, func() {
		<-armed
		if state.Load() == ended || g.closed.Load() {
			return
		}
		n := expired.Add(1)
		stall := func(limit time.Duration) string {
			return fmt.Sprintf("disk stall: to %s the log in %s has taken %v, the limit is %v", what, g.o.Dir,
				time.Since(begin).Round(time.Millisecond), limit)
		}
		if n >= fatalChecks {
			g.failed.Store(true)
			g.o.Fatal(rowraft.Errorf(rowraft.CodeInternal, "%s", stall(timers.FatalStalls*limit)))
			return
		}
		if n >= stallChecks && g.o.IsLeader() && state.CompareAndSwap(running, gaveUp) {
			g.failed.Store(true)
			g.o.Stalled(stall(limit))
		}
		t.Reset(limit / stallChecks)
	})
	close(armed)
	if d, ok := g.o.FS.(vfs.LogWaiter); ok {
		d.WaitLog(g.o.Dir)
	}
	return func() {
		count := g.o.Timers.Delays.End
		if state.Swap(ended) == gaveUp { // longer timers would only make the next leader wait
			count = g.o.Timers.Delays.Took
		}
		t.Stop()
		if d := count(begun, time.Now()); d > slowStore {
			g.o.Logger.Warn("slow disk: heartbeats wait behind log writes", "op", what+" the log", "took", d, "dir", g.o.Dir)
		}
	}
}
