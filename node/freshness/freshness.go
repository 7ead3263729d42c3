package freshness

import (
	"context"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/internal/elapsed"
)

// Bound is the maximum age of the rows of a read.
type Bound struct {
	MaxAge time.Duration
	MaxLag uint64 // 0: any
}

// Lease shows that a replica has everything that was acknowledged before a moment.
type Lease struct {
	sent elapsed.Moment // when the replica sent its probe; zero: there is no proof
	Lag  uint64         // entries known to be committed but not applied
}

// Age returns the age of p; 0 if p proves nothing.
func (p Lease) Age() time.Duration {
	if a := p.sent.Age(); a == 0 || !canary.Is(canary.YoungClaims) {
		return a
	}
	return 1
}

func (p Lease) young(maxAge time.Duration) bool { a := p.Age(); return a > 0 && a <= maxAge }

func (p Lease) meets(b Bound) bool {
	return p.young(b.MaxAge) && (b.MaxLag == 0 || p.Lag <= b.MaxLag)
}

// Tracker tracks how old the state of a replica may be, whichever replica leads.
//
// A replica sends the leader a probe: it requests an index that covers everything acknowledged. The leader
// answers after a majority has confirmed, later than the request, that it leads. Once the replica has
// applied that index, its state is as new as the moment at which it sent the probe. The replica counts the
// age on its own clock from before the request. So neither the leader's clock, nor the delay of an answer,
// nor a pause of either process makes the state look younger than it is. Raft's time of last contact proves
// nothing: a leader may have been replaced, and a follower that gets no entries still gets heartbeats.
//
// The replica probes while reads arrive, and for keepFor afterwards. The interval is a quarter of the
// requested age, so that reads find a proof that outlasts a change of leaders. All readers share the
// probes.
type Tracker struct {
	ctx     context.Context // ends with the replica
	probe   func(context.Context) (rowraft.Index, error)
	applied func() rowraft.Index
	wait    func(context.Context, rowraft.Index) error // waits until the index is applied
	boot    func() int64                               // clock of the kernel

	urgent chan struct{} // a reader waits for the next probe; capacity 1
	keeper sync.WaitGroup

	mu      sync.Mutex
	proved  elapsed.Moment
	known   rowraft.Index // highest index that a probe has returned
	open    []openProbe   // probes with an index above the applied one, ascending
	ended   chan struct{} // closed at the end of the next probe
	keeping bool          // the goroutine of keep runs
	maxAge  time.Duration // the shortest age requested
	askedAt time.Time     // last request of maxAge
	closed  bool
}

// openProbe is an answered probe whose index is not applied yet.
type openProbe struct {
	sent  elapsed.Moment
	index rowraft.Index
}

const (
	// keepFor is how long a replica continues to probe after the last read.
	keepFor = 30 * time.Second
	// maxOpen limits the answered probes that a lagging replica remembers.
	maxOpen = 8

	probeTimeout  = time.Second
	probeRetry    = 20 * time.Millisecond // pause after a failed probe; it grows up to probeRetryMax
	probeRetryMax = 100 * time.Millisecond
	minProbePause = 5 * time.Millisecond
	maxProbePause = 2500 * time.Millisecond
)

func New(ctx context.Context, probe func(context.Context) (rowraft.Index, error), applied func() rowraft.Index,
	wait func(context.Context, rowraft.Index) error) *Tracker {
	return &Tracker{
		ctx: ctx, probe: probe, applied: applied, wait: wait, boot: elapsed.BootTime,
		urgent: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// Close waits for the goroutine of keep, which ends with ctx.
func (f *Tracker) Close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.keeper.Wait()
}

// Await returns a proof that meets b, for a state that reads see from now on. If ctx ends first, it returns
// the best proof it has, and false.
func (f *Tracker) Await(ctx context.Context, b Bound) (Lease, bool) {
	for {
		p, ok, next := f.look(b)
		if ok {
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

// Now is Await without a wait. It returns the proof that it has, and whether the proof meets b.
func (f *Tracker) Now(b Bound) (Lease, bool) {
	p, ok, _ := f.look(b)
	return p, ok
}

// Meets reports whether there is a proof that meets b. It starts no probe.
func (f *Tracker) Meets(b Bound) bool {
	applied := f.applied()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leaseLocked(applied).meets(b)
}

// event is what a reader waits for: an applied index or, if index is 0, the end of a probe.
type event struct {
	index rowraft.Index
	ended <-chan struct{}
}

// look returns the current proof and whether it meets b, and keeps the probes running. If it does not meet b, look
// returns the event to wait for.
func (f *Tracker) look(b Bound) (p Lease, ok bool, next event) {
	applied := f.applied()
	f.mu.Lock()
	defer f.mu.Unlock()
	p = f.leaseLocked(applied)
	f.demandLocked(b.MaxAge)
	switch {
	case p.meets(b):
		return p, true, event{}
	case p.young(b.MaxAge):
		return p, false, event{index: f.known - rowraft.Index(b.MaxLag)}
	}
	for _, a := range f.open {
		if a.sent.Age() <= b.MaxAge {
			return p, false, event{index: a.index}
		}
	}
	select {
	case f.urgent <- struct{}{}:
	default:
	}
	return p, false, event{ended: f.ended}
}

// leaseLocked returns the current proof.
func (f *Tracker) leaseLocked(applied rowraft.Index) Lease {
	f.confirmLocked(applied)
	p := Lease{sent: f.proved}
	if f.known > applied {
		p.Lag = uint64(f.known - applied)
	}
	return p
}

// confirmLocked makes the newest answered probe whose index is applied the proof.
func (f *Tracker) confirmLocked(applied rowraft.Index) {
	for len(f.open) > 0 && f.open[0].index <= applied {
		f.proved = f.open[0].sent
		f.open = f.open[1:]
	}
}

// demandLocked records that a read requests maxAge, and starts keep if it does not run.
func (f *Tracker) demandLocked(maxAge time.Duration) {
	t := time.Now()
	if maxAge <= f.maxAge || t.Sub(f.askedAt) > keepFor {
		f.maxAge, f.askedAt = maxAge, t
	}
	if !f.keeping && !f.closed {
		f.keeping = true
		f.keeper.Go(f.keep)
	}
}

// keep probes until no read has arrived for keepFor.
func (f *Tracker) keep() {
	retry := time.Duration(0)
	for {
		select {
		case <-f.urgent: // this probe serves the reader that sent it
		default:
		}
		err := f.probeOnce()
		pause, on := f.pause()
		if !on {
			return
		}
		urgent := f.urgent
		if err != nil { // after a failure, a waiting reader does not shorten the pause
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

// pause returns the time until the next probe; false ends keep.
func (f *Tracker) pause() (time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil || time.Since(f.askedAt) > keepFor {
		f.keeping = false
		return 0, false
	}
	return min(max(f.maxAge/4, minProbePause), maxProbePause), true
}

// probeOnce sends one probe to the leader and records the answer.
func (f *Tracker) probeOnce() error {
	ctx, cancel := context.WithTimeout(f.ctx, probeTimeout)
	defer cancel()
	sent := elapsed.Now(f.boot) // before the request: a later time would make the state look younger
	index, err := f.probe(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.known = max(f.known, index)
		if len(f.open) == maxOpen {
			f.open = f.open[:maxOpen-1] // a replica that is this far behind can lose one answer
		}
		f.open = append(f.open, openProbe{sent, f.known})
	}
	close(f.ended)
	f.ended = make(chan struct{})
	return err
}
