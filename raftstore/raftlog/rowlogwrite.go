package raftlog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/rowraft/rowraft"
)

// append writes the batch in write.laid durably, and returns its position. REQUIRES: write is held.
func (l *rowLog) append() (segment uint64, at int64, err error) {
	w := &l.write
	switch {
	case w.err != nil:
		return 0, 0, w.err
	case w.closed:
		return 0, 0, rowraft.Errorf(rowraft.CodeClosing, "the log in %s is closed", l.dir)
	}
	s := l.newest()
	if w.end > segmentStart && w.end+w.laid.size > l.size {
		if err := l.begin(s.number + 1); err != nil {
			w.err = fmt.Errorf("begin a segment of the log in %s: %w", l.dir, err)
			return 0, 0, w.err
		}
		s = l.newest()
	}
	w.laid.stamp(w.batch, l.tag, s.salt)
	if w.header != nil { // the first batch of the segment
		err = writeSegmentHeader(s, w.header)
	}
	if err == nil {
		err = w.laid.writeTo(s.file, w.end)
	}
	if err == nil {
		err = l.syncFile(s)
	}
	if err != nil {
		w.err = fmt.Errorf("write %s: %w", s.file.Name(), err)
		return 0, 0, w.err
	}
	w.header = nil
	at = w.end
	w.end += w.laid.size
	w.batch++
	return s.number, at, nil
}

func writeSegmentHeader(s *rowSegment, header []byte) error {
	for _, at := range []int64{0, segmentHeadCopy} {
		if _, err := s.file.WriteAt(header, at); err != nil {
			return err
		}
	}
	return nil
}

func (l *rowLog) newest() *rowSegment {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.segments[len(l.mu.segments)-1]
}

// begin adds an empty segment. The segment's header is written with its first batch, but its name is durable before
// that: otherwise, after a crash, a reused file could be found under its old name with the new content. REQUIRES: write
// is held, or the log is being opened.
func (l *rowLog) begin(number uint64) error {
	name := filepath.Join(l.dir, segmentName(number, segmentExt))
	flag := os.O_CREATE | os.O_EXCL | os.O_RDWR
	if n := len(l.write.free); n > 0 {
		if err := l.disk.Rename(l.write.free[n-1], name); err != nil {
			return err
		}
		l.write.free = l.write.free[:n-1]
		flag = os.O_RDWR
	}
	f, err := l.disk.OpenFile(name, flag)
	if err != nil {
		return err
	}
	err = l.syncDir()
	if err == nil {
		err = l.setNewest(number)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s := &rowSegment{number: number, salt: rand.Uint64(), file: f}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.write.header = rowSegmentHeader{number: number, batch: l.write.batch, salt: s.salt, first: l.mu.first,
		last: l.mu.last, owner: l.owner}.encode()
	l.write.end = segmentStart
	l.mu.segments = append(l.mu.segments, s)
	return nil
}
