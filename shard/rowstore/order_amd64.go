//go:build linux || !race

package rowstore

// loadFence orders the loads before it before those behind it. On amd64 they are
// in order anyway; the atomic load of a version that follows holds the compiler.
func loadFence() {}

// storeFence orders the stores before it before those behind it. On amd64 they
// are in order anyway; the atomic store of a version before it holds the compiler.
func storeFence() {}
