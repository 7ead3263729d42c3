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

// fenceOthers returns when every thread of the process has passed a full barrier since.
// REQUIRES: canFence.
func fenceOthers() {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierPrivate, 0, 0); errno != 0 {
		panic("rowstore: membarrier, which worked before: " + errno.Error())
	}
}

// storeClaim stores v behind all stores before it that are in order.
func storeClaim(p *atomic.Int64, v int64) {
	storeVersion((*uint64)(unsafe.Pointer(p)), uint64(v))
}
