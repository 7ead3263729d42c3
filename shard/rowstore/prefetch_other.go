//go:build !amd64

package rowstore

import "unsafe"

// prefetch does nothing here; it is a hint on amd64.
func prefetch(addrs *unsafe.Pointer, n, from, to int) {}
