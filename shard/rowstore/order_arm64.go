//go:build linux || !race

package rowstore

import "sync/atomic"

// loadFence orders earlier loads before later ones: DMB ISHLD.
//
//go:noescape
func loadFence()

// storeFence orders earlier stores before later ones: DMB ISHST.
//
//go:noescape
func storeFence()

// storeVersion stores v after all earlier stores: STLR.
func storeVersion(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
