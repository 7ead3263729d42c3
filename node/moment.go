package node

import (
	"time"

	"golang.org/x/sys/unix"
)

// moment is a point in time that ages are counted from, on two clocks: Go's monotonic
// one stands still while the machine sleeps, and that of the kernel which does not is
// unknown to tests in virtual time. Neither is ever set, and both go on while a process
// is stopped. The zero moment is none.
type moment struct {
	mono time.Time
	boot int64 // ns since the machine was started
	now  func() int64
}

// age is the time since m, by the clock that says more; 0 of none.
func (m moment) age() time.Duration {
	if m.mono.IsZero() {
		return 0
	}
	return max(time.Since(m.mono), time.Duration(m.now()-m.boot), 1)
}

// bootTime is 0 where the kernel has no such clock.
func bootTime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	return t.Nano()
}
