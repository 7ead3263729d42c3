package ticks

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestTickersTickTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every = 100 * time.Millisecond
		for _, begun := range []time.Duration{0, 1, 37 * time.Millisecond, every - 1} {
			time.Sleep(until(2*every) + begun)
			next := time.Now().Add(every - begun)
			single, double := New(every), New(2*every)
			for range 3 {
				if at := <-single.C; !at.Equal(next) {
					t.Errorf("%v after a tick: a tick at %v, want %v", begun, at, next)
				}
				next = next.Add(every)
				if a, b := <-single.C, <-double.C; !a.Equal(next) || !b.Equal(next) {
					t.Errorf("%v after a tick: ticks at %v and %v, want %v", begun, a, b, next)
				}
				next = next.Add(every)
			}
			single.Stop()
			double.Stop()
		}
	})
}

// A goroutine that is busy at a tick receives it afterwards, and the next one in time.
func TestATickWaitsForItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every = 100 * time.Millisecond
		time.Sleep(until(every))
		begun := time.Now()
		tick := New(every)
		defer tick.Stop()
		time.Sleep(every + every/2)
		for i, want := range []time.Duration{every, 2 * every} {
			if at := (<-tick.C).Sub(begun); at != want {
				t.Errorf("tick %d after %v, want %v", i, at, want)
			}
		}
		if took := time.Since(begun); took != 2*every {
			t.Errorf("two ticks took %v", took)
		}
	})
}

func TestAStoppedTickerIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tick := New(time.Second)
		<-tick.C
		tick.Stop()
		select {
		case at := <-tick.C:
			t.Errorf("a tick at %v", at)
		case <-time.After(5 * time.Second):
		}
	})
}
