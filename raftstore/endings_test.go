package raftstore

import (
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/semaphore"
)

// When raft stops, it forgets the requests in its queues. Their callers must not wait forever: proposals end, and no
// goroutine remains (TestMain).
func TestQueuedProposalsEndWithAFailedLog(t *testing.T) {
	var logs sync.Map
	c := patientCluster(t, 3, faultyLogs(&logs, nil))
	c.propose("before")
	l := c.leader()
	gate := make(chan struct{})
	faultyOf(&logs, l).change(func(f *faultyLog) {
		f.store = func() error { <-gate; return syscall.EIO }
	})
	// More than raft takes into one write, and more than its queue has places for.
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

// A goroutine that waits for Group.life must let virtual time advance: the simulated cluster runs on it.
func TestWaitingForLifeIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life := semaphore.NewWeighted(1)
		if !life.TryAcquire(1) || life.TryAcquire(1) {
			t.Error("TryAcquire took twice what is there once")
		}
		time.AfterFunc(time.Hour, func() { life.Release(1) })
		if err := life.Acquire(t.Context(), 1); err != nil { // waits for an hour
			t.Error(err)
		}
	})
}
