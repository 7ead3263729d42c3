package scheduler

import (
	"context"
	"sync"
	"time"
)

const (
	pulseInterval = 200 * time.Millisecond
	// pulseLate is how late a beat of the pulse may be on a busy machine.
	pulseLate = time.Second
)

// pulse notices that this process stood still (SIGSTOP, a starved machine), and so heard
// nobody. It beats beside the loops, which may wait for shards as long as a lease.
type pulse struct {
	mu   sync.Mutex
	last time.Time // zero before the first beat
}

// begin makes the first beat.
func (p *pulse) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
}

// beatPulse beats until ctx ends.
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

// feelPulse is a beat. It takes the time in which this process stood still off the
// silence of servers and workers, so it stands before each look by which somebody may be
// given up: what asks may go on before the goroutine of the pulse does.
func (s *Scheduler) feelPulse() {
	s.pulse.mu.Lock()
	defer s.pulse.mu.Unlock()
	if lost := s.pulse.beat(time.Now()); lost > 0 {
		s.workers.stoodStill(lost)
		s.soft.stoodStill(lost)
	}
}

// beat returns for how long the process stood still since the last beat, 0 if a busy
// machine may have done that. Under mu.
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
