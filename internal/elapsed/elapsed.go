package elapsed

import (
	"sync/atomic"
	"time"
)

// Moment is a point in time on both clocks. The zero Moment means none.
type Moment struct {
	mono time.Time
	boot int64 // ns since the machine started
	now  func() int64
}

// Now returns the present moment. boot is BootTime, except in tests.
func Now(boot func() int64) Moment { return Moment{time.Now(), boot(), boot} }

// Age returns the time since m, by the clock that shows more; 0 for the zero Moment.
func (m Moment) Age() time.Duration {
	if m.mono.IsZero() {
		return 0
	}
	return max(time.Since(m.mono), time.Duration(m.now()-m.boot), 1)
}

// Clock counts nanoseconds on both clocks, for ages of many things that each keep a number. Between two readings it
// advances at least as much as either clock does: an age is never too low. Safe for concurrent use.
type Clock struct {
	began Moment
	// ahead is the most that the kernel's clock was seen to be ahead of the other one since began.
	ahead atomic.Int64
}

// NewClock returns a clock that shows many years, so that a reading minus an age is above 0. boot is BootTime, except
// in tests.
func NewClock(boot func() int64) *Clock { return &Clock{began: Now(boot)} }

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
