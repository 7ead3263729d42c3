package node

import (
	"context"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
)

// bound is how old the rows of a read may be.
type bound struct {
	maxAge time.Duration
	maxLag uint64 // 0: any
}

// proof says that a replica has everything that was acknowledged before a moment.
type proof struct {
	sent moment // when the replica asked the leader; zero: it has proved nothing
	lag  uint64 // entries known to be committed and not applied
}

// age is 0 of no proof.
func (p proof) age() time.Duration {
	if a := p.sent.age(); a == 0 || !canary.Is(canary.YoungClaims) {
		return a
	}
	return 1
}

func (p proof) young(maxAge time.Duration) bool { a := p.age(); return a > 0 && a <= maxAge }

func (p proof) meets(b bound) bool {
	return p.young(b.maxAge) && (b.maxLag == 0 || p.lag <= b.maxLag)
}

// freshness knows how old the state of a replica may be, whoever leads.
//
// A replica asks the leader for an index that covers all that is acknowledged (a
// probe: the leader proves by a majority that it leads, after it was asked). Once the
// replica has applied that index, its state is as new as the moment at which it asked.
// That is counted on its own clock from before the question, so neither the leader's
// clock, nor how long an answer took, nor a stop of either process makes it younger
// than it is. What raft says of the last contact is no proof: a leader may not lead any
// more, and a follower that gets no entries hears heartbeats.
//
// Probes are made while somebody reads, and for keepFor afterwards: a quarter of the age
// that was asked for apart, so that reads find a proof that outlasts a change of leaders.
// All readers share them.
type freshness struct {
	ctx     context.Context // ends with the replica
	probe   func(context.Context) (rowraft.Index, error)
	applied func() rowraft.Index
	wait    func(context.Context, rowraft.Index) error // until it is applied
	boot    func() int64                               // clock of the kernel

	urgent chan struct{} // capacity 1: a reader waits for the next probe
	keeper sync.WaitGroup

	mu      sync.Mutex
	proved  moment
	known   rowraft.Index // highest answer to a probe
	open    []answered    // above what is applied, ascending
	ended   chan struct{} // closed when the next probe has ended
	keeping bool          // the keeper runs
	maxAge  time.Duration // the shortest that was asked for
	askedAt time.Time     // when it was, last
	closed  bool
}

// answered is a probe whose index is not applied yet.
type answered struct {
	sent  moment
	index rowraft.Index
}

const (
	// keepFor is how long after a read its replica goes on proving its age.
	keepFor = 30 * time.Second
	// maxOpen bounds the answers that a replica which lags remembers.
	maxOpen = 8

	probeTimeout  = time.Second
	probeRetry    = 20 * time.Millisecond // after one that failed, then longer up to
	probeRetryMax = 100 * time.Millisecond
	minProbePause = 5 * time.Millisecond
	maxProbePause = 2500 * time.Millisecond
)

func newFreshness(ctx context.Context, probe func(context.Context) (rowraft.Index, error), applied func() rowraft.Index, wait func(context.Context, rowraft.Index) error) *freshness {
	return &freshness{
		ctx: ctx, probe: probe, applied: applied, wait: wait, boot: bootTime,
		urgent: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// close waits for the keeper, which ends with ctx.
func (f *freshness) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.keeper.Wait()
}

// await returns a proof that meets b, of a state that reads see from now on. When ctx
// ends first it returns the best it has, and false.
func (f *freshness) await(ctx context.Context, b bound) (proof, bool) {
	for {
		p, next := f.look(b)
		if p.meets(b) {
			return p, true
		}
		if next.index > 0 {
			if f.wait(ctx, next.index) != nil {
				return p, false
			}
			continue
		}
		select {
		case <-next.ended:
		case <-ctx.Done():
			return p, false
		case <-f.ctx.Done():
			return p, false
		}
	}
}

// event is what may make a replica fresh enough: an index being applied, or, if that is
// 0, the end of a probe.
type event struct {
	index rowraft.Index
	ended <-chan struct{}
}

// look returns the present proof, has the keeper go on, and tells what to wait for if
// the proof does not meet b.
func (f *freshness) look(b bound) (proof, event) {
	applied := f.applied()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settleLocked(applied)
	p := proof{sent: f.proved}
	if f.known > applied {
		p.lag = uint64(f.known - applied)
	}
	f.demandLocked(b.maxAge)
	switch {
	case p.meets(b):
		return p, event{}
	case p.young(b.maxAge):
		return p, event{index: f.known - rowraft.Index(b.maxLag)}
	}
	for _, a := range f.open {
		if a.sent.age() <= b.maxAge {
			return p, event{index: a.index}
		}
	}
	select {
	case f.urgent <- struct{}{}:
	default:
	}
	return p, event{ended: f.ended}
}

// settleLocked makes proofs of the answers that are applied.
func (f *freshness) settleLocked(applied rowraft.Index) {
	for len(f.open) > 0 && f.open[0].index <= applied {
		f.proved = f.open[0].sent
		f.open = f.open[1:]
	}
}

// demandLocked notes that a read wants maxAge, and starts the keeper.
func (f *freshness) demandLocked(maxAge time.Duration) {
	t := time.Now()
	if maxAge <= f.maxAge || t.Sub(f.askedAt) > keepFor {
		f.maxAge, f.askedAt = maxAge, t
	}
	if !f.keeping && !f.closed {
		f.keeping = true
		f.keeper.Go(f.keep)
	}
}

// keep probes until nobody has read for keepFor.
func (f *freshness) keep() {
	retry := time.Duration(0)
	for {
		select {
		case <-f.urgent: // who waits is served by this one
		default:
		}
		err := f.probeOnce()
		pause, on := f.pause()
		if !on {
			return
		}
		urgent := f.urgent
		if err != nil { // nor faster for anybody who waits
			retry = min(max(2*retry, probeRetry), probeRetryMax)
			pause, urgent = min(pause, retry), nil
		} else {
			retry = 0
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-urgent:
		case <-f.ctx.Done():
		}
		t.Stop()
	}
}

// pause is that until the next probe; false ends the keeper.
func (f *freshness) pause() (time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil || time.Since(f.askedAt) > keepFor {
		f.keeping = false
		return 0, false
	}
	return min(max(f.maxAge/4, minProbePause), maxProbePause), true
}

// probeOnce asks the leader once and notes what it said.
func (f *freshness) probeOnce() error {
	ctx, cancel := context.WithTimeout(f.ctx, probeTimeout)
	defer cancel()
	sent := moment{time.Now(), f.boot(), f.boot} // before the question
	index, err := f.probe(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.known = max(f.known, index)
		if len(f.open) == maxOpen {
			f.open = f.open[:maxOpen-1] // of a replica so far behind a step more or less is no matter
		}
		f.open = append(f.open, answered{sent, f.known})
	}
	close(f.ended)
	f.ended = make(chan struct{})
	return err
}
