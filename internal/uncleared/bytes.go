package uncleared

import (
	"strings"
	"unsafe"
)

// Bytes returns n bytes with undefined content, for callers that overwrite all of them: clearing log entries took 2.6 %
// of the servers' CPU time of pushes. strings.Builder is the only exported type of the standard library that allocates
// without clearing.
func Bytes(n int) []byte {
	if n == 0 {
		return nil
	}
	var b strings.Builder
	b.Grow(n)
	b.WriteByte(0) // an empty string may have any address
	return unsafe.Slice(unsafe.StringData(b.String()), n)
}
