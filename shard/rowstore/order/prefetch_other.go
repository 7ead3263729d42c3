//go:build !amd64

package order

import "unsafe"

// Prefetch does nothing here; it is a hint on amd64.
func Prefetch(addrs *unsafe.Pointer, n, from, to int) {}
