package replica

import (
	"context"
	"time"
)

const (
	// scrubEvery is the interval of reads; each reads one second's share of bytes.
	scrubEvery = time.Second
	// minScrub is the least number of bytes that a read of one replica takes.
	minScrub = 64 << 10
)

// scrub slowly reads the rows of all replicas, continuously, and fences a replica whose rows are not those
// that it wrote.
func (h *Host) scrub(ctx context.Context) {
	if h.opts.ScrubBytesPerSecond < 0 {
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
		replicas := h.runningReplicas()
		for _, r := range replicas {
			if err := r.machine.Scrub(max(h.opts.ScrubBytesPerSecond/len(replicas), minScrub)); err != nil {
				r.noticeFence()
			}
		}
	}
}
