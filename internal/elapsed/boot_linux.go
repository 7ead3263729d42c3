package elapsed

import "golang.org/x/sys/unix"

// BootTime returns the nanoseconds since the machine started, 0 if the kernel has no such clock.
func BootTime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	return t.Nano()
}
