package freshness

import (
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
