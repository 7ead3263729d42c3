package slab

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rowraft/rowraft"
)

// reserve returns size bytes of addresses, a multiple of chunkBytes, aligned to chunkBytes. They are
// unusable before enable. PROT_NONE memory is not charged, so where the system forbids overcommit, only
// enabled memory counts.
func reserve(size int) (unsafe.Pointer, error) {
	total := uintptr(size + chunkBytes)
	p, err := unix.MmapPtr(-1, 0, nil, total, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeOverloaded, "row memory: reserve %d bytes of addresses: %w", size, err)
	}
	skip := -uintptr(p) & (chunkBytes - 1)
	base := unsafe.Add(p, skip)
	if skip > 0 {
		if err := release(p, int(skip)); err != nil {
			return nil, err
		}
	}
	if tail := int(total-skip) - size; tail > 0 {
		if err := release(unsafe.Add(base, size), tail); err != nil {
			return nil, err
		}
	}
	return base, nil
}

// enable makes size reserved bytes at p usable. They are zero.
func enable(p unsafe.Pointer, size int) error {
	if err := unix.Mprotect(unsafe.Slice((*byte)(p), size), unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return rowraft.Errorf(rowraft.CodeOverloaded, "row memory: map %d more bytes: %w", size, err)
	}
	return nil
}

// populate backs a usable chunk by one huge page, if the kernel has one. The kernel takes 0.1 ms to clear
// the page, and about 6 ms to find one when memory is fragmented.
func populate(p unsafe.Pointer) {
	advise(p)
	// If the kernel refuses, it adds pages at the first touch.
	_ = unix.Madvise(unsafe.Slice((*byte)(p), chunkBytes), unix.MADV_POPULATE_WRITE)
}

// advise asks the kernel to turn a chunk of small pages into one huge page later. Rejected: MADV_COLLAPSE
// does it at once, but blocks every thread that touches the chunk for some milliseconds on a busy machine.
func advise(p unsafe.Pointer) {
	// A kernel without huge pages refuses; the memory works anyway.
	_ = unix.Madvise(unsafe.Slice((*byte)(p), chunkBytes), unix.MADV_HUGEPAGE)
}

// release frees memory and addresses.
func release(p unsafe.Pointer, size int) error {
	if err := unix.MunmapPtr(p, uintptr(size)); err != nil {
		// The only possible failure is a bad address, which is a bug of this package.
		return rowraft.Errorf(rowraft.CodeInternal, "row memory: unmap: %w", err)
	}
	return nil
}
