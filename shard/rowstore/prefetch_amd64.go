package rowstore

import "unsafe"

// prefetch asks for lines (> 0) cache lines from each of the n addresses.
//
//go:noescape
func prefetch(addrs *unsafe.Pointer, n, lines int)
