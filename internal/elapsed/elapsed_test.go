package elapsed

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestClockCountsBothClocks: a reading includes a sleep of the machine, which only the kernel's clock counts, and the
// time of a test, which only the other one counts.
func TestClockCountsBothClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boot := int64(5)
		c := NewClock(func() int64 { return boot })
		was := c.Now()
		passed := func(want time.Duration) {
			t.Helper()
			now := c.Now()
			if got := time.Duration(now - was); got != want {
				t.Errorf("%v passed, want %v", got, want)
			}
			was = now
		}
		time.Sleep(time.Second)
		passed(time.Second)
		boot += int64(3 * time.Second) // more than the other clock: the machine slept for 2 s
		passed(2 * time.Second)
		time.Sleep(time.Second)
		boot += int64(time.Second)
		passed(time.Second)
		boot += int64(time.Hour)
		passed(time.Hour)
		passed(0)
	})
}
