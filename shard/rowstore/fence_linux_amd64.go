//go:build !race

package rowstore

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rowraft/rowraft/shard/rowstore/order"
)

// Commands of membarrier(2).
const (
	membarrierPrivate         = 1 << 3
	membarrierRegisterPrivate = 1 << 4
)

// canFence reports whether fenceOthers works. Its first call prepares it, which takes some milliseconds.
var canFence = sync.OnceValue(func() bool {
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierRegisterPrivate, 0, 0)
	return errno == 0
})

// fenceOthers makes every thread of the process execute a full barrier and returns true. It
// returns false if the system cannot do so now: membarrier allocates memory (ENOMEM).
// REQUIRES: canFence.
var fenceOthers = func() bool {
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierPrivate, 0, 0)
	return errno == 0
}

// pauseFence waits a short time, in which the system may free memory.
func pauseFence() {
	_ = unix.Nanosleep(&unix.Timespec{Nsec: 100_000}, nil) // a signal may end the pause early
}

// storeClaim stores v after all earlier ordered stores. (Images written past the caches are not ordered.)
func storeClaim(p *atomic.Int64, v int64) {
	order.Store((*uint64)(unsafe.Pointer(p)), uint64(v))
}
