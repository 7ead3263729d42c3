//go:build !linux

package slab

import "unsafe"

// On other systems, which are only used for development, the memory is on the Go heap. Any pointer into it
// keeps all of it.

func reserve(size int) (unsafe.Pointer, error) {
	p := unsafe.Pointer(unsafe.SliceData(make([]byte, size+chunkBytes)))
	return unsafe.Add(p, -uintptr(p)&(chunkBytes-1)), nil
}

func keepSmall(p unsafe.Pointer, size int) {}

func discard(p unsafe.Pointer) error {
	clear(unsafe.Slice((*byte)(p), chunkBytes))
	return nil
}

func populate(p unsafe.Pointer) {}

func advise(p unsafe.Pointer) {}

func release(p unsafe.Pointer, size int) error { return nil }
