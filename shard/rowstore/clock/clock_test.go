package clock

import (
	"testing"

	"github.com/rowraft/rowraft/internal/slab"
)

// TestTakesWhatWasNotUsed: records that are used in every round stay, the others leave, each once.
func TestTakesWhatWasNotUsed(t *testing.T) {
	c := New(pageBits + 100)
	const n = pageBits + 1000
	for p := range slab.Place(n) {
		if p < 200 || p > 5000 && p%3 == 0 {
			c.Add(p)
		}
	}
	c.Remove(6000)
	taken := map[slab.Place]bool{}
	for range 300 {
		for p := range slab.Place(200) {
			c.Touch(p)
		}
		p, ok := c.Take()
		if !ok || taken[p] || p < 200 || p <= 5000 || p%3 != 0 || p == 6000 {
			t.Fatalf("took %d, %t, after %d others", p, ok, len(taken))
		}
		taken[p] = true
	}
	for {
		p, ok := c.Take()
		if !ok {
			break
		}
		taken[p] = true
	}
	if want := 200 + (n-5001+2)/3 - 1; len(taken) != want {
		t.Fatalf("took %d places, want %d", len(taken), want)
	}
	if _, ok := New(10).Take(); ok {
		t.Fatal("took a place of an empty clock")
	}
}

// TestTouchBeforeAdd: a reader may find a record before the writer has added its place.
func TestTouchBeforeAdd(t *testing.T) {
	c := New(2 * pageBits)
	for _, p := range []slab.Place{0, pageBits + 5, 9 * pageBits} {
		c.Touch(p)
		c.Add(p)
	}
	for range 3 {
		if _, ok := c.Take(); !ok {
			t.Fatal("a place that was added is not taken")
		}
	}
}
