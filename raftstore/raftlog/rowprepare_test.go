package raftlog

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/internal/vfs"
)

const preparedFile = "/log/0000000000000000.free"

// sizeOf returns the length of a file; -1: there is none.
func sizeOf(t *testing.T, disk vfs.FS, name string) int64 {
	t.Helper()
	info, err := disk.Stat(name)
	if errors.Is(err, os.ErrNotExist) {
		return -1
	}
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// fillRowLog appends entries to an empty log until its newest segment, the first one, is a third full.
func fillRowLog(t *testing.T, l testRowLog) (last uint64) {
	t.Helper()
	for l.shared.newest() == nil || l.shared.newest().end < segmentStart+l.shared.size/3 {
		last++
		if err := l.StoreLogs([]*raft.Log{sealedEntry(t, last, 1, make([]byte, 500))}); err != nil {
			t.Fatal(err)
		}
	}
	return last
}

func TestANewSegmentTakesThePreparedFile(t *testing.T) {
	disk := vfs.NewMem()
	l := openTestRowLog(t, disk)
	prepare := func(want int64) {
		t.Helper()
		if err := l.shared.Prepare(nil); err != nil {
			t.Fatal(err)
		}
		if got := sizeOf(t, disk, preparedFile); got != want {
			t.Errorf("the prepared file has %d bytes, want %d", got, want)
		}
	}
	prepare(-1)
	last := fillRowLog(t, l)
	prepare(l.shared.size)
	prepare(l.shared.size)
	if n := len(l.shared.writer.free); n != 1 {
		t.Errorf("%d files are free, want 1", n)
	}
	for len(segmentFiles(t, disk)) < 2 {
		last++
		if err := l.StoreLogs([]*raft.Log{sealedEntry(t, last, 1, make([]byte, 1000))}); err != nil {
			t.Fatal(err)
		}
	}
	if got := sizeOf(t, disk, segmentFiles(t, disk)[1]); got != l.shared.size || sizeOf(t, disk, preparedFile) != -1 {
		t.Errorf("the second segment has %d bytes, want the prepared file", got)
	}
	prepare(-1) // the new segment is short
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = openTestRowLog(t, disk)
	defer l.Close()
	if got, _ := l.LastIndex(); got != last {
		t.Errorf("the log ends at entry %d, want %d", got, last)
	}
}

// A preparation that ends early goes on later, also in the next process.
func TestAPreparationGoesOn(t *testing.T) {
	disk := vfs.NewMem()
	l := openTestRowLog(t, disk)
	fillRowLog(t, l)
	done := make(chan struct{})
	close(done)
	if err := l.shared.Prepare(done); err != nil || sizeOf(t, disk, preparedFile) < 0 {
		t.Fatalf("%v and a file of %d bytes, want the begin of one", err, sizeOf(t, disk, preparedFile))
	}
	if n := len(l.shared.writer.free); n != 0 {
		t.Errorf("%d files are free, want none yet", n)
	}
	if err := l.shared.Prepare(nil); err != nil || len(l.shared.writer.free) != 1 {
		t.Errorf("%d files are free (%v), want 1", len(l.shared.writer.free), err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = openTestRowLog(t, disk)
	defer l.Close()
	if n := len(l.shared.writer.free); n != 1 {
		t.Errorf("the next process finds %d free files, want 1", n)
	}
}

// A disk that fails, or is nearly full, leaves no file, and the log goes on.
func TestAFileThatCannotBePreparedIsNotMissed(t *testing.T) {
	mem := vfs.NewMem()
	disk := vfs.NewFaulty(mem)
	l := openTestRowLog(t, disk)
	defer l.Close()
	last := fillRowLog(t, l)
	for _, op := range []vfs.Op{vfs.OpWrite, vfs.OpSync} {
		if err := disk.Set(vfs.DiskFault{Ops: []vfs.Op{op}, Err: "EIO", Times: 1}); err != nil {
			t.Fatal(err)
		}
		if err := l.shared.Prepare(nil); !errors.Is(err, syscall.EIO) || sizeOf(t, disk, preparedFile) != -1 {
			t.Errorf("after a failed %v: %v and a file of %d bytes, want EIO and none", op, err,
				sizeOf(t, disk, preparedFile))
		}
	}
	mem.Limit(mem.Used() + freeSegments*l.shared.size - 1)
	if err := l.shared.Prepare(nil); err != nil || sizeOf(t, disk, preparedFile) != -1 {
		t.Errorf("with a disk that is nearly full: %v and a file of %d bytes", err, sizeOf(t, disk, preparedFile))
	}
	if err := l.StoreLogs([]*raft.Log{sealedEntry(t, last+1, 1, nil)}); err != nil {
		t.Errorf("an append afterwards: %v", err)
	}
}

// The power goes at any moment of an append to a segment that went just before, or to a prepared file.
func TestRowLogPowerLossInAUsedSegment(t *testing.T) {
	for _, prepared := range []bool{false, true} {
		powerLossInAUsedSegment(t, prepared)
	}
}

func powerLossInAUsedSegment(t *testing.T, prepared bool) {
	t.Helper()
	const least = 6 // rename, its sync, META and its sync, the headers with the entry, their sync
	for step := 1; ; step++ {
		for seed := range uint64(25) {
			var crashed *vfs.Mem
			last, want := appendToAUsedSegment(t, prepared, func(disk *vfs.Faulty, mem *vfs.Mem) {
				disk.OnStep(func(s vfs.Step) {
					if s.N == step {
						crashed = mem.Crash(seed)
					}
				})
			})
			if crashed == nil { // the append has no such step
				if step <= least {
					t.Errorf("%d steps, want at least %d", step-1, least)
				}
				return
			}
			if end, bad := readRowLog(t, crashed, want); bad || end != last && end != last+1 {
				t.Errorf("step %d, seed %d: the log ends at entry %d (damaged: %v), want %d or the next", step, seed, end, bad,
					last)
			}
		}
	}
}

// appendToAUsedSegment makes a log that ends at entry last, and calls before and
// appends one more, for which a segment begins that went just now, or whose file was prepared.
func appendToAUsedSegment(t *testing.T, prepared bool, before func(*vfs.Faulty, *vfs.Mem)) (last uint64,
	want map[uint64]*raft.Log) {
	t.Helper()
	mem := vfs.NewMem()
	disk := vfs.NewFaulty(mem)
	l := openTestRowLog(t, disk)
	defer l.Close()
	want = map[uint64]*raft.Log{}
	store := func(size int) error {
		last++
		want[last] = sealedEntry(t, last, 1, bytes.Repeat([]byte{byte(last)}, size))
		return l.StoreLogs([]*raft.Log{want[last]})
	}
	var err error
	for err == nil && len(segmentFiles(t, disk)) < 3 {
		err = store(3000)
	}
	if err == nil {
		err = store(3900) // nothing more fits
	}
	switch {
	case err == nil && prepared:
		err = l.shared.Prepare(nil)
	case err == nil:
		err = errors.Join(l.DeleteRange(1, last-4), l.Reclaim())
	}
	if err != nil || len(l.shared.writer.free) == 0 {
		t.Fatalf("%d segments went, %v", len(l.shared.writer.free), err)
	}
	before(disk, mem)
	if err := store(8000); err != nil && !errors.Is(err, vfs.ErrCrashed) {
		t.Fatal(err)
	}
	return last - 1, want
}
