package jobs

import "testing"

// TestSilenceIsCountedInTicks: while a process is suspended there is at most one tick, and the messages
// that arrived meanwhile count before the next tick.
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
