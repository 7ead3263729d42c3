//go:build !race

package order

import "unsafe"

// Stream writes n bytes of src and then link to whole cache lines at dst. It writes past the
// caches (MOVNTDQ): a line that is only written need not be read first, and images are read much
// later. These writes are ordered with other stores only by a barrier. n is a multiple of 8, and
// n+8 is less than one line below a multiple of the line size.
//
//go:noescape
func Stream(dst, src unsafe.Pointer, n int, link uint64)
