package raftstore

import (
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
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
