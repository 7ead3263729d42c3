package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/internal/vfs"
)

// Shared is the log of all groups of a server with backend Row: segments that hold the entries of all groups
// (docs/formats/log.md). Changes of several groups that wait at the same time are one batch with one sync. Safe for
// concurrent use; it starts no goroutine.
//
// Lock order: write of a group, then reclaim or prepare, writer, mu. queue is held for no other lock. No read from the
// disk happens under mu, and no file is removed under writer: an unlink of 64 MiB takes tens of milliseconds, and
// appends must not wait for it.
//
// After a failed write the content of the disk is unknown: every later change of any group returns that error.
type Shared struct {
	disk     vfs.FS
	dir      string
	owner    Owner // without group and replica
	size     int64 // a segment is full beyond it
	log      *slog.Logger
	meta     *metaStore // has the number of the newest segment
	readOnly bool
	slack    int64 // segments that the log may have in addition before it is compacted

	reclaim sync.Mutex // held while files of cut segments are removed
	compact sync.Mutex // held by Compact
	prepare struct {
		sync.Mutex             // held by Prepare
		last       *rowSegment // that lacked a file for the next one at the last call; nil: none
		failed     *rowSegment // likewise, when the last preparation failed; nil: none has
	}

	queue struct {
		sync.Mutex
		changes []*change
		busy    bool          // a goroutine writes
		active  [2]int        // changes of the last two batches, each with those that came meanwhile
		took    time.Duration // to write and sync a small batch, smoothed
		wanted  int           // the writer waits until there are so many changes; 0: it does not
		enough  chan struct{} // closed when they are there
	}

	writer struct {
		sync.Mutex
		err    error
		batch  uint64        // number of the next batch
		tail   *vfs.Tail     // writes to the newest segment; nil: there is none, or the log is read-only
		state  bool          // the next batch begins with the state of all groups
		head   []byte        // of the batch that is being written
		bufs   [][]byte      // its bytes
		cut    []*rowSegment // without entries; Reclaim removes their files
		free   []string      // files of old segments for reuse, and the prepared one
		closed bool
	}

	mu struct {
		sync.RWMutex
		groups   map[uint64]*rowGroup // by tag
		segments []*rowSegment        // consecutive; the newest is the last
	}
}

// rowSegment is an open file. close waits until all readers have released it.
type rowSegment struct {
	number uint64
	salt   uint64
	file   vfs.File
	users  sync.RWMutex // read-locked by a reader, locked to close

	grows bool // an append changes the length of the file; under writer of the Shared

	// Guarded by mu of the Shared.
	end       int64 // of its batches; only the holder of writer changes it, and reads it without mu
	live      int64 // entries that groups have in it
	liveBytes int64
}

// freeSegments is how many files of cut segments are kept for reuse: 1 GiB in segments of 64 MiB. Prepare says why. The
// files take no more space than the log had just before the cut, and the prepared one.
const freeSegments = 16

// OpenShared opens or creates the shared log of a server in dir. A segment is full when the next batch would end beyond
// segmentSizeBytes. Damage to the entries of one group does not fail the call: Open fails for that group.
//
// Errors: CodeCorrupt, CodeIdentity, CodeVersionTooNew.
func OpenShared(disk vfs.FS, dir string, cluster rowraft.ClusterID, node rowraft.NodeID, segmentSizeBytes int,
	log *slog.Logger) (*Shared, error) {
	if err := vfs.MkdirAll(disk, dir); err != nil {
		return nil, err
	}
	return openShared(disk, dir, Owner{Cluster: cluster, Node: node}, segmentSizeBytes, log, false)
}

// ReadShared opens the shared log of a server that does not run, and changes nothing in dir. A missing dir is a log
// without groups.
//
// Errors: those of OpenShared.
func ReadShared(disk vfs.FS, dir string, cluster rowraft.ClusterID, node rowraft.NodeID,
	log *slog.Logger) (*Shared, error) {
	return openShared(disk, dir, Owner{Cluster: cluster, Node: node}, MinSegmentBytes, log, true)
}

func openShared(disk vfs.FS, dir string, owner Owner, size int, log *slog.Logger, readOnly bool) (*Shared, error) {
	s := &Shared{disk: disk, dir: dir, owner: owner, size: int64(size), log: log, meta: newMetaStore(disk, owner, log),
		readOnly: readOnly, slack: compactSlack}
	s.mu.groups = make(map[uint64]*rowGroup)
	s.writer.batch = 1
	if err := s.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("log in %s: %w", dir, err), s.Close())
	}
	return s, nil
}

// openGroup opens the log of owner, whose term and vote are in dir of disk. The log is new if dir has no META.
func (s *Shared) openGroup(disk vfs.FS, dir string, owner Owner, log *slog.Logger) (*rowLog, error) {
	l := &rowLog{metaStore: newMetaStore(disk, owner, log), shared: s}
	_, err := disk.Stat(filepath.Join(dir, metaName))
	fresh := errors.Is(err, fs.ErrNotExist)
	if err != nil && !fresh {
		return nil, err
	}
	if fresh {
		// Before META is there: a crash in between leaves no META without a group in the log.
		if l.group, err = s.newGroup(owner); err != nil {
			return nil, err
		}
	}
	if _, err := l.metaStore.Load(dir); err != nil {
		return nil, err
	}
	if !fresh {
		if l.group, err = s.group(owner); err != nil {
			return nil, errors.Join(err, l.metaStore.Close())
		}
	}
	return l, nil
}

// newGroup adds a group without entries, or empties the group.
func (s *Shared) newGroup(owner Owner) (*rowGroup, error) {
	if s.readOnly {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "%s of %s is missing", metaName, owner)
	}
	if err := s.owner.check(s.dir, Owner{Cluster: owner.Cluster, Node: owner.Node}); err != nil {
		return nil, err
	}
	g := &rowGroup{tag: owner.tag(), owner: owner}
	s.mu.RLock()
	old := s.mu.groups[g.tag]
	s.mu.RUnlock()
	if old != nil { // Compact may be copying its entries: no copy may follow the begin
		old.write.Lock()
		defer old.write.Unlock()
	}
	g.write.Lock()
	defer g.write.Unlock()
	g.write.change.body(g, sectionBegin, pad8(owner.encode()))
	return g, s.commit(&g.write.change)
}

// group returns a group of the log. Errors: CodeIdentity if the log does not know it; CodeCorrupt if it is damaged.
func (s *Shared) group(owner Owner) (*rowGroup, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	g := s.mu.groups[owner.tag()]
	if g == nil {
		return nil, rowraft.Errorf(rowraft.CodeIdentity, "%s has no log of %s, which ran here: its data was lost; remove "+
			"the replica from the group and add a new one under a new ID", s.dir, owner)
	}
	return g, g.err
}

// Has reports whether the log knows the group of owner, damaged or not.
func (s *Shared) Has(owner Owner) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.groups[owner.tag()] != nil
}

// Owners returns the owners of all groups in the log, ordered by group and replica.
func (s *Shared) Owners() (out []Owner) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, g := range s.mu.groups {
		out = append(out, g.owner)
	}
	slices.SortFunc(out, func(a, b Owner) int { return slices.Compare(a.encode(), b.encode()) })
	return out
}

// Remove deletes the log of owner, which is not open. Without such a log it does nothing.
func (s *Shared) Remove(owner Owner) error {
	s.mu.RLock()
	g := s.mu.groups[owner.tag()]
	s.mu.RUnlock()
	if g == nil {
		return nil
	}
	g.write.Lock()
	defer g.write.Unlock()
	g.write.change.reset(g, sectionEnd, 0)
	g.write.change.close(0)
	if err := s.commit(&g.write.change); err != nil {
		return err
	}
	return s.Reclaim()
}

// Replace makes the log of owner what it is in from. No log of owner is open.
func (s *Shared) Replace(owner Owner, from *Shared) error {
	source, err := from.group(owner)
	if err != nil {
		return err
	}
	g, err := s.newGroup(owner)
	if err != nil {
		return err
	}
	reads, writes := rowLog{shared: from, group: source}, rowLog{shared: s, group: g}
	first, last := reads.bounds()
	for i := first; i > 0 && i <= last; i++ {
		var e raft.Log
		if err := reads.GetLog(i, &e); err != nil {
			return err
		}
		if err := writes.StoreLog(&e); err != nil {
			return err
		}
	}
	return nil
}

// detachLocked takes the oldest segments without entries out of the log. REQUIRES: writer and mu are held, or the log
// is being opened; the changes that emptied the segments are durable.
func (s *Shared) detachLocked() {
	n := 0
	for n < len(s.mu.segments)-1 && s.mu.segments[n].live == 0 {
		n++
	}
	if n > 0 {
		s.writer.cut = append(s.writer.cut, s.mu.segments[:n]...)
		s.mu.segments = slices.Clone(s.mu.segments[n:])
	}
}

// Reclaim removes the files of cut segments, the oldest first, or keeps them for reuse. Appends continue meanwhile.
func (s *Shared) Reclaim() error {
	s.reclaim.Lock()
	defer s.reclaim.Unlock()
	w := &s.writer
	for {
		w.Lock()
		if w.closed || w.err != nil || len(w.cut) == 0 {
			err := w.err
			w.Unlock()
			return err
		}
		seg := w.cut[0]
		w.cut = w.cut[1:]
		reuse := len(w.free) < freeSegments
		w.Unlock()

		free, err := s.dropSegment(seg, reuse)
		w.Lock()
		if err != nil {
			w.err = fmt.Errorf("remove %s: %w", seg.file.Name(), err)
		} else if free != "" {
			w.free = append(w.free, free)
		}
		w.Unlock()
	}
}

// dropSegment removes the file of a segment, or returns the name under which it is kept for reuse.
func (s *Shared) dropSegment(seg *rowSegment, reuse bool) (free string, err error) {
	if err := seg.close(); err != nil {
		return "", err
	}
	if !reuse {
		return "", s.disk.Remove(seg.file.Name())
	}
	free = filepath.Join(s.dir, segmentName(seg.number, freeExt))
	return free, s.disk.Rename(seg.file.Name(), free)
}

// close waits for the readers.
func (s *rowSegment) close() error {
	s.users.Lock()
	defer s.users.Unlock()
	return s.file.Close()
}

// Close closes the log. No method but Reclaim may be called afterwards, also not of the logs of its groups.
func (s *Shared) Close() error {
	s.reclaim.Lock()
	defer s.reclaim.Unlock()
	w := &s.writer
	w.Lock()
	defer w.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	errs := []error{s.meta.Close()}
	if w.tail != nil {
		errs = append(errs, w.tail.Close())
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, seg := range slices.Concat(w.cut, s.mu.segments) {
		errs = append(errs, seg.close())
	}
	return errors.Join(errs...)
}

func (s *Shared) syncFile(seg *rowSegment) error {
	if canary.Is(canary.SkipFsync) {
		return nil
	}
	return seg.file.Sync()
}

func (s *Shared) syncDir() error {
	if canary.Is(canary.SkipFsync) {
		return nil
	}
	return s.disk.SyncDir(s.dir)
}
