package raftstore

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/entry"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/timers"
)

// guardedLog is between raft and a raftlog.Log. It caches recent entries, detects a disk that hangs, checks the CRC of
// each entry that it reads, and stops the group at the first error.
//
// After an error it does not return to raft. It ends raft's calling goroutine (runtime.Goexit runs raft's deferred
// clean-up). If it returned, raft would continue: it panics if the term cannot be stored, and after a failed append it
// keeps a wrong last index and votes with it. While NewRaft reads on the caller's goroutine, guardedLog returns errors.
type guardedLog struct {
	inner  raftlog.Log
	cache  *groupCache
	ledger *ledger
	// compactable returns the last entry of min to max that may be deleted now. May be nil.
	compactable func(min, max uint64) uint64
	disk        vfs.FS
	dir         string // for messages
	log         *slog.Logger
	writing     *atomic.Int32 // number of logs of the store that are being written

	// committed returns an index up to which this log is known to be committed. No leader may replace these entries.
	// May be nil.
	committed func() uint64

	slow     *timers.Delays // of the server
	stall    func() time.Duration
	isLeader func() bool
	fatal    func(error)
	restart  func(reason string) // requests a new raft instance; does not wait

	// boundary is the position of the newest snapshot that the machine holds. GetLog returns it for that entry if the
	// log has dropped the entry: raft looks for the previous entry only in the log. Without this, a follower refuses
	// the entries right after the snapshot if the leader repeats them, and the leader sends the snapshot again,
	// forever.
	boundary atomic.Pointer[boundary]

	started atomic.Bool
	closed  atomic.Bool
	failed  atomic.Bool

	stores atomic.Int64 // StoreLogs calls
	took   *durations   // of the log writes of the store
}

// boundary is the last entry of a snapshot. The log continues after it.
type boundary struct{ index, term uint64 }

// raise moves the boundary up.
func (g *guardedLog) raise(index, term uint64) {
	for {
		old := g.boundary.Load()
		if old != nil && old.index >= index || g.boundary.CompareAndSwap(old, &boundary{index, term}) {
			return
		}
	}
}

// slowStore is the duration of a log write that is worth a warning: heartbeats of followers wait behind the write.
const slowStore = 100 * time.Millisecond

var (
	_ raft.LogStore          = (*guardedLog)(nil)
	_ raft.StableStore       = (*guardedLog)(nil)
	_ raft.MonotonicLogStore = (*guardedLog)(nil)
)

func (g *guardedLog) IsMonotonic() bool { return g.inner.IsMonotonic() }

func (g *guardedLog) FirstIndex() (uint64, error) {
	i, err := g.inner.FirstIndex()
	return i, g.check("read the first index of", err)
}

func (g *guardedLog) LastIndex() (uint64, error) {
	i, err := g.inner.LastIndex()
	return i, g.check("read the last index of", err)
}

func (g *guardedLog) GetLog(index uint64, out *raft.Log) error {
	if g.cache.get(index, out) {
		return nil
	}
	err := g.inner.GetLog(index, out)
	if errors.Is(err, raft.ErrLogNotFound) {
		if b := g.boundary.Load(); b != nil && b.index == index {
			*out = raft.Log{Index: b.index, Term: b.term, Type: raft.LogNoop}
			return nil
		}
		return g.missing(index)
	}
	if err == nil {
		if err = entry.Check(out); err == nil && out.Index != index {
			err = rowraft.Errorf(rowraft.CodeCorrupt, "entry %d stands in the place of entry %d", out.Index, index)
		}
	}
	if err := g.check(fmt.Sprintf("read entry %d of", index), err); err != nil {
		return err
	}
	if !g.started.Load() {
		g.ledger.observe(out)
	}
	return nil
}

// missing distinguishes an entry that was compacted or does not exist yet, which raft requests often, from a hole.
func (g *guardedLog) missing(index uint64) error {
	first, err1 := g.inner.FirstIndex()
	last, err2 := g.inner.LastIndex()
	if err := errors.Join(err1, err2); err != nil {
		return g.check("read the bounds of", err)
	}
	if first == 0 || index < first || index > last {
		return raft.ErrLogNotFound
	}
	return g.check("read", rowraft.Errorf(rowraft.CodeCorrupt, "entry %d is missing between %d and %d", index, first, last))
}

func (g *guardedLog) StoreLog(l *raft.Log) error { return g.StoreLogs([]*raft.Log{l}) }

func (g *guardedLog) StoreLogs(logs []*raft.Log) error {
	g.stopIfFailed()
	for _, l := range logs {
		if err := entry.Place(l); err != nil {
			return g.check("append to", err)
		}
	}
	stop := g.watch("append to")
	g.writing.Add(1)
	begun := time.Now()
	err := g.inner.StoreLogs(logs)
	g.took.observe(time.Since(begun))
	g.writing.Add(-1)
	stop()
	if err := g.check("append to", err); err != nil {
		return err
	}
	g.stopIfFailed() // the watchdog stopped the group during the write: acknowledge nothing
	g.stores.Add(1)
	g.cache.put(logs)
	for _, l := range logs {
		g.ledger.observe(l)
	}
	return nil
}

// DeleteRange returns an error instead of ending the goroutine, because raft's snapshot goroutine calls it too and must
// answer a future.
func (g *guardedLog) DeleteRange(min, max uint64) error {
	if g.failed.Load() {
		return errFailed
	}
	if g.compactable != nil && g.started.Load() {
		if max = g.compactable(min, max); max < min {
			return nil
		}
	}
	if err := g.contradiction(min, max); err != nil {
		return g.check("truncate", err)
	}
	stop := g.watch("truncate")
	err := g.inner.DeleteRange(min, max)
	stop()
	if err != nil {
		return g.fail("truncate", err)
	}
	g.cache.remove(min, max)
	g.ledger.removed(min, max)
	g.checkPhantom(max)
	return nil
}

// contradiction refuses to delete the end of the log if entries there are committed. A leader that requests this was
// elected with the vote of a replica whose disk was rolled back, and this log may be the last one with these entries.
// Entries that a snapshot replaces are allowed.
func (g *guardedLog) contradiction(min, max uint64) error {
	if g.committed == nil || !g.started.Load() {
		return nil
	}
	committed := g.committed()
	if b := g.boundary.Load(); min > committed || b != nil && min <= b.index {
		return nil
	}
	if last, err := g.inner.LastIndex(); err != nil || max < last {
		return err
	}
	return rowraft.Errorf(rowraft.CodeCorrupt, "the leader has other entries from %d on than this replica, where they are committed up to %d: the disk of another replica was rolled back; keep this directory, it may be the only one that has them (runbook rolled-back-disk)", min, committed)
}

// checkPhantom restarts raft if it cleared a log that reached beyond the snapshot it installed. Raft then keeps the
// last index of the cleared log in memory, votes with it, acknowledges entries after it, and panics on the hole. Raft
// clears the log on its main goroutine, which ends here. The restart reads the right index.
func (g *guardedLog) checkPhantom(max uint64) {
	b := g.boundary.Load()
	if b == nil || max <= b.index || !g.started.Load() {
		return
	}
	if last, err := g.inner.LastIndex(); err != nil || last != 0 {
		return
	}
	if g.failed.CompareAndSwap(false, true) {
		g.restart(fmt.Sprintf("raft cleared its log up to entry %d for a snapshot of entry %d", max, b.index))
		runtime.Goexit()
	}
}

func (g *guardedLog) Set(key, val []byte) error {
	g.stopIfFailed()
	if string(key) == keyLastVoteCand {
		val, _, _ = splitSender(val) // raft votes for the address in the message; only the node part is stored
	}
	stop := g.watch("store the vote in")
	err := g.inner.Set(key, val)
	stop()
	return g.check("store the vote in", err)
}

func (g *guardedLog) SetUint64(key []byte, val uint64) error {
	g.stopIfFailed()
	stop := g.watch("store the term in")
	err := g.inner.SetUint64(key, val)
	stop()
	return g.check("store the term in", err)
}

// Get and GetUint64 return errors unchanged: raft recognizes "not found" by its text.
func (g *guardedLog) Get(key []byte) ([]byte, error)       { return g.inner.Get(key) }
func (g *guardedLog) GetUint64(key []byte) (uint64, error) { return g.inner.GetUint64(key) }

func (g *guardedLog) Close() error {
	g.closed.Store(true)
	return g.inner.Close()
}

// keyLastVoteCand is raft's key of the candidate that it voted for.
const keyLastVoteCand = "LastVoteCand"

var errFailed = rowraft.Errorf(rowraft.CodeInternal, "the log failed before")

// check returns nil for nil. Otherwise it stops the running group and ends the goroutine.
func (g *guardedLog) check(what string, err error) error {
	if err == nil {
		return nil
	}
	err = g.fail(what, err)
	if g.started.Load() {
		runtime.Goexit()
	}
	return err
}

func (g *guardedLog) fail(what string, err error) error {
	hint := ""
	if errors.Is(err, syscall.ENOSPC) {
		hint = " (the disk is full)"
	} else if free, ferr := g.disk.Free(g.dir); ferr == nil && free < 64<<20 {
		hint = fmt.Sprintf(" (the disk is nearly full: %d bytes are free)", free)
	}
	err = fmt.Errorf("%s the log in %s%s: %w", what, g.dir, hint, err)
	if g.started.Load() && !g.closed.Load() {
		g.failed.Store(true)
		g.fatal(err)
	}
	return err
}

func (g *guardedLog) stopIfFailed() {
	if g.failed.Load() && g.started.Load() {
		runtime.Goexit()
	}
}

// stallChecks is the number of checks of a hanging write until the limit.
const stallChecks = 10

// watch calls fatal if the returned function is not called in time. A leader whose disk hangs would keep its followers
// from an election and lead forever (#503). A follower gets ten times the limit, because it blocks nothing. watch
// counts its own checks instead of the clock: while the whole process is suspended, no check runs, and the disk is not
// blamed.
func (g *guardedLog) watch(what string) (stop func()) {
	begin := time.Now()
	begun := g.slow.Begin(begin)
	var expired atomic.Int32
	var ended atomic.Bool
	var t *time.Timer
	armed := make(chan struct{})
	limit := g.stall()
	t = time.AfterFunc(limit/stallChecks, func() {
		<-armed
		if ended.Load() || g.closed.Load() {
			return
		}
		if n := expired.Add(1); n < stallChecks || n < 10*stallChecks && !g.isLeader() {
			t.Reset(limit / stallChecks)
			return
		}
		g.failed.Store(true)
		g.fatal(rowraft.Errorf(rowraft.CodeInternal, "disk stall: to %s the log in %s has taken %v, the limit is %v",
			what, g.dir, time.Since(begin).Round(time.Millisecond), limit))
	})
	close(armed)
	if d, ok := g.disk.(vfs.LogWaiter); ok {
		d.WaitLog(g.dir)
	}
	return func() {
		ended.Store(true) // a check may be running
		t.Stop()
		d := g.slow.End(begun, time.Now())
		if d > slowStore {
			g.log.Warn("slow disk: heartbeats wait behind log writes", "op", what+" the log", "took", d, "dir", g.dir)
		}
	}
}
