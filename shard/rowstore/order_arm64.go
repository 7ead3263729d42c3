//go:build linux || !race

package rowstore

import "sync/atomic"

// loadFence orders the loads before it before those behind it: DMB ISHLD.
//
//go:noescape
func loadFence()

// storeFence orders the stores before it before those behind it: DMB ISHST.
//
//go:noescape
func storeFence()

// storeVersion stores v behind all stores before it: STLR.
func storeVersion(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
