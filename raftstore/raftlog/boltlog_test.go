package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"

	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/entry"
)

func openTestBolt(t *testing.T, disk vfs.FS, dir string) *boltLog {
	t.Helper()
	l, err := openBoltLog(disk, dir, testOwner, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func statBolt(t *testing.T, dir string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, boltName))
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// endBolt ends a log as the death of its process does.
func endBolt(t *testing.T, l *boltLog) {
	t.Helper()
	if err := errors.Join(l.db.Close(), l.metaStore.Close()); err != nil {
		t.Fatal(err)
	}
}

// Unless the last stop was clean the file is copied, and the copy is durable before
// the log answers anything.
func TestBoltIsCopiedUnlessItsLastStopWasClean(t *testing.T) {
	dir := t.TempDir()
	disk := vfs.NewFaulty(vfs.OS)
	l := openTestBolt(t, disk, dir)
	last := uint64(0)
	for _, clean := range []bool{true, false, true, true, false, false} {
		last++
		if err := l.StoreLogs([]*raft.Log{sealedEntry(t, last, 1, []byte("entry"))}); err != nil {
			t.Fatal(err)
		}
		before := statBolt(t, dir)
		if clean {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		} else {
			endBolt(t, l)
		}
		var steps []string
		disk.OnStep(func(s vfs.Step) { steps = append(steps, fmt.Sprint(s.Op, " ", filepath.Base(s.Path))) })
		l = openTestBolt(t, disk, dir)
		if same := os.SameFile(before, statBolt(t, dir)); same != clean {
			t.Errorf("clean stop %v: the file is the same: %v", clean, same)
		}
		base := filepath.Base(dir)
		meta := []string{"create META.new", "write META.new", "sync META.new", "rename META", "syncdir " + base}
		copied := []string{"create raft.db.new", "write raft.db.new", "sync raft.db.new", "rename raft.db", "syncdir " + base}
		want := meta
		if !clean {
			want = append(want, copied...)
		}
		if got := slices.Compact(steps); !slices.Equal(got, want) {
			t.Errorf("clean stop %v: the steps of the start are %q, want %q", clean, got, want)
		}
		var e raft.Log
		if err := errors.Join(l.GetLog(last, &e), entry.Check(&e)); err != nil {
			t.Errorf("clean stop %v: entry %d: %v", clean, last, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// A start that cannot make the copy durable fails, and the next one copies again.
func TestBoltDoesNotStartWithoutADurableCopy(t *testing.T) {
	dir := t.TempDir()
	l := openTestBolt(t, vfs.OS, dir)
	if err := l.StoreLogs([]*raft.Log{sealedEntry(t, 1, 1, []byte("entry"))}); err != nil {
		t.Fatal(err)
	}
	endBolt(t, l)
	first := statBolt(t, dir)
	for _, fault := range []vfs.DiskFault{
		{Ops: []vfs.Op{vfs.OpSync}, Path: boltTemp, Err: "EIO"},
		{Ops: []vfs.Op{vfs.OpWrite}, Path: boltTemp, Err: "ENOSPC"},
		{Ops: []vfs.Op{vfs.OpRename}, Path: boltName, Err: "EIO"},
		{Ops: []vfs.Op{vfs.OpSyncDir}, After: 1, Err: "EIO"}, // the one after that of META
	} {
		disk := vfs.NewFaulty(vfs.OS)
		if err := disk.Set(fault); err != nil {
			t.Fatal(err)
		}
		l, err := openBoltLog(disk, dir, testOwner, slog.New(slog.DiscardHandler))
		if err == nil {
			l.Close()
			t.Fatalf("%v %s: the log opens", fault.Ops, fault.Path)
		}
		if !strings.Contains(err.Error(), "did not stop cleanly") || !strings.Contains(err.Error(), dir) {
			t.Errorf("%v %s: %v, want what it did and where", fault.Ops, fault.Path, err)
		}
	}
	before := statBolt(t, dir)
	if os.SameFile(first, before) {
		t.Error("the rename whose sync failed is not there")
	}
	l = openTestBolt(t, vfs.OS, dir)
	if os.SameFile(before, statBolt(t, dir)) {
		t.Error("the file was taken over without a copy")
	}
	var e raft.Log
	if err := errors.Join(l.GetLog(1, &e), entry.Check(&e), l.Close()); err != nil {
		t.Error(err)
	}
}

// The fdatasync of an append fails, on a real disk: the stop of that process is not
// clean, however it ends.
func TestBoltStopIsNotCleanAfterAFailedSync(t *testing.T) {
	if dir := os.Getenv("ROWRAFT_TEST_BOLT"); dir != "" {
		boltWithFailingSync(t, dir)
		return
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestBoltStopIsNotCleanAfterAFailedSync$", "-test.v")
	cmd.Env = append(os.Environ(), "ROWRAFT_TEST_BOLT="+dir)
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "seccomp is not allowed") {
		t.Skip("seccomp is not allowed here")
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	before := statBolt(t, dir)
	l := openTestBolt(t, vfs.OS, dir)
	if os.SameFile(before, statBolt(t, dir)) {
		t.Error("the file was taken over without a copy")
	}
	var e raft.Log
	if err := errors.Join(l.GetLog(5, &e), entry.Check(&e), l.Close()); err != nil {
		t.Error(err)
	}
}

// boltWithFailingSync runs in a process of its own: appends, then has the kernel
// answer EIO to every fdatasync, appends, and closes the log.
func boltWithFailingSync(t *testing.T, dir string) {
	l := openTestBolt(t, vfs.OS, dir)
	for i := uint64(1); i <= 5; i++ {
		if err := l.StoreLogs([]*raft.Log{sealedEntry(t, i, 1, []byte("entry"))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := failDataSync(); err != nil {
		t.Fatalf("seccomp is not allowed: %v", err)
	}
	if err := l.StoreLogs([]*raft.Log{sealedEntry(t, 6, 1, []byte("entry"))}); !errors.Is(err, syscall.EIO) {
		t.Fatalf("an append whose fdatasync fails: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// failDataSync makes every fdatasync of the process fail with EIO.
func failDataSync() error {
	runtime.LockOSThread()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FDATASYNC, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}
