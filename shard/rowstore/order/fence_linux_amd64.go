//go:build !race

package order

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of membarrier(2).
const (
	membarrierPrivate         = 1 << 3
	membarrierRegisterPrivate = 1 << 4
)

// CanFence reports whether FenceOthers works. Its first call prepares it, which takes some milliseconds.
var CanFence = sync.OnceValue(func() bool {
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierRegisterPrivate, 0, 0)
	return errno == 0
})

// FenceOthers makes every thread of the process execute a full barrier and returns true. It
// returns false if the system cannot do so now: membarrier allocates memory (ENOMEM).
// REQUIRES: CanFence.
var FenceOthers = func() bool {
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierPrivate, 0, 0)
	return errno == 0
}

// PauseFence waits a short time, in which the system may free memory.
func PauseFence() {
	_ = unix.Nanosleep(&unix.Timespec{Nsec: 100_000}, nil) // a signal may end the pause early
}

// StoreUnfenced stores v after all earlier ordered stores. Stream is not ordered by it.
func StoreUnfenced(p *atomic.Int64, v int64) {
	Store((*uint64)(unsafe.Pointer(p)), uint64(v))
}
