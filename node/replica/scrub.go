package replica

import (
	"context"
	"time"

	"github.com/rowraft/rowraft/shard"
)

const (
	// scrubEvery is the interval of reads; each reads one second's share of bytes.
	scrubEvery = time.Second
	// scrubPass is how long a pass over the rows of a replica takes, unless they are so few or so many that minScrub or
	// the share of the replica decides.
	scrubPass = 10 * time.Minute
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
			if err := r.machine.Scrub(scrubShare(r.machine.Stats(), h.opts.ScrubBytesPerSecond/len(replicas))); err != nil {
				r.noticeFence()
			}
		}
	}
}

// scrubShare returns how many bytes of the rows of tables a read takes, at most most unless that is below minScrub.
// Where a pass is short at that rate, it would only take time from pulls and pushes.
func scrubShare(tables []shard.TableStats, most int) int {
	var size uint64
	for _, t := range tables {
		if t.Tier.Records > 0 { // a row in a file counts more than its bytes
			return max(most, minScrub)
		}
		size += t.Bytes
	}
	return max(min(int(size/uint64(scrubPass/scrubEvery)), most), minScrub)
}
