package slab

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rowraft/rowraft"
)

// reserve returns size bytes of addresses, a multiple of chunkBytes, aligned to
// chunkBytes. Nothing can be stored there before enable: PROT_NONE memory is not
// charged, so only what is used counts where the system forbids overcommit.
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

// populate backs a usable chunk by one huge page, if the kernel has any. To clear
// it takes 0.1 ms, and to find one some 6 ms when memory is in pieces.
func populate(p unsafe.Pointer) {
	advise(p)
	// A kernel that refuses gives pages as they are touched.
	_ = unix.Madvise(unsafe.Slice((*byte)(p), chunkBytes), unix.MADV_POPULATE_WRITE)
}

// advise asks the kernel to make a chunk of small pages one huge page when it comes
// by. To have it do so at once (MADV_COLLAPSE) stops whoever touches the chunk
// meanwhile, for some milliseconds on a busy machine.
func advise(p unsafe.Pointer) {
	// A kernel without huge pages refuses, and the memory works.
	_ = unix.Madvise(unsafe.Slice((*byte)(p), chunkBytes), unix.MADV_HUGEPAGE)
}

// release gives memory and addresses back.
func release(p unsafe.Pointer, size int) error {
	if err := unix.MunmapPtr(p, uintptr(size)); err != nil {
		// The only failure is a bad address, which would be a bug of this package.
		return rowraft.Errorf(rowraft.CodeInternal, "row memory: unmap: %w", err)
	}
	return nil
}
