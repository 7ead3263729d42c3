package logstore

import (
	"sync/atomic"
	"time"
)

// durationBounds are the upper bounds of the histogram's buckets.
var durationBounds = [...]time.Duration{
	250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2500 * time.Millisecond,
}

// durations is a histogram of durations. Safe for concurrent use.
type durations struct {
	counts [len(durationBounds) + 1]atomic.Uint64
	sum    atomic.Int64
}

func (d *durations) observe(took time.Duration) {
	i := 0
	for i < len(durationBounds) && took > durationBounds[i] {
		i++
	}
	d.counts[i].Add(1)
	d.sum.Add(int64(took))
}

// Histogram is a snapshot of a durations, in the form that Prometheus uses.
type Histogram struct {
	Count   uint64
	Sum     time.Duration
	Buckets map[float64]uint64 // upper bound in seconds → number of durations up to it
}

func (d *durations) histogram() Histogram {
	h := Histogram{Sum: time.Duration(d.sum.Load()), Buckets: make(map[float64]uint64, len(durationBounds))}
	for i := range d.counts {
		h.Count += d.counts[i].Load()
		if i < len(durationBounds) {
			h.Buckets[durationBounds[i].Seconds()] = h.Count
		}
	}
	return h
}
