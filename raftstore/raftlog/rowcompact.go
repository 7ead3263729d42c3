package raftlog

import (
	"errors"
	"syscall"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// The oldest segment is copied if at most 1/compactShare of it is needed: the few entries of the scheduler, which are
// seldom cut, keep no segment. It is also copied while the log has more than compactFactor times as many bytes as its
// groups need, and compactSlack segments. So a byte that is written costs at most one byte that is copied, and usually
// far less.
const (
	compactShare  = 32
	compactFactor = 2
	compactSlack  = 8
	copyBytes     = 1 << 20 // of one change
)

// Compact copies the entries that groups need in the oldest segments to the end of the log, and removes these
// segments, while that is worth it. It returns when done is closed, too. A group whose entries are being copied waits
// for at most one copy.
func (s *Shared) Compact(done <-chan struct{}) error {
	s.compact.Lock()
	defer s.compact.Unlock()
	for {
		seg := s.sparse()
		if seg == nil {
			return nil
		}
		for _, g := range s.usersOf(seg) {
			for more := true; more; {
				select {
				case <-done:
					return nil
				default:
				}
				var err error
				if more, err = s.copyOut(g, seg); err != nil {
					return err
				}
			}
		}
		if err := s.release(seg); err != nil {
			return err
		}
		if s.oldest() == seg { // without this check a wrong count would keep this loop busy forever
			return rowraft.Errorf(rowraft.CodeInternal, "segment %d is still needed after it was copied", seg.number)
		}
	}
}

func (s *Shared) oldest() *rowSegment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.segments[0]
}

// sparse returns the oldest segment if it is to be copied.
func (s *Shared) sparse() *rowSegment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	total, live := int64(0), int64(0)
	for _, seg := range s.mu.segments {
		total, live = total+seg.end, live+seg.liveBytes
	}
	if len(s.mu.segments) < 2 {
		return nil
	}
	oldest := s.mu.segments[0]
	if oldest.liveBytes*compactShare > oldest.end && total <= compactFactor*live+s.slack*s.size {
		return nil
	}
	return oldest
}

func (s *Shared) usersOf(seg *rowSegment) (out []*rowGroup) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, g := range s.mu.groups {
		for _, p := range g.places {
			if uint64(p.segment) == seg.number {
				out = append(out, g)
				break
			}
		}
	}
	return out
}

// copyOut copies entries of g from seg to the end of the log. more is false if that were all. It reads them without the
// group's write lock: a sector that the disk cannot read takes seconds, and no append waits for it.
func (s *Shared) copyOut(g *rowGroup, seg *rowSegment) (more bool, err error) {
	var indices []uint64
	var places []place
	size := 0
	s.mu.RLock()
	for i, p := range g.places {
		if uint64(p.segment) != seg.number {
			continue
		}
		if more = size > copyBytes; more {
			break
		}
		size += entry.HeadBytes + int(p.length)
		indices, places = append(indices, g.first+uint64(i)), append(places, p)
	}
	if len(indices) > 0 { // so seg is not detached
		seg.users.RLock()
	}
	s.mu.RUnlock()
	if len(indices) == 0 {
		return false, nil
	}
	logs := make([]*raft.Log, len(indices)) // nil: damaged
	for i, index := range indices {
		l := &raft.Log{}
		err := seg.read(index, places[i], l)
		if err == nil {
			err = entry.Check(l)
		}
		switch {
		case err == nil:
			logs[i] = l
		case rowraft.CodeOf(err) != rowraft.CodeCorrupt && !errors.Is(err, syscall.EIO):
			seg.users.RUnlock()
			return false, err
		default:
			s.log.Error("an entry of the log is damaged", "group", g.owner.Group, "replica", string(g.owner.Replica), "index",
				index, "err", err)
		}
	}
	seg.users.RUnlock()

	g.write.Lock() // g does not change any more
	defer g.write.Unlock()
	whole := logs[:0]
	s.mu.Lock()
	known := s.mu.groups[g.tag] == g // it was not removed
	for i, index := range indices {
		switch {
		case !known || index < g.first || index > g.last || g.places[index-g.first] != places[i]: // cut meanwhile
		case logs[i] == nil:
			// The entry stays unreadable: its group stops when it needs it, and does not start again before it is cut.
			s.placeLocked(g, index, place{})
		default:
			whole = append(whole, logs[i])
		}
	}
	s.mu.Unlock()
	if len(whole) == 0 {
		return more && known, nil
	}
	g.write.change.entries(g, sectionCopies, whole)
	return more, s.commit(&g.write.change)
}

// release detaches seg if nothing needs it any more, and removes its file.
func (s *Shared) release(seg *rowSegment) error {
	s.writer.Lock()
	s.mu.Lock()
	s.detachLocked()
	s.mu.Unlock()
	s.writer.Unlock()
	return s.Reclaim()
}
