package slab

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rowraft/rowraft"
)

// reserve returns size usable bytes, a multiple of chunkBytes, aligned to chunkBytes. They are zero, and take memory
// once they are touched. A system that forbids overcommit (vm.overcommit_memory=2) counts all of them.
func reserve(size int) (unsafe.Pointer, error) {
	total := uintptr(size + chunkBytes)
	const flags = unix.MAP_ANON | unix.MAP_PRIVATE | unix.MAP_NORESERVE
	p, err := unix.MmapPtr(-1, 0, nil, total, unix.PROT_READ|unix.PROT_WRITE, flags)
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

// keepSmall asks the kernel for small pages only.
func keepSmall(p unsafe.Pointer, size int) {
	// A kernel without huge pages refuses; its pages are small anyway.
	_ = unix.Madvise(unsafe.Slice((*byte)(p), size), unix.MADV_NOHUGEPAGE)
}

// discard frees the memory of a chunk, not its addresses. The chunk is zero afterwards.
func discard(p unsafe.Pointer) error {
	if err := unix.Madvise(unsafe.Slice((*byte)(p), chunkBytes), unix.MADV_DONTNEED); err != nil {
		return rowraft.Errorf(rowraft.CodeInternal, "row memory: give back: %w", err) // the memory is locked
	}
	return nil
}

// release frees memory and addresses.
func release(p unsafe.Pointer, size int) error {
	if err := unix.MunmapPtr(p, uintptr(size)); err != nil {
		// The only possible failure is a bad address, which is a bug of this package.
		return rowraft.Errorf(rowraft.CodeInternal, "row memory: unmap: %w", err)
	}
	return nil
}
