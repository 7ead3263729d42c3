// Package allocs measures what a call allocates, for tests that bound it.
package allocs

import "runtime"

// Bytes returns how many bytes of the heap f allocates, those that are free again
// included. Other goroutines must be quiet meanwhile, or be allowed for.
func Bytes(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
