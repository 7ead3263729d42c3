//go:build !race

package rowstore

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

// canFence reports whether fenceOthers works, and prepares it: some milliseconds, once.
var canFence = sync.OnceValue(func() bool {
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierRegisterPrivate, 0, 0)
	return errno == 0
})

// fenceOthers returns true when every thread of the process has passed a full barrier since,
// and false if the system could not do that now: membarrier allocates memory (ENOMEM).
// REQUIRES: canFence.
var fenceOthers = func() bool {
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierPrivate, 0, 0)
	return errno == 0
}

// pauseFence waits a little for the system to have memory again.
func pauseFence() {
	_ = unix.Nanosleep(&unix.Timespec{Nsec: 100_000}, nil) // a signal may end it early
}

// storeClaim stores v behind all stores before it that are in order.
func storeClaim(p *atomic.Int64, v int64) {
	storeVersion((*uint64)(unsafe.Pointer(p)), uint64(v))
}
