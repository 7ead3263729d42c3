package rowstore

import "unsafe"

// prefetch loads the cache lines of bytes from … to-1 (from < to) after each
// of the n addresses.
//
//go:noescape
func prefetch(addrs *unsafe.Pointer, n, from, to int)
