package raftstore

import (
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// flushFS counts what data files are asked to send to the disk, in order and without
// gaps, or fails where somebody waits for it.
type flushFS struct {
	vfs.FS
	sent, there, synced int64
	fail                error
}

func (f *flushFS) OpenFile(name string, flag int) (vfs.File, error) {
	file, err := f.FS.OpenFile(name, flag)
	if err != nil || !strings.HasSuffix(name, "/data") {
		return file, err
	}
	return &flushFile{file, f}, nil
}

type flushFile struct {
	vfs.File
	fs *flushFS
}

func (f *flushFile) Flush(from, to int64, wait bool) error {
	last := &f.fs.sent
	if wait {
		last = &f.fs.there
	}
	if from != *last || to <= from {
		return errors.New("out of order")
	}
	*last = to
	if wait {
		return f.fs.fail
	}
	return nil
}

func (f *flushFile) Sync() error {
	f.fs.synced = f.fs.sent
	return f.File.Sync()
}

// TestSnapshotsAreSentToTheDiskAsTheyAreWritten: little is left to the sync at the end,
// before which an fsync of the log would wait, and a disk that fails meanwhile fails the
// snapshot: the sync may not repeat the error. One in a hurry leaves all to the sync, as
// memory takes it faster.
func TestSnapshotsAreSentToTheDiskAsTheyAreWritten(t *testing.T) {
	const size = 10<<20 + 12345
	for _, tc := range []struct {
		name  string
		yield bool // as the snapshots that are taken; else one that was sent
		due   bool
		fail  error
	}{
		{"taken", true, false, nil}, {"taken in a hurry", true, true, nil}, {"received", false, false, nil},
		{"taken, on a bad disk", true, false, errors.New("bad disk")}, {"received, on a bad disk", false, false, errors.New("bad disk")},
	} {
		disk := &flushFS{FS: vfs.NewMem(), fail: tc.fail}
		s, err := openSnapshotStore(disk, "/snapshots", slog.New(slog.DiscardHandler), func(string, error) {})
		if err != nil {
			t.Fatal(err)
		}
		sink, err := s.Create(1, 7, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		y := &yield{snap: &fakeYield{}, budget: 1 << 30, log: func() int64 { return 0 }, writing: func() bool { return false },
			hurry: func() bool { return tc.due }}
		var w io.Writer = sink
		if tc.yield {
			y.settle = (&watchedSink{SnapshotSink: sink}).settles()
			w = &yieldingWriter{w: sink, yield: y}
		}
		var werr error
		for left := size; left > 0 && werr == nil; left -= min(left, 1<<18) {
			_, werr = w.Write(make([]byte, min(left, 1<<18)))
		}
		if err := errors.Join(werr, sink.Close()); !errors.Is(err, tc.fail) || (err != nil) != (tc.fail != nil) {
			t.Fatalf("%s: the snapshot ended with %v", tc.name, err)
		}
		if tc.fail != nil {
			if list, err := s.List(); len(list) != 0 || err != nil {
				t.Errorf("%s: it is listed: %d, %v", tc.name, len(list), err)
			}
			continue
		}
		rest := size - disk.synced
		if tc.due && rest != size || !tc.due && (rest > 2*snapFlushBytes || disk.sent-disk.there > 2*snapFlushBytes) {
			t.Errorf("%s: %d bytes were left to the sync; %d were sent and %d waited for", tc.name, rest, disk.sent, disk.there)
		}
	}
}
