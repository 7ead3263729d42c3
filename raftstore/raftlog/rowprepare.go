package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rowraft/rowraft/internal/vfs"
)

const (
	// A file of zeros is written in steps of prepareBytes, each with a pause of preparePause, which is less than 64 MiB/s:
	// a sync of the log waits for one step. A disk without direct writes keeps up to prepareDirty bytes for one sync.
	prepareBytes = 256 << 10
	preparePause = 4 * time.Millisecond
	prepareDirty = 4 << 20
	// prepareFrom is how much the newest segment has when the file of the next one is prepared: a server that writes
	// little needs none.
	prepareFrom = 1 << 20
)

// Prepare writes a file of zeros for the next segment, unless a file is free or the newest segment is nearly empty. An
// append to a file that has its blocks takes two thirds of the time and of the CPU time of one that changes the length
// (4 to 256 KiB and a sync, ext4 without a journal), and less than half of the time if the file system has a journal,
// often a fifth. Only speed depends on the file: after an error there is none, and the next segment tries again.
// Prepare returns when done is closed, too, and when the log begins another segment meanwhile; the next call continues.
// It does nothing if the newest segment is another one than at the last call: a log that grows faster than the file, at
// one call a second, needs the disk for itself.
func (s *Shared) Prepare(done <-chan struct{}) error {
	s.prepare.Lock()
	defer s.prepare.Unlock()
	seg, last := s.lacksFile(), s.prepare.last
	s.prepare.last = seg
	if seg == nil || seg != last || seg == s.prepare.failed {
		return nil
	}
	name := filepath.Join(s.dir, preparedName)
	whole, err := s.fill(name, func() bool { return s.newest() == seg }, done)
	if err != nil {
		s.prepare.failed = seg
		if rerr := s.disk.Remove(name); !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		return fmt.Errorf("prepare a segment of the log in %s: %w", s.dir, err)
	}
	if !whole {
		return nil
	}
	w := &s.writer
	w.Lock()
	defer w.Unlock()
	w.free = append(w.free, name)
	return nil
}

// preparedName is the name of the prepared file, which no segment has: their numbers begin at 1.
var preparedName = segmentName(0, freeExt)

// lacksFile returns the newest segment if a file for the next one is to be prepared.
func (s *Shared) lacksFile() *rowSegment {
	w := &s.writer
	w.Lock()
	defer w.Unlock()
	if w.closed || w.err != nil || s.readOnly || len(w.free)+len(w.cut) > 0 {
		return nil
	}
	if seg := s.newest(); seg != nil && seg.end-segmentStart >= min(prepareFrom, s.size/4) {
		return seg
	}
	return nil
}

// fill appends zeros to a file until it has the length of a segment. It reports false if more is false or done is
// closed before.
func (s *Shared) fill(name string, more func() bool, done <-chan struct{}) (whole bool, err error) {
	f, err := s.disk.OpenFile(name, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return false, err
	}
	info, err := s.disk.Stat(name)
	if err != nil {
		return false, errors.Join(err, f.Close())
	}
	tail, err := vfs.NewTail(f, info.Size())
	if err != nil {
		return false, errors.Join(err, f.Close())
	}
	defer func() { err = errors.Join(err, tail.Close()) }()
	zeros := make([]byte, prepareBytes)
	pause := time.NewTimer(preparePause)
	defer pause.Stop()
	for more() {
		left := s.size - tail.End()
		if left <= 0 {
			return true, nil
		}
		select {
		case <-pause.C:
		case <-done:
			return false, nil
		}
		if err := tail.Append([][]byte{zeros[:min(left, prepareBytes)]}); err != nil {
			return false, err
		}
		if tail.End()%prepareDirty == 0 || tail.End() == s.size {
			if err := f.Sync(); err != nil {
				return false, err
			}
		}
		pause.Reset(preparePause)
	}
	return false, nil
}
