//go:build linux || !race

package rowstore

// loadFence orders the loads before it before those behind it: DMB ISHLD.
//
//go:noescape
func loadFence()

// storeFence orders the stores before it before those behind it: DMB ISHST.
//
//go:noescape
func storeFence()
