// Package ticks gives the periodic work of a process common moments. An idle process pays 50 to 80 µs of CPU time for
// each time that it wakes, so that ten loops which wake together cost little more than one.
//
// The moments are those of the machine's clock, so servers whose clocks agree have the same ones. Work that loads the
// disk or the processor of a server uses a ticker of its own, or a majority of the replicas would do it at once.
package ticks

import (
	"sync"
	"time"
)

// Before returns the last multiple of every on the machine's clock that is not after t; t if every is 0.
func Before(t time.Time, every time.Duration) time.Time {
	if every <= 0 {
		return t
	}
	return t.Add(-time.Duration(t.UnixNano() % int64(every))) // Truncate would drop the monotonic clock
}

// until returns the time until the next multiple of every.
func until(every time.Duration) time.Duration {
	now := time.Now()
	return Before(now.Add(every), every).Sub(now)
}

// Ticker is like a [time.Ticker] that ticks at the multiples of its interval.
type Ticker struct {
	C <-chan time.Time

	c     chan time.Time
	every time.Duration

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
}

// New returns a ticker with the interval every, more than 0. Tickers whose intervals are multiples of each other tick
// together.
func New(every time.Duration) *Ticker {
	c := make(chan time.Time, 1)
	t := &Ticker{C: c, c: c, every: every}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(until(every), t.tick)
	return t
}

func (t *Ticker) tick() {
	select {
	case t.c <- time.Now():
	default: // the tick before was not received
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.stopped {
		t.timer.Reset(until(t.every))
	}
}

// Stop ends the ticks. A tick that was not received may stay in C.
func (t *Ticker) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	t.timer.Stop()
}
