// Package allocs measures what a call allocates, for tests that bound it.
package allocs

import (
	"runtime"
	"testing"
)

// Bytes returns how many bytes of the heap f allocates, those that are free again
// included. Other goroutines must be quiet meanwhile, or be allowed for.
func Bytes(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Frugal fails the test when f, which decodes in, allocates more than 1 MiB and 64 times the size of in.
func Frugal(t testing.TB, in []byte, f func()) {
	t.Helper()
	const fixed, perByte = 1 << 20, 64
	if got := Bytes(f); got > fixed+perByte*uint64(len(in)) {
		t.Errorf("%d bytes of input made it allocate %d", len(in), got)
	}
}
