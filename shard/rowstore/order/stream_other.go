//go:build !amd64 || race

package order

import "unsafe"

// Stream writes n bytes of src and then link to dst.
func Stream(dst, src unsafe.Pointer, n int, link uint64) {
	copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
	*(*uint64)(unsafe.Add(dst, n)) = link
}
