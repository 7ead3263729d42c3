//go:build !(linux && amd64) || race

package order

import "sync/atomic"

// On other systems all claims are strict: a barrier of the writer costs little there, or the system
// has no membarrier, or the race detector does not know of it.

// CanFence returns false.
func CanFence() bool { return false }

// FenceOthers does nothing.
var FenceOthers = func() bool { return true }

// PauseFence does nothing.
func PauseFence() {}

// StoreUnfenced stores v.
func StoreUnfenced(p *atomic.Int64, v int64) { p.Store(v) }
