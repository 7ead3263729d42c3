package raftstore

import (
	"errors"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// Raft forgets what waits in its queues when it stops. Whoever waits for that must
// not wait for ever: proposals end, and no goroutine stays (TestMain).
func TestQueuedProposalsEndWithAFailedLog(t *testing.T) {
	var logs sync.Map
	c := patientCluster(t, 3, faultyLogs(&logs, nil))
	c.propose("before")
	l := c.leader()
	gate := make(chan struct{})
	faultyOf(&logs, l).change(func(f *faultyLog) {
		f.store = func() error { <-gate; return syscall.EIO }
	})
	// More than raft takes into one write, and than its own queue holds.
	var futures []*Future
	for range 4 * raft.DefaultConfig().MaxAppendEntries {
		futures = append(futures, l.group.Propose([]byte("x")))
	}
	close(gate)
	waitFatal(t, l)
	limit := time.After(2 * time.Minute)
	for i, f := range futures {
		select {
		case <-f.done:
		case <-limit:
			t.Fatalf("proposal %d of %d has not ended", i, len(futures))
		}
	}
}

// A disk that cannot be asked whether a name is free is an error, not a name that is
// taken: the search for a free one would not end.
func TestSnapshotOnADiskThatCannotBeRead(t *testing.T) {
	disk := vfs.NewFaulty(vfs.NewMem())
	s, err := openSnapshotStore(disk, "/snapshots", testOwner.String(), slog.New(slog.DiscardHandler), func(string, error) {})
	if err != nil {
		t.Fatal(err)
	}
	// Not for ever: else the test would not end either.
	if err := disk.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpList}, Times: 1, Err: "EIO"}); err != nil {
		t.Fatal(err)
	}
	if k, err := s.Create(1, 5, 1, testConfiguration, 1, nil); !errors.Is(err, syscall.EIO) {
		t.Errorf("Create = %v, %v; want EIO", k, err)
	}
}

// What is held across waits must let virtual time go on.
func TestLatchIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := make(latch, 1)
		l.Lock()
		if l.TryLock() {
			t.Error("TryLock took what is held")
		}
		time.AfterFunc(time.Hour, l.Unlock)
		l.Lock() // waits for an hour
		unlock := l.Unlock
		unlock()
		if !l.TryLock() {
			t.Error("TryLock of what is free")
		}
	})
}
