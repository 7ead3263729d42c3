package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rowraft/rowraft/internal/vfs"
)

// A file of zeros is written in steps of prepareBytes with a pause of preparePause before each, which is 64 MiB/s at
// most: a sync of the log may wait for one step.
const (
	prepareBytes = 256 << 10
	preparePause = 4 * time.Millisecond
	// prepareShare is the part of the newest segment that is full when the file of the next one is prepared: a server
	// that writes little needs none.
	prepareShare = 4
)

// Prepare writes a file of zeros for the next segment, if no free file is there, the newest segment is a quarter full
// and the disk has room for many. An append to a file that has its blocks takes two thirds of the time and of the CPU
// time of one that changes the length (4 to 256 KiB and a sync, ext4 without a journal), and less than half of the
// time if the file system has a journal, often a fifth. Only speed depends on the file: after an error there is none.
// Prepare returns when done is closed, too, and when the log begins another segment meanwhile: a log that grows faster
// than the file needs the disk for itself. The next call goes on.
func (s *Shared) Prepare(done <-chan struct{}) error {
	seg := s.lacksFile()
	if seg == nil {
		return nil
	}
	name := filepath.Join(s.dir, segmentName(0, freeExt)) // no segment has this number
	whole, err := s.fill(name, func() bool { return s.newest() == seg }, done)
	if err != nil {
		return errors.Join(fmt.Errorf("prepare a segment of the log in %s: %w", s.dir, err), s.disk.Remove(name))
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

// lacksFile returns the newest segment if a file for the next one is to be prepared.
func (s *Shared) lacksFile() *rowSegment {
	w := &s.writer
	w.Lock()
	defer w.Unlock()
	if w.closed || w.err != nil || s.readOnly || len(w.free)+len(w.cut) > 0 {
		return nil
	}
	seg := s.newest()
	if seg == nil || seg.end-segmentStart <= s.size/prepareShare {
		return nil
	}
	if free, err := s.disk.Free(s.dir); err != nil || free < freeSegments*s.size {
		return nil
	}
	return seg
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
	pause := time.NewTicker(preparePause)
	defer pause.Stop()
	for more() {
		left := s.size - tail.End()
		if left <= 0 {
			return true, f.Sync()
		}
		select {
		case <-pause.C:
		case <-done:
			return false, nil
		}
		if err := tail.Append([][]byte{zeros[:min(left, prepareBytes)]}); err != nil {
			return false, err
		}
	}
	return false, nil
}
