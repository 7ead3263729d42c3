package slab

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rowraft/rowraft"
)

// regionBytes is the address space reserved at once: large, so that finding a
// record's region is one shift in a short table.
const regionBytes = 1 << 30

// reserve returns a region of size bytes, a multiple of hugePage, aligned to
// hugePage. PROT_NONE memory is not charged, so only what is committed counts
// where the system forbids overcommit.
func reserve(size int) (region, error) {
	total := uintptr(size + hugePage)
	p, err := unix.MmapPtr(-1, 0, nil, total, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return region{}, rowraft.Errorf(rowraft.CodeOverloaded, "row memory: reserve %d bytes of addresses: %w", size, err)
	}
	skip := -uintptr(p) & (hugePage - 1)
	if skip > 0 {
		if err := unix.MunmapPtr(p, skip); err != nil {
			return region{}, rowraft.Errorf(rowraft.CodeInternal, "row memory: trim a mapping: %w", err)
		}
	}
	base := unsafe.Add(p, skip)
	if tail := total - skip - uintptr(size); tail > 0 {
		if err := unix.MunmapPtr(unsafe.Add(base, size), tail); err != nil {
			return region{}, rowraft.Errorf(rowraft.CodeInternal, "row memory: trim a mapping: %w", err)
		}
	}
	return region{base: base, reserved: size}, nil
}

// enable makes bytes [from, to) of the region usable.
func (r *region) enable(from, to int) error {
	mem := unsafe.Slice((*byte)(unsafe.Add(r.base, from)), to-from)
	if err := unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return err
	}
	if from >= hugePage {
		// Advice only: a kernel without huge pages refuses it and the memory works.
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	}
	return nil
}

// release unmaps the region.
func (r *region) release() error {
	if r.base == nil {
		return nil
	}
	err := unix.MunmapPtr(r.base, uintptr(r.reserved))
	*r = region{}
	return err
}
