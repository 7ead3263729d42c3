package logstore

import (
	"testing"
	"time"
)

func TestDurationsFallIntoBuckets(t *testing.T) {
	var d durations
	for _, took := range []time.Duration{0, time.Millisecond, time.Millisecond + 1, time.Hour} {
		d.observe(took)
	}
	h := d.histogram()
	for le, want := range map[float64]uint64{0.00025: 1, 0.001: 2, 0.0025: 3, 2.5: 3} {
		if h.Buckets[le] != want {
			t.Errorf("at most %v s: %d, want %d", le, h.Buckets[le], want)
		}
	}
	if h.Count != 4 || h.Sum != time.Hour+2*time.Millisecond+1 {
		t.Errorf("%d in all, %v", h.Count, h.Sum)
	}
}
