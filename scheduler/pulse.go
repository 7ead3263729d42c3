package scheduler

import (
	"context"
	"sync"
	"time"
)

const (
	pulseInterval = 200 * time.Millisecond
	// pulseLate is the delay of a beat that a busy machine may cause.
	pulseLate = time.Second
)

// pulse detects that this process was suspended (SIGSTOP, a starved machine) and therefore received no heartbeats. It
// has its own goroutine because the control loops may wait for shards as long as a lease.
type pulse struct {
	mu   sync.Mutex
	last time.Time // zero before the first beat
}

// begin records the first beat.
func (p *pulse) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
}

// beatPulse calls feelPulse at each interval until ctx ends.
func (s *Scheduler) beatPulse(ctx context.Context) {
	tick := time.NewTicker(pulseInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.feelPulse()
		}
	}
}

// feelPulse records a beat. If the process was suspended since the last one, it subtracts that time from the silence of
// servers and workers. Call it before each decision that a server or worker is dead: after a suspension, the goroutine
// of that decision may run before the goroutine of beatPulse.
func (s *Scheduler) feelPulse() {
	s.pulse.mu.Lock()
	defer s.pulse.mu.Unlock()
	if lost := s.pulse.beat(time.Now()); lost > 0 {
		s.jobs.DiscountPause(lost)
		s.soft.discountPause(lost)
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
