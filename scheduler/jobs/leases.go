package jobs

import (
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// leases holds when this leader last heard from each training worker, by incarnation. It is soft state: a new leader
// gives every worker a fresh lease.
type leases struct {
	mu   sync.Mutex
	term rowraft.Term // of list
	list map[uint64]lastHeard
}

// lastHeard is when and what this leader last heard from a worker.
type lastHeard struct {
	heard time.Time
	beat  *rowraftv1.WorkerBeat // nil: none yet
	spoke time.Time             // when beat arrived
}

func (w *leases) get(incarnation uint64) (lastHeard, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one, known := w.list[incarnation]
	return one, known
}

// heard renews the lease of a worker. beat is its last report; nil keeps the one before.
func (w *leases) heard(incarnation uint64, beat *rowraftv1.WorkerBeat) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.list == nil {
		w.list = make(map[uint64]lastHeard)
	}
	one := w.list[incarnation]
	one.heard = time.Now()
	if beat != nil {
		one.beat, one.spoke = beat, one.heard
	}
	w.list[incarnation] = one
}

// startTerm clears the list at the first call of a new term.
func (w *leases) startTerm(term rowraft.Term) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// A worker has renewed its lease with the leader of the last term. This leader has not heard it yet, and counts from
	// its first look (silence).
	if w.term != term {
		w.term, w.list = term, nil
	}
}

// silence returns how long a member has been silent, and its last beat. A member that this leader has not heard from
// counts as heard now.
func (w *leases) silence(incarnation uint64) (time.Duration, *rowraftv1.WorkerBeat) {
	if one, known := w.get(incarnation); known {
		return time.Since(one.heard), one.beat
	}
	w.heard(incarnation, nil)
	return 0, nil
}

// discountPause subtracts the time for which this process was suspended from the silence of every worker.
func (w *leases) discountPause(lost time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for incarnation, one := range w.list {
		if one.heard = one.heard.Add(lost); one.heard.After(now) {
			one.heard = now
		}
		w.list[incarnation] = one
	}
}

// keep deletes the workers that are not in present.
func (w *leases) keep(present map[uint64]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for incarnation := range w.list {
		if !present[incarnation] {
			delete(w.list, incarnation)
		}
	}
}
