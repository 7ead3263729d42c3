package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/rowraft/rowraft/internal/ticks"
)

const (
	pulseInterval = 250 * time.Millisecond
	// pulseLate is the delay of a beat that a busy machine may cause.
	pulseLate = time.Second
)

// pulse detects that this process was suspended (SIGSTOP, a starved machine) and therefore received no heartbeats. It
// has its own goroutine because the control loops may wait for shards as long as a lease.
type pulse struct {
	mu   sync.Mutex
	last time.Time // zero before the first beat
	// discount subtracts the time for which the process was suspended from every silence. It is called under mu.
	discount func(lost time.Duration)
}

// begin records the first beat.
func (p *pulse) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
}

// run calls check at each interval until ctx ends.
func (p *pulse) run(ctx context.Context) {
	tick := ticks.New(pulseInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.check()
		}
	}
}

// check records a beat. If the process was suspended since the last one, it subtracts that time from the silence of
// servers and workers. Call it before each decision that a server or worker is dead: after a suspension, the goroutine
// of that decision may run before the goroutine of run.
func (p *pulse) check() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lost := p.beat(time.Now()); lost > 0 {
		p.discount(lost)
	}
}

// beat returns how long the process was suspended since the last beat, 0 if a busy machine explains the delay.
// REQUIRES: mu is held.
func (p *pulse) beat(now time.Time) time.Duration {
	if p.last.IsZero() {
		return 0
	}
	lost := now.Sub(p.last) - pulseInterval
	if p.last = now; lost <= pulseLate {
		return 0
	}
	return lost
}
