package client

import "testing"

// TestSilenceIsCountedInTicks: of a time in which the process stood still there is one tick
// at most, and what was said meanwhile is heard before the next ones.
func TestSilenceIsCountedInTicks(t *testing.T) {
	var s silence
	for tick := range 10 * silenceTicks {
		if tick%(silenceTicks-1) == 0 {
			s.heard.Store(true)
		}
		if s.tick() {
			t.Fatalf("silent at tick %d, though something was heard %d ticks ago at most", tick, silenceTicks-2)
		}
	}
	n := 1
	for s.quiet = 0; !s.tick(); n++ {
	}
	if n != silenceTicks {
		t.Errorf("silent after %d ticks, want %d", n, silenceTicks)
	}
}
