package raftstore

import (
	"container/heap"
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
)

const (
	// maxWaiters bounds the calls that wait for a group to apply an entry.
	maxWaiters = 4096
	// ownPoll is the interval of checks of the applied index while the first waiter waits only for entries of raft's
	// own: no event reports that raft committed one.
	ownPoll = 2 * time.Millisecond
)

// waiters holds the calls that wait for a group to apply an entry. Apply wakes those whose entry is applied and touches
// no others.
type waiters struct {
	// first is the lowest index that a call waits for, math.MaxUint64 if there is none. It is stored before a waiter
	// reads the applied index, and loaded after that has changed, so no wake-up is lost.
	first atomic.Uint64
	kick  chan struct{} // capacity 1: wakes pollOwn

	applied func() uint64           // index through which the machine has seen the log
	onlyOwn func(index uint64) bool // the machine lacks only entries of raft's own up to index

	mu  sync.Mutex
	all waiterHeap // guarded by mu
}

type waiter struct {
	index uint64
	at    int           // index in the heap; -1: woken
	done  chan struct{} // closed when index is applied
}

func newWaiters(applied func() uint64, onlyOwn func(index uint64) bool) *waiters {
	w := &waiters{kick: make(chan struct{}, 1), applied: applied, onlyOwn: onlyOwn}
	w.first.Store(math.MaxUint64)
	return w
}

// add returns nil if there are maxWaiters already.
func (w *waiters) add(index uint64) *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) >= maxWaiters {
		return nil
	}
	one := &waiter{index: index, done: make(chan struct{})}
	heap.Push(&w.all, one)
	w.first.Store(w.all[0].index)
	return one
}

func (w *waiters) remove(one *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one.at >= 0 {
		heap.Remove(&w.all, one.at)
		w.storeFirstLocked()
	}
}

// wake wakes the waiters of all entries up to applied.
func (w *waiters) wake(applied uint64) {
	if applied < w.first.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.all) > 0 && w.all[0].index <= applied {
		close(heap.Pop(&w.all).(*waiter).done)
	}
	w.storeFirstLocked()
}

func (w *waiters) storeFirstLocked() {
	first := uint64(math.MaxUint64)
	if len(w.all) > 0 {
		first = w.all[0].index
	}
	w.first.Store(first)
}

// waiterHeap implements heap.Interface, the lowest index first.
type waiterHeap []*waiter

func (h waiterHeap) Len() int           { return len(h) }
func (h waiterHeap) Less(i, j int) bool { return h[i].index < h[j].index }
func (h waiterHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}
func (h *waiterHeap) Push(x any) {
	x.(*waiter).at = len(*h)
	*h = append(*h, x.(*waiter))
}
func (h *waiterHeap) Pop() any {
	last := len(*h) - 1
	one := (*h)[last]
	one.at = -1
	(*h)[last] = nil
	*h = (*h)[:last]
	return one
}

// newGroupWaiters returns the waiters of g.
func newGroupWaiters(g *Group) *waiters {
	return newWaiters(
		func() uint64 { return uint64(g.AppliedIndex()) },
		func(index uint64) bool { return g.ledger.ThroughOwn(g.fsm.applied.Load(), index) >= index },
	)
}

// WaitApplied returns when the machine has seen the log through index.
//
// Errors: CodeOverloaded if maxWaiters calls are waiting; CodeClosing if the group stops first; the error of ctx.
func (g *Group) WaitApplied(ctx context.Context, index rowraft.Index) error {
	if g.AppliedIndex() >= index {
		return nil
	}
	w := g.waiters.add(uint64(index))
	if w == nil {
		return &rowraft.OverloadedError{What: fmt.Sprintf("group %s: %d calls wait for entries to be applied, as many as can",
			g.cfg.ID, maxWaiters), Limit: "waiters", RetryAfter: 100 * time.Millisecond}
	}
	defer g.waiters.remove(w)
	g.waiters.moved() // an entry that was applied before add has not woken w
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-g.stop:
		return rowraft.Errorf(rowraft.CodeClosing, "group %s is closing", g.cfg.ID)
	case <-g.dead:
		return rowraft.Errorf(rowraft.CodeClosing, "the group stopped: %w", g.Err())
	}
}

// moved wakes the waiters of applied entries, and pollOwn if the first waiter waits only for raft's own entries. It is
// called after the applied index has changed, and after an entry of raft's own is in the log.
func (w *waiters) moved() {
	if w.first.Load() == math.MaxUint64 {
		return
	}
	w.wake(w.applied())
	if w.awaitsOwn() {
		select {
		case w.kick <- struct{}{}:
		default:
		}
	}
}

// awaitsOwn reports whether, up to the first waiter's entry, the machine lacks only entries of raft's own.
func (w *waiters) awaitsOwn() bool {
	first := w.first.Load()
	return first != math.MaxUint64 && w.onlyOwn(first)
}

// pollOwn wakes the waiters of raft's own entries until stop is closed.
func (w *waiters) pollOwn(stop <-chan struct{}) {
	for {
		select {
		case <-w.kick:
		case <-stop:
			return
		}
		for t := time.NewTimer(ownPoll); w.awaitsOwn(); t.Reset(ownPoll) {
			w.wake(w.applied())
			select {
			case <-t.C:
			case <-stop:
				return
			}
		}
	}
}
