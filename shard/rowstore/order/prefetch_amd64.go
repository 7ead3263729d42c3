package order

import "unsafe"

// Prefetch loads the cache lines of bytes from … to-1 (from < to) after each
// of the n addresses.
//
//go:noescape
func Prefetch(addrs *unsafe.Pointer, n, from, to int)

// PrefetchRow loads the cache line at entry, the two lines at slot and 63 bytes after it, and those of bytes from …
// to-1 after record (from < to).
//
//go:noescape
func PrefetchRow(entry, slot, record unsafe.Pointer, from, to int)
