//go:build !(linux && amd64) || race

package rowstore

import "sync/atomic"

// Elsewhere a barrier of the writer costs little, or cannot be done without, or the race
// detector would not know of it: all claims are strict.

func canFence() bool { return false }

func fenceOthers() bool { return true }

func pauseFence() {}

func storeClaim(p *atomic.Int64, v int64) { p.Store(v) }
