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
)

// guardedLog stands between raft and a raftlog.Log. It keeps recent entries in
// memory, watches for a hanging disk, checks the CRC of what it reads and stops
// the group at the first error.
//
// After an error it does not return to raft: the calling goroutine of raft ends
// (runtime.Goexit runs raft's deferred clean-up). Returning would let raft go on:
// it panics when the term cannot be stored, and after a failed append it keeps a
// wrong last index and votes with it. Errors before start, while NewRaft reads
// on the caller's goroutine, are returned.
type guardedLog struct {
	inner  raftlog.Log
	cache  *groupCache
	ledger *ledger
	// compactable returns up to where the entries from min to max may go. May be nil.
	compactable func(min, max uint64) uint64
	disk        vfs.FS
	dir         string // for messages
	log         *slog.Logger
	writing     *atomic.Int32 // logs of the store that are being written now

	// committed is how far this log is known to be committed: no leader may replace that. May be nil.
	committed func() uint64

	slow     *slowness // of the store
	stall    func() time.Duration
	isLeader func() bool
	fatal    func(error)
	restart  func(reason string) // asks for a new raft instance; does not wait

	// boundary is the newest snapshot that the machine holds. Its last entry
	// answers for the entry that the log no longer has: raft does not look at its
	// snapshot when a leader repeats the entries right after it, refuses them, and
	// is sent the snapshot again and again.
	boundary atomic.Pointer[boundary]

	started atomic.Bool
	closed  atomic.Bool
	failed  atomic.Bool

	stores atomic.Int64 // StoreLogs calls
	took   *durations   // of the log writes of the store
}

// boundary is where a snapshot ends and the log goes on.
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

// slowStore is when a log write is worth a warning; heartbeats of followers wait
// behind it.
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

// missing tells an entry that was compacted or is still to come, which raft asks
// for all the time, from a hole.
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
	g.stopIfFailed() // the watchdog gave up meanwhile: acknowledge nothing
	g.stores.Add(1)
	g.cache.put(logs)
	for _, l := range logs {
		g.ledger.observe(l)
	}
	return nil
}

// DeleteRange is also called by raft's snapshot goroutine, which answers to a
// future: it gets the error back.
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

// contradiction refuses to drop the end of the log if entries there are committed: a leader that
// wants this was elected with the vote of a replica whose disk was rolled back, and the log here may
// be the last one that has them. What a snapshot replaces is none of that.
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

// checkPhantom restarts raft when it cleared a log that went beyond the snapshot
// it installed: it keeps the last index of the cleared log in memory, votes with
// it, acknowledges what follows it and panics on the hole. Raft does this on its
// main goroutine, which ends here; the restart reads the true index.
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
		val, _, _ = splitSender(val) // raft's own vote is for its address as it says it in messages
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

// Get and GetUint64 pass errors on: raft tells "not found" by its text.
func (g *guardedLog) Get(key []byte) ([]byte, error)       { return g.inner.Get(key) }
func (g *guardedLog) GetUint64(key []byte) (uint64, error) { return g.inner.GetUint64(key) }

func (g *guardedLog) Close() error {
	g.closed.Store(true)
	return g.inner.Close()
}

// keyLastVoteCand is raft's key of the candidate that it voted for.
const keyLastVoteCand = "LastVoteCand"

var errFailed = rowraft.Errorf(rowraft.CodeInternal, "the log failed before")

// check passes nil on and turns an error of the running group into its end.
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

// stallChecks is how often in its limit a write that hangs is looked at.
const stallChecks = 10

// watch calls fatal when the returned function is not called in time: a leader
// whose disk hangs keeps its followers content and leads for ever (#503). A
// follower harms nobody, so it is given ten times as long. Time counts as it is looked
// at: when the whole process has stood still, that was not the disk.
func (g *guardedLog) watch(what string) (stop func()) {
	begin := time.Now()
	begun := g.slow.begin(begin)
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
		ended.Store(true) // it may be looked at just now
		t.Stop()
		d := g.slow.took(begun, time.Now())
		g.slow.wrote(d)
		if d > slowStore {
			g.log.Warn("slow disk: heartbeats wait behind log writes", "op", what+" the log", "took", d, "dir", g.dir)
		}
	}
}
