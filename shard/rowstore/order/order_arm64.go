//go:build linux || !race

package order

import "sync/atomic"

// LoadFence orders earlier loads before later ones: DMB ISHLD.
//
//go:noescape
func LoadFence()

// StoreFence orders earlier stores before later ones: DMB ISHST.
//
//go:noescape
func StoreFence()

// Store stores v after all earlier stores: STLR.
func Store(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
