//go:build !race

package rowstore

import "unsafe"

// streamImage writes n bytes of src and then link to whole cache lines at dst. It does
// so past the caches (MOVNTDQ): a line that is only written need not be read first, and
// images are read much later. What was written is in order with other stores only behind
// a barrier. n is a multiple of 8, and n+8 at most one line less than a multiple of lines.
//
//go:noescape
func streamImage(dst, src unsafe.Pointer, n int, link uint64)
