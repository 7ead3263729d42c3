package order

import "unsafe"

// Prefetch loads the cache lines of bytes from … to-1 (from < to) after each
// of the n addresses.
//
//go:noescape
func Prefetch(addrs *unsafe.Pointer, n, from, to int)
