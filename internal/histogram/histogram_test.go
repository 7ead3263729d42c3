package histogram

import (
	"testing"
	"time"
)

func TestDurationsFallIntoBuckets(t *testing.T) {
	var d Durations
	for _, took := range []time.Duration{-1, 0, time.Millisecond, time.Millisecond + 1, 7 * time.Minute, 2 * time.Hour} {
		d.Observe(took)
	}
	s := d.Snapshot()
	for le, want := range map[float64]uint64{0.00005: 2, 0.001: 3, 0.0025: 4, 10: 4, 300: 4, 900: 5, 3600: 5} {
		if s.Buckets[le] != want {
			t.Errorf("at most %v s: %d, want %d", le, s.Buckets[le], want)
		}
	}
	if s.Count != 6 || s.Sum != 2*time.Hour+7*time.Minute+2*time.Millisecond+1 {
		t.Errorf("%d in all, %v", s.Count, s.Sum)
	}
}

func BenchmarkObserve(b *testing.B) {
	var d Durations
	b.RunParallel(func(pb *testing.PB) {
		for took := time.Duration(0); pb.Next(); took += 977 * time.Nanosecond {
			d.Observe(took & (1<<30 - 1))
		}
	})
}
