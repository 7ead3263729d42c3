package node

import (
	"context"
	"time"

	"github.com/rowraft/rowraft/internal/canary"
)

const (
	// scrubEvery is how often the replicas are looked at, for a share of a second's bytes.
	scrubEvery = time.Second
	// minScrub is the least that one replica is looked at.
	minScrub = 64 << 10
)

// scrub reads the rows of all replicas all the time, slowly, and fences one whose
// rows are not those that it has written.
func (n *Node) scrub(ctx context.Context) {
	if n.cfg.ScrubBytesPerSecond < 0 {
		return
	}
	tick := time.NewTicker(scrubEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		replicas := n.runningReplicas()
		for _, r := range replicas {
			if canary.Is(canary.MemoryRots) && r.leading.Load() == 0 && !rotten.Load() {
				rotten.Store(r.machine.Rot())
			}
			if err := r.machine.Scrub(max(n.cfg.ScrubBytesPerSecond/len(replicas), minScrub)); err != nil {
				r.noticeFence()
			}
		}
	}
}

// runningReplicas are the replicas that run here.
func (n *Node) runningReplicas() []*replica {
	n.mu.RLock()
	defer n.mu.RUnlock()
	out := make([]*replica, 0, len(n.replicas))
	for _, r := range n.replicas {
		out = append(out, r)
	}
	return out
}
