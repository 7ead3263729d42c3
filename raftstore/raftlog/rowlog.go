package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// rowLog is a group's log in segments of our own format; docs/formats/log.md is the authority. An append copies no
// large entry and reads none: large entries are written from where they are, and their checksum is the seal that they
// already have.
//
// Goroutines: raft's main goroutine appends and cuts the tail, its snapshot goroutine cuts the head and removes files,
// any goroutine reads. Lock order: reclaim, then write, then mu. No read from the disk happens under mu, and no file is
// removed under write: an unlink of 64 MiB takes tens of milliseconds, and appends must not wait for it.
//
// After a failed write the content of the disk is unknown: every later change returns that error.
type rowLog struct {
	*metaStore        // raft's term and vote
	tag        uint64 // of the owner
	disk       vfs.FS
	dir        string
	size       int64 // a segment is full beyond it
	log        *slog.Logger

	reclaim sync.Mutex // held while files of cut segments are removed

	write struct {
		sync.Mutex
		err    error
		batch  uint64        // number of the next batch
		end    int64         // offset of the next batch in the newest segment
		header []byte        // the header of the newest segment; nil after its first batch is written
		laid   batch         // the batch that is being written
		cut    []*rowSegment // without entries; Reclaim removes their files
		free   []string      // files of old segments for reuse
		closed bool
	}

	mu struct {
		sync.RWMutex
		first, last uint64        // 0, 0: empty
		base        uint64        // index of places[0]
		places      []place       // of entries base to last
		segments    []*rowSegment // consecutive; the newest is the last
	}
}

// rowSegment is an open file. close waits until all readers have released it.
type rowSegment struct {
	number uint64
	salt   uint64
	file   vfs.File
	users  sync.RWMutex // read-locked by a reader, locked to close
}

// place is the position of an entry's head.
type place struct {
	segment uint32 // segment number; it stays far below 2^32
	at      uint32
	length  uint32 // of the data
}

// freeSegments is how many files of cut segments are kept for reuse: those of a snapshot's interval of 512 MiB in
// segments of 64 MiB. An append to a file that has its blocks syncs in a third of the time. The files take no more
// space than the log had just before the cut.
const freeSegments = 8

var _ Log = (*rowLog)(nil)

// openRowLog opens or creates the log in dir. A segment is full when the next batch would end beyond size bytes.
//
// Errors: CodeCorrupt, CodeIdentity, CodeVersionTooNew.
func openRowLog(disk vfs.FS, dir string, owner Owner, size int, log *slog.Logger) (*rowLog, error) {
	l := &rowLog{metaStore: newMetaStore(disk, owner, log), tag: owner.tag(), disk: disk, dir: dir, size: int64(size),
		log: log}
	last, err := l.metaStore.Load(dir)
	if err != nil {
		return nil, err
	}
	err = l.recover(last.newest)
	if err == nil && len(l.mu.segments) == 0 {
		l.write.batch = 1
		err = l.begin(1)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("log in %s: %w", dir, err), l.Close())
	}
	return l, nil
}

// IsMonotonic returns true, so that raft clears the log after it installed a snapshot.
func (l *rowLog) IsMonotonic() bool { return true }

func (l *rowLog) FirstIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.first, nil
}

func (l *rowLog) LastIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.last, nil
}

// GetLog reads an entry. The caller must check its seal.
func (l *rowLog) GetLog(index uint64, out *raft.Log) error {
	l.mu.RLock()
	if l.mu.first == 0 || index < l.mu.first || index > l.mu.last {
		l.mu.RUnlock()
		return raft.ErrLogNotFound
	}
	at := l.mu.places[index-l.mu.base]
	s := l.mu.segments[uint64(at.segment)-l.mu.segments[0].number]
	s.users.RLock()
	l.mu.RUnlock()
	defer s.users.RUnlock()

	b := make([]byte, entry.HeadBytes+int(at.length))
	if err := readFull(s.file, b, int64(at.at)); err != nil {
		return fmt.Errorf("read entry %d of %s: %w", index, s.file.Name(), err)
	}
	h := entry.ParseHead(b)
	if h.Index != index || h.Length != at.length {
		return rowraft.Errorf(rowraft.CodeCorrupt, "%s: entry %d of %d bytes is at the place of entry %d of %d bytes",
			s.file.Name(), h.Index, h.Length, index, at.length)
	}
	h.Put(out, b)
	return nil
}

func (l *rowLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

// StoreLogs appends entries, which carry their seals.
func (l *rowLog) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	l.write.Lock()
	defer l.write.Unlock()
	last, _ := l.LastIndex() // only the holder of write changes it
	for i, e := range logs {
		if want := logs[0].Index + uint64(i); e.Index != want || e.Index == 0 || last > 0 && logs[0].Index != last+1 {
			return rowraft.Errorf(rowraft.CodeInternal, "append entry %d to a log that ends at %d", e.Index, last+uint64(i))
		}
		if len(e.Extensions) != entry.SealBytes {
			return entry.BadSeal(e)
		}
	}
	l.write.laid.entries(logs)
	segment, at, err := l.append()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.first == 0 {
		l.mu.first, l.mu.base, l.mu.places = logs[0].Index, logs[0].Index, l.mu.places[:0]
	}
	for i, e := range logs {
		l.mu.places = append(l.mu.places, place{segment: uint32(segment), at: uint32(at) + l.write.laid.heads[i].start,
			length: uint32(len(e.Data))})
	}
	l.mu.last = logs[len(logs)-1].Index
	return nil
}

// DeleteRange deletes the head or the tail of the log, or all of it. Reclaim removes the files.
func (l *rowLog) DeleteRange(from, to uint64) error {
	l.write.Lock()
	defer l.write.Unlock()
	l.mu.RLock()
	first, last := l.mu.first, l.mu.last
	l.mu.RUnlock()
	from, to = max(from, first), min(to, last)
	switch {
	case first == 0 || from > to:
		return nil
	case from == first && to == last:
		first, last = 0, 0
	case from == first:
		first = to + 1
	case to == last:
		last = from - 1
	default:
		return rowraft.Errorf(rowraft.CodeInternal, "cut entries %d to %d out of the middle of %d to %d", from, to, first,
			last)
	}
	l.write.laid.cut(first, last)
	if _, _, err := l.append(); err != nil {
		return err
	}
	l.retain(first, last)
	l.detach()
	return nil
}

// retain reduces the log in memory to the entries first … last, which it holds.
func (l *rowLog) retain(first, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if first == 0 {
		l.mu.places = nil
	} else {
		l.mu.places = l.mu.places[first-l.mu.base : last+1-l.mu.base]
		if cap(l.mu.places) > 2*len(l.mu.places)+1024 { // release the memory of the cut entries
			l.mu.places = slices.Clone(l.mu.places)
		}
	}
	l.mu.first, l.mu.last, l.mu.base = first, last, first
}

// detach takes the oldest segments without entries out of the log. REQUIRES: write is held, or the log is being opened;
// the cut that emptied them is durable.
func (l *rowLog) detach() {
	l.mu.Lock()
	defer l.mu.Unlock()
	keep := len(l.mu.segments) - 1
	if len(l.mu.places) > 0 {
		keep = min(keep, int(uint64(l.mu.places[0].segment)-l.mu.segments[0].number))
	}
	l.write.cut = append(l.write.cut, l.mu.segments[:keep]...)
	l.mu.segments = slices.Clone(l.mu.segments[keep:])
}

// Reclaim removes the files of cut segments, the oldest first, or keeps them for reuse. Appends continue meanwhile.
func (l *rowLog) Reclaim() error {
	l.reclaim.Lock()
	defer l.reclaim.Unlock()
	for {
		l.write.Lock()
		if l.write.closed || l.write.err != nil || len(l.write.cut) == 0 {
			err := l.write.err
			l.write.Unlock()
			return err
		}
		s := l.write.cut[0]
		l.write.cut = l.write.cut[1:]
		reuse := len(l.write.free) < freeSegments
		l.write.Unlock()

		free, err := l.dropSegment(s, reuse)
		l.write.Lock()
		if err != nil {
			l.write.err = fmt.Errorf("remove %s: %w", s.file.Name(), err)
		} else if free != "" {
			l.write.free = append(l.write.free, free)
		}
		l.write.Unlock()
	}
}

// dropSegment removes the file of a segment, or returns the name under which it is kept for reuse.
func (l *rowLog) dropSegment(s *rowSegment, reuse bool) (free string, err error) {
	if err := s.close(); err != nil {
		return "", err
	}
	if !reuse {
		return "", l.disk.Remove(s.file.Name())
	}
	free = filepath.Join(l.dir, segmentName(s.number, freeExt))
	return free, l.disk.Rename(s.file.Name(), free)
}

// close waits for the readers.
func (s *rowSegment) close() error {
	s.users.Lock()
	defer s.users.Unlock()
	return s.file.Close()
}

// Close closes the log. No method but Reclaim may be called afterwards.
func (l *rowLog) Close() error {
	l.reclaim.Lock()
	defer l.reclaim.Unlock()
	l.write.Lock()
	defer l.write.Unlock()
	if l.write.closed {
		return nil
	}
	l.write.closed = true
	errs := []error{l.metaStore.Close()}
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, s := range slices.Concat(l.write.cut, l.mu.segments) {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

func (l *rowLog) syncFile(s *rowSegment) error {
	if canary.Is(canary.SkipFsync) {
		return nil
	}
	return s.file.Sync()
}

func (l *rowLog) syncDir() error {
	if canary.Is(canary.SkipFsync) {
		return nil
	}
	return l.disk.SyncDir(l.dir)
}
