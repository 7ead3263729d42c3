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

// prepare calls Prepare for a log that did not begin a segment since the call before.
func prepare(l testRowLog, done <-chan struct{}) error {
	l.shared.prepare.last = l.shared.newest()
	return l.shared.Prepare(done)
}

// A log that has begun a segment since the last call has no time for a preparation.
func TestAFastLogIsNotPrepared(t *testing.T) {
	disk := vfs.NewMem()
	l := openTestRowLog(t, disk)
	defer l.Close()
	last := fillRowLog(t, l)
	for call, want := range []int64{-1, l.shared.size} {
		if err := l.shared.Prepare(nil); err != nil || sizeOf(t, disk, preparedFile) != want {
			t.Errorf("call %d: %v and a file of %d bytes, want %d", call, err, sizeOf(t, disk, preparedFile), want)
		}
	}
	for n := uint64(1); n <= 8; n++ { // in a new segment, the prepared file
		if err := l.StoreLogs([]*raft.Log{sealedEntry(t, last+n, 1, make([]byte, 600))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.shared.Prepare(nil); err != nil || sizeOf(t, disk, preparedFile) != -1 {
		t.Errorf("right after a segment began: %v and a file of %d bytes, want none", err, sizeOf(t, disk, preparedFile))
	}
}

// A segment that is a new file, and so grows, ends when a prepared file is there. The next one keeps it until it is
// full.
func TestANewSegmentTakesThePreparedFile(t *testing.T) {
	disk := vfs.NewMem()
	l := openTestRowLog(t, disk)
	check := func(want int64) {
		t.Helper()
		if err := prepare(l, nil); err != nil {
			t.Fatal(err)
		}
		if got := sizeOf(t, disk, preparedFile); got != want {
			t.Errorf("the prepared file has %d bytes, want %d", got, want)
		}
	}
	check(-1)
	last := fillRowLog(t, l)
	check(l.shared.size)
	check(l.shared.size)
	if n := len(l.shared.writer.free); n != 1 {
		t.Errorf("%d files are free, want 1", n)
	}
	for range 3 {
		last++
		if err := l.StoreLogs([]*raft.Log{sealedEntry(t, last, 1, make([]byte, 1000))}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(segmentFiles(t, disk)); n != 2 {
		t.Errorf("%d segments, want 2", n)
	}
	if got := sizeOf(t, disk, segmentFiles(t, disk)[1]); got != l.shared.size || sizeOf(t, disk, preparedFile) != -1 {
		t.Errorf("the second segment has %d bytes, want the prepared file", got)
	}
	check(-1) // the new segment is nearly empty
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = openTestRowLog(t, disk)
	defer l.Close()
	if got, _ := l.LastIndex(); got != last {
		t.Errorf("the log ends at entry %d, want %d", got, last)
	}
}

// A preparation that ends early continues later, also in the next process.
func TestAPreparationContinues(t *testing.T) {
	disk := vfs.NewMem()
	l := openTestRowLog(t, disk)
	fillRowLog(t, l)
	done := make(chan struct{})
	close(done)
	for life := range 2 {
		if err := prepare(l, done); err != nil || sizeOf(t, disk, preparedFile) < 0 {
			t.Fatalf("%v and a file of %d bytes, want the start of one", err, sizeOf(t, disk, preparedFile))
		}
		if n := len(l.shared.writer.free); n != 0 {
			t.Errorf("process %d: %d files are free, want none yet", life, n)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = openTestRowLog(t, disk)
	}
	if err := prepare(l, nil); err != nil || len(l.shared.writer.free) != 1 {
		t.Errorf("%d files are free (%v), want 1", len(l.shared.writer.free), err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	putFile(t, disk, preparedFile, make([]byte, MinSegmentBytes)) // the size with which the helper opens the log
	l = openTestRowLog(t, disk)
	defer l.Close()
	if n := len(l.shared.writer.free); n != 1 {
		t.Errorf("the next process finds %d free files, want 1", n)
	}
}

// A disk that fails leaves no file, and the log continues. The file is not tried again before the next segment.
func TestAFileThatCannotBePrepared(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpCreate, vfs.OpWrite, vfs.OpSync} {
		disk := vfs.NewFaulty(vfs.NewMem())
		l := openTestRowLog(t, disk)
		defer l.Close()
		last := fillRowLog(t, l)
		if err := disk.Set(vfs.DiskFault{Ops: []vfs.Op{op}, Err: "EIO", Times: 1}); err != nil {
			t.Fatal(err)
		}
		for try, want := range []error{syscall.EIO, nil} {
			if err := prepare(l, nil); !errors.Is(err, want) || sizeOf(t, disk, preparedFile) != -1 {
				t.Errorf("%v fails, try %d: %v and a file of %d bytes, want %v and none", op, try, err,
					sizeOf(t, disk, preparedFile), want)
			}
		}
		if err := l.StoreLogs([]*raft.Log{sealedEntry(t, last+1, 1, nil)}); err != nil {
			t.Errorf("an append afterwards: %v", err)
		}
	}
}

// The power goes at any moment of a preparation and of the appends that use its file.
func TestPowerLossWhileAFileIsPrepared(t *testing.T) {
	for step := 1; ; step++ {
		for seed := range uint64(10) {
			mem := vfs.NewMem()
			disk := vfs.NewFaulty(mem)
			l := openTestRowLog(t, disk)
			acked := fillRowLog(t, l)
			want := map[uint64]*raft.Log{}
			for i := range acked {
				want[i+1] = sealedEntry(t, i+1, 1, make([]byte, 500))
			}
			var crashed *vfs.Mem
			var last uint64 // acknowledged when the power went
			disk.OnStep(func(s vfs.Step) {
				if s.N == step {
					crashed, last = mem.Crash(seed), acked
				}
			})
			for range 2 {
				err := prepare(l, nil)
				for range 6 {
					if err == nil {
						want[acked+1] = sealedEntry(t, acked+1, 1, make([]byte, 900))
						if err = l.StoreLogs([]*raft.Log{want[acked+1]}); err == nil {
							acked++
						}
					}
				}
				if err != nil && !errors.Is(err, vfs.ErrCrashed) {
					t.Fatal(err)
				}
			}
			l.Close() // may fail: the disk is gone
			if crashed == nil {
				if step < 20 {
					t.Errorf("%d steps, want more", step)
				}
				return
			}
			for range 2 { // the second process finds what the first one has left
				if end, bad := readRowLog(t, crashed, want); bad || end < last || end > last+1 {
					t.Fatalf("step %d, seed %d: the log ends at entry %d (damaged: %v), want %d or the next", step, seed, end, bad,
						last)
				}
			}
		}
	}
}

// The power goes at any moment of an append to the file of a segment that was removed just before, or to a prepared
// file.
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
// appends one more, for which a segment begins whose file was that of another one, or was prepared.
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
		err = prepare(l, nil)
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
