package freshness

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// moment is a point in time for the computation of ages, on two clocks. Go's monotonic clock stops while
// the machine sleeps. The kernel's boot clock does not, but tests in virtual time do not control it.
// Neither clock is ever set, and both run while a process is stopped. The zero moment means none.
type moment struct {
	mono time.Time
	boot int64 // ns since the machine started
	now  func() int64
}

// age returns the time since m, by the clock that shows more; 0 for the zero moment.
func (m moment) age() time.Duration {
	if m.mono.IsZero() {
		return 0
	}
	return max(time.Since(m.mono), time.Duration(m.now()-m.boot), 1)
}

// bootTime returns 0 if the kernel has no such clock.
func bootTime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	return t.Nano()
}

// Clock counts nanoseconds on both clocks, for ages of many things that each keep a number. Between two readings it
// advances at least as much as either clock does: an age is never too low. Safe for concurrent use.
type Clock struct {
	began moment
	// ahead is the most that the kernel's clock was seen to be ahead of the other one since began.
	ahead atomic.Int64
}

// NewClock returns a clock that shows many years, so that a reading minus an age is above 0.
func NewClock() *Clock { return &Clock{began: moment{time.Now(), bootTime(), bootTime}} }

// Now reads the clock.
func (c *Clock) Now() uint64 {
	boot := c.began.now() - c.began.boot // first, so that ahead is too low by the time until the next line, not too high
	mono := int64(time.Since(c.began.mono))
	for {
		ahead := c.ahead.Load()
		if boot-mono <= ahead || c.ahead.CompareAndSwap(ahead, boot-mono) {
			return uint64(1<<61 + mono + max(ahead, boot-mono))
		}
	}
}
