// Package histogram counts durations in fixed buckets, for metrics.
//
// Observe costs a few atomic additions and no allocation, so it may be called for every request. The package knows no
// metrics library: Snapshot has the form that Prometheus uses.
package histogram

import (
	"sync/atomic"
	"time"
)

// bounds are the upper bounds of the buckets: from the pull of a few rows out of memory to a checkpoint, or the move
// of a replica, that takes an hour.
var bounds = [...]time.Duration{
	50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
	30 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour,
}

// Durations is a histogram of durations. The zero value is empty and ready. Safe for concurrent use.
type Durations struct {
	counts [len(bounds) + 1]atomic.Uint64
	sum    atomic.Int64
}

// Observe counts one duration. A negative one counts as 0: two clock readings of different goroutines may be in the
// wrong order.
func (d *Durations) Observe(took time.Duration) {
	took = max(took, 0)
	i := 0
	for i < len(bounds) && took > bounds[i] {
		i++
	}
	d.counts[i].Add(1)
	d.sum.Add(int64(took))
}

// Snapshot is the state of a Durations at one moment.
type Snapshot struct {
	Count   uint64
	Sum     time.Duration
	Buckets map[float64]uint64 // upper bound in seconds → number of durations up to it
}

// Snapshot returns the present counts. Durations that are observed meanwhile may be in some fields and not in others.
func (d *Durations) Snapshot() Snapshot {
	s := Snapshot{Sum: time.Duration(d.sum.Load()), Buckets: make(map[float64]uint64, len(bounds))}
	for i := range d.counts {
		s.Count += d.counts[i].Load()
		if i < len(bounds) {
			s.Buckets[bounds[i].Seconds()] = s.Count
		}
	}
	return s
}
