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
// Goroutines: raft's main goroutine appends and cuts the tail, its snapshot goroutine cuts the head, any goroutine
// reads. Lock order: write before mu. No read from the disk happens under mu.
//
// After a failed write the content of the disk is unknown: every later change returns that error.
type rowLog struct {
	*metaStore        // raft's term and vote
	tag        uint64 // of the owner
	disk       vfs.FS
	dir        string
	size       int64 // a segment is full beyond it
	log        *slog.Logger

	write struct {
		sync.Mutex
		err    error
		batch  uint64   // number of the next batch
		end    int64    // offset of the next batch in the newest segment
		header []byte   // the header of the newest segment; nil after its first batch is written
		laid   batch    // the batch that is being written
		free   []string // files of old segments for reuse
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

const freeSegments = 2

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

// DeleteRange deletes the head or the tail of the log, or all of it.
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
	return l.dropSegments()
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

// dropSegments removes the oldest segments without entries. REQUIRES: write is held; the cut that emptied them is
// durable.
func (l *rowLog) dropSegments() error {
	l.mu.Lock()
	keep := len(l.mu.segments) - 1
	if len(l.mu.places) > 0 {
		keep = min(keep, int(uint64(l.mu.places[0].segment)-l.mu.segments[0].number))
	}
	gone := l.mu.segments[:keep]
	l.mu.segments = slices.Clone(l.mu.segments[keep:])
	l.mu.Unlock()
	for _, s := range gone {
		if err := l.dropSegment(s); err != nil {
			l.write.err = fmt.Errorf("remove %s: %w", s.file.Name(), err)
			return l.write.err
		}
	}
	return nil
}

func (l *rowLog) dropSegment(s *rowSegment) error {
	if err := s.close(); err != nil {
		return err
	}
	if len(l.write.free) >= freeSegments {
		return l.disk.Remove(s.file.Name())
	}
	free := filepath.Join(l.dir, segmentName(s.number, freeExt))
	if err := l.disk.Rename(s.file.Name(), free); err != nil {
		return err
	}
	l.write.free = append(l.write.free, free)
	return nil
}

// close waits for the readers.
func (s *rowSegment) close() error {
	s.users.Lock()
	defer s.users.Unlock()
	return s.file.Close()
}

// Close closes the log. No method may be called afterwards.
func (l *rowLog) Close() error {
	l.write.Lock()
	defer l.write.Unlock()
	if l.write.closed {
		return nil
	}
	l.write.closed = true
	errs := []error{l.metaStore.Close()}
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, s := range l.mu.segments {
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
