package raftlog

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// rowLog is the log of one group in the segments that all groups of a server share; docs/formats/log.md is the
// authority. An append reads no large entry, and copies it once, into the buffer of the vfs.Tail: its checksum is the
// seal that it already has.
//
// Goroutines: raft's main goroutine appends and cuts the tail, its snapshot goroutine cuts the head and removes files,
// any goroutine reads.
type rowLog struct {
	*metaStore // raft's term and vote
	shared     *Shared
	group      *rowGroup
	closed     atomic.Bool
}

// rowGroup is what the shared log holds of one group, open or not.
type rowGroup struct {
	tag   uint64
	owner Owner

	// write is held during one change of the group, also across its write to the disk.
	write struct {
		sync.Mutex
		change change
	}

	// Guarded by mu of the Shared.
	seq         uint64 // of the last section; only the writer changes it
	first, last uint64 // 0, 0: empty
	places      []place
	err         error // the group is damaged: it must not start
}

// place is the position of an entry's head. Segment 0 means that the entry is lost.
type place struct {
	segment uint32 // segment number; it stays far below 2^32
	at      uint32
	length  uint32 // of the data
}

var _ Log = (*rowLog)(nil)

// IsMonotonic returns true, so that raft clears the log after it installed a snapshot.
func (l *rowLog) IsMonotonic() bool { return true }

func (l *rowLog) FirstIndex() (uint64, error) {
	first, _ := l.bounds()
	return first, nil
}

func (l *rowLog) LastIndex() (uint64, error) {
	_, last := l.bounds()
	return last, nil
}

func (l *rowLog) bounds() (first, last uint64) {
	l.shared.mu.RLock()
	defer l.shared.mu.RUnlock()
	return l.group.first, l.group.last
}

// GetLog reads an entry. The caller must check its seal.
func (l *rowLog) GetLog(index uint64, out *raft.Log) error {
	l.shared.mu.RLock()
	g := l.group
	if g.first == 0 || index < g.first || index > g.last {
		l.shared.mu.RUnlock()
		return raft.ErrLogNotFound
	}
	at := g.places[index-g.first]
	s := l.shared.segmentLocked(at.segment)
	if s == nil {
		l.shared.mu.RUnlock()
		return rowraft.Errorf(rowraft.CodeCorrupt, "entry %d was damaged in a log segment that is removed", index)
	}
	s.users.RLock()
	l.shared.mu.RUnlock()
	defer s.users.RUnlock()
	return s.read(index, at, out)
}

func (l *rowLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

// StoreLogs appends entries, which carry their seals.
func (l *rowLog) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	g := l.group
	g.write.Lock()
	defer g.write.Unlock()
	_, last := l.bounds() // only the holder of write changes it
	for i, e := range logs {
		if want := logs[0].Index + uint64(i); e.Index != want || e.Index == 0 || last > 0 && logs[0].Index != last+1 {
			return rowraft.Errorf(rowraft.CodeInternal, "append entry %d to a log that ends at %d", e.Index, last+uint64(i))
		}
		if len(e.Extensions) != entry.SealBytes {
			return entry.BadSeal(e)
		}
	}
	g.write.change.entries(g, sectionEntries, logs)
	return l.commit()
}

// commit makes the group's change durable.
func (l *rowLog) commit() error {
	if l.closed.Load() {
		return rowraft.Errorf(rowraft.CodeClosing, "the log of %s is closed", l.group.owner)
	}
	return l.shared.commit(&l.group.write.change)
}

// DeleteRange deletes the head or the tail of the log, or all of it. Reclaim removes the files.
func (l *rowLog) DeleteRange(from, to uint64) error {
	g := l.group
	g.write.Lock()
	defer g.write.Unlock()
	first, last := l.bounds()
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
	g.write.change.cut(g, first, last)
	return l.commit()
}

// Reclaim removes the files of segments that no group needs.
func (l *rowLog) Reclaim() error { return l.shared.Reclaim() }

// Close ends the use of the group's log. No method may be called afterwards.
func (l *rowLog) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	return l.metaStore.Close()
}

// placeLocked sets the place of an entry: the next one of the group, or one that it has. REQUIRES: mu is held.
func (s *Shared) placeLocked(g *rowGroup, index uint64, p place) {
	s.countLocked(p, 1)
	switch {
	case g.first == 0:
		g.first, g.last, g.places = index, index, append(g.places[:0], p)
	case index > g.last:
		g.last, g.places = index, append(g.places, p)
	default:
		old := &g.places[index-g.first]
		s.countLocked(*old, -1)
		*old = p
	}
}

// retainLocked reduces a group in memory to the entries first … last, which it holds. REQUIRES: mu is held.
func (s *Shared) retainLocked(g *rowGroup, first, last uint64) {
	keep := g.places[:0]
	if first > 0 {
		keep = g.places[first-g.first : last+1-g.first]
	}
	head := len(g.places)
	if first > 0 {
		head = int(first - g.first)
	}
	for _, p := range g.places[:head] {
		s.countLocked(p, -1)
	}
	for _, p := range g.places[head+len(keep):] {
		s.countLocked(p, -1)
	}
	if first == 0 {
		keep = nil
	} else if cap(keep) > 2*len(keep)+64 { // release the memory of the cut entries
		keep = append(make([]place, 0, len(keep)), keep...)
	}
	g.first, g.last, g.places = first, last, keep
}

// countLocked counts an entry that the segment of p begins or ceases to hold for its group. REQUIRES: mu is held.
func (s *Shared) countLocked(p place, by int64) {
	if seg := s.segmentLocked(p.segment); seg != nil {
		seg.live += by
		seg.liveBytes += by * (entry.HeadBytes + int64(p.length))
	}
}

// segmentLocked returns a segment by its number, nil if there is none. REQUIRES: mu is held.
func (s *Shared) segmentLocked(number uint32) *rowSegment {
	if len(s.mu.segments) == 0 || uint64(number) < s.mu.segments[0].number {
		return nil
	}
	if i := uint64(number) - s.mu.segments[0].number; i < uint64(len(s.mu.segments)) {
		return s.mu.segments[i]
	}
	return nil
}

// read reads an entry at p. REQUIRES: the segment is in use.
func (s *rowSegment) read(index uint64, p place, out *raft.Log) error {
	b := make([]byte, entry.HeadBytes+int(p.length))
	if err := readFull(s.file, b, int64(p.at)); errors.Is(err, io.EOF) {
		return rowraft.Errorf(rowraft.CodeCorrupt, "%s ends before the end of entry %d", s.file.Name(), index)
	} else if err != nil {
		return fmt.Errorf("read entry %d of %s: %w", index, s.file.Name(), err)
	}
	h := entry.ParseHead(b)
	if h.Index != index || h.Length != p.length {
		return rowraft.Errorf(rowraft.CodeCorrupt, "%s: entry %d of %d bytes is at the place of entry %d of %d bytes",
			s.file.Name(), h.Index, h.Length, index, p.length)
	}
	h.Put(out, b)
	return nil
}
