package raftstore

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/logstore"
)

// waitingGroup is a group of which only the part that waits for applied entries runs.
func waitingGroup(t *testing.T) *Group {
	g := &Group{stop: make(chan struct{}), dead: make(chan struct{})}
	g.waiters = newGroupWaiters(g)
	g.ledger = logstore.NewLedger(g.waiters.moved)
	g.fsm = newFSM(&listMachine{}, g.ledger, g.fail, func(uint64, uint64) {})
	g.fsm.moved = g.waiters.moved
	g.wg.Go(func() { g.waiters.pollOwn(g.stop) })
	t.Cleanup(func() { close(g.stop); g.wg.Wait() })
	return g
}

// TestApplyWakesThoseItHasReached: each of many waiters returns when its entry is applied, not earlier and without a
// timer. A waiter that leaves is forgotten. One waiter too many is refused.
func TestApplyWakesThoseItHasReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := waitingGroup(t)
		begin := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var mu sync.Mutex
		var wg sync.WaitGroup
		woken := make(map[uint64]int)
		want := make(map[uint64]int)
		for range maxWaiters - 1 {
			index := 1 + rand.Uint64N(100)
			want[index]++
			wg.Go(func() {
				err := g.WaitApplied(ctx, rowraft.Index(index))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					woken[index]++
				}
			})
		}
		left := make(chan error)
		leaves, leave := context.WithCancel(ctx)
		go func() { left <- g.WaitApplied(leaves, 1000) }()
		synctest.Wait()
		soon, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		if err := g.WaitApplied(soon, 5); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
			t.Errorf("waiter number %d: %v, want CodeOverloaded", maxWaiters+1, err)
		}
		leave()
		if err := <-left; err == nil {
			t.Error("a waiter that left returned without an error")
		}
		for applied := uint64(1); applied <= 100; applied++ {
			g.fsm.applied.Store(applied)
			g.fsm.moved()
			synctest.Wait()
			mu.Lock()
			for index, n := range want {
				if reached := index <= applied; reached && woken[index] != n || !reached && woken[index] != 0 {
					t.Errorf("at %d, %d of %d waiters for %d have returned", applied, woken[index], n, index)
				}
			}
			mu.Unlock()
		}
		if len(g.waiters.all) != 0 || time.Since(begin) != 0 {
			t.Errorf("%d waiters are left, after %v", len(g.waiters.all), time.Since(begin))
		}
		cancel()
		wg.Wait()
	})
}

// TestNoWakeIsLost: an entry that is applied while a call begins to wait for it ends the wait.
func TestNoWakeIsLost(t *testing.T) {
	g := waitingGroup(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const entries = 20_000
	begun := make(chan rowraft.Index)
	var wg sync.WaitGroup
	wg.Go(func() {
		for index := range begun {
			g.fsm.applied.Store(uint64(index))
			g.fsm.moved()
		}
	})
	for index := rowraft.Index(1); index <= entries; index++ {
		begun <- index
		if err := g.WaitApplied(ctx, index); err != nil {
			t.Errorf("entry %d: %v", index, err)
			break
		}
	}
	close(begun)
	wg.Wait()
}

// TestNoTimerRunsForTheMachine: while waiters wait for entries that reach the machine, no timer runs. One timer runs
// for all waiters if only raft's own entries are missing.
func TestNoTimerRunsForTheMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := waitingGroup(t)
		for i, l := range []raft.LogType{raft.LogCommand, raft.LogNoop, raft.LogNoop, raft.LogCommand} {
			g.ledger.Observe(&raft.Log{Index: uint64(i) + 1, Type: l})
		}
		done := make(chan uint64, 4)
		for _, index := range []uint64{2, 3, 4} {
			go func() {
				if err := g.WaitApplied(t.Context(), rowraft.Index(index)); err == nil {
					done <- index
				}
			}()
		}
		// at sets the applied index without an event, and returns how many waiters a poller wakes.
		at := func(applied uint64) int {
			g.fsm.applied.Store(applied)
			time.Sleep(3 * ownPoll) //tidy:allow sleep virtual time
			synctest.Wait()
			return len(done)
		}
		synctest.Wait()
		g.fsm.moved()
		if n := at(4); n != 0 {
			t.Errorf("the poller woke %d waiters although the machine had not seen entry 1", n)
		}
		g.fsm.applied.Store(1)
		g.fsm.moved()
		synctest.Wait()
		if n := at(3); n != 2 { // as raft does after it has committed its own entries
			t.Errorf("only raft's own entries are missing, and the poller woke %d waiters, want those for 2 and 3", n)
		}
		if n := at(4); n != 2 {
			t.Errorf("the poller runs on for an entry of the machine: %d waiters returned, want 2", n)
		}
		g.fsm.moved()
		synctest.Wait()
		if len(done) != 3 {
			t.Errorf("%d waiters returned, want 3", len(done))
		}
	})
}
