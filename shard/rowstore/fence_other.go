//go:build !(linux && amd64) || race

package rowstore

import "sync/atomic"

// On other systems all claims are strict: a barrier of the writer costs little there, or the system
// has no membarrier, or the race detector does not know of it.

func canFence() bool { return false }

func fenceOthers() bool { return true }

func pauseFence() {}

func storeClaim(p *atomic.Int64, v int64) { p.Store(v) }
