package rowstore

import "unsafe"

// prefetch asks for the cache lines of bytes from … to-1 (from < to) behind each
// of the n addresses.
//
//go:noescape
func prefetch(addrs *unsafe.Pointer, n, from, to int)
