package route

import (
	"testing"
	"time"
)

func TestBudgetIsAFifthAndAFloor(t *testing.T) {
	var b Budget
	now := time.Now()
	taken := 0
	for b.Take(now) {
		taken++
	}
	if taken != RetryBurst {
		t.Errorf("%d at once, want %v", taken, RetryBurst)
	}
	count := func() (n int) {
		for b.Take(now) {
			n++
		}
		return n
	}
	b.since, now = b.since.Add(time.Hour), now.Add(time.Hour+2*time.Second) // as if nothing but 2 s had passed
	if n := count(); n != 2*RetryFloor {
		t.Errorf("%d after two seconds, want %v", n, 2*RetryFloor)
	}
	b.since = now.Add(time.Hour) // no floor: real time stands still for it
	b.tokens += RetryShare * 50
	if n := int(b.tokens); n != 10 {
		t.Errorf("%d for 50 requests, want 10", n)
	}
}
