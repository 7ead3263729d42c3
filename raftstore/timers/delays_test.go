package timers

import (
	"log/slog"
	"testing"
	"time"
)

// clocked beats Delays by a clock of its own.
type clocked struct {
	*Delays
	now time.Time
}

func newClocked() *clocked {
	now := time.Unix(1, 0)
	return &clocked{newDelays(now), now}
}

// second lets a second pass, with writes of these durations.
func (c *clocked) second(writes ...time.Duration) {
	for _, d := range writes {
		c.wrote(d)
	}
	for over := false; !over; {
		c.now = c.now.Add(beatEvery)
		over, _ = c.beat(c.now)
	}
}

func (c *clocked) fsync() time.Duration {
	f, _ := c.figures()
	return f
}

func near(got, want time.Duration) bool { return (got - want).Abs() < time.Microsecond }

func TestThreeSlowSecondsAreASlowDisk(t *testing.T) {
	const slow = 210 * time.Millisecond
	c := newClocked()
	for range outliers {
		c.second(slow)
		c.second(time.Millisecond, time.Millisecond)
		if got := c.fsync(); got > time.Millisecond {
			t.Fatalf("a write takes %v after single hiccups, want 1ms", got)
		}
	}
	c.second(slow)
	for i := range window - 5 {
		if got := c.fsync(); !near(got, slow) {
			t.Fatalf("%d s after the last slow write: %v, want %v", i, got, slow)
		}
		c.second(time.Millisecond)
	}
	c.second(time.Millisecond)
	if got := c.fsync(); !near(got, time.Millisecond) {
		t.Errorf("after two minutes: %v, want 1ms", got)
	}
}

// The figure of a second is the duration of the write that a heartbeat meets at a random moment.
func TestManyFastWritesDoNotHideASlowOne(t *testing.T) {
	c := newClocked()
	writes := []time.Duration{900 * time.Millisecond}
	for range 100 {
		writes = append(writes, time.Millisecond)
	}
	for range outliers + 1 {
		c.second(writes...)
	}
	if got, want := c.fsync(), 810*time.Millisecond; (got - want).Abs() > time.Millisecond { // (900² + 100) / 1000
		t.Errorf("100 writes of 1ms and one of 900ms: %v, want %v", got, want)
	}
}

func TestLateTimersAreMeasured(t *testing.T) {
	c := newClocked()
	for range outliers + 1 {
		c.now = c.now.Add(beatEvery + 300*time.Millisecond)
		c.beat(c.now)
		c.second()
	}
	fsync, lateness := c.figures()
	if fsync != 0 || lateness != 300*time.Millisecond {
		t.Errorf("fsync %v, lateness %v, want 0 and 300ms", fsync, lateness)
	}
	if got := leastHeartbeat(fsync, lateness); got != 600*time.Millisecond {
		t.Errorf("the least heartbeat is %v, want twice the lateness", got)
	}
	if got := leastHeartbeat(210*time.Millisecond, lateness); got != 1050*time.Millisecond {
		t.Errorf("the least heartbeat is %v, want five times the fsync", got)
	}
}

// A suspended process has neither a slow disk nor late timers, no matter whether the write or the beat is first to see
// that time has passed.
func TestASuspendedProcessIsNoSlowDisk(t *testing.T) {
	for _, beatFirst := range []bool{false, true} {
		c := newClocked()
		for range outliers + 1 {
			begun := c.Begin(c.now)
			c.now = c.now.Add(beatEvery + 3*time.Second) // SIGSTOP, SIGCONT
			suspended := time.Duration(0)
			if beatFirst {
				_, suspended = c.beat(c.now)
			}
			c.wrote(c.Took(begun, c.now))
			if !beatFirst {
				_, suspended = c.beat(c.now)
			}
			if suspended != 3*time.Second {
				t.Errorf("beat first %v: suspended for %v, want 3s", beatFirst, suspended)
			}
			c.second()
		}
		if fsync, lateness := c.figures(); fsync > beatEvery || lateness != 0 {
			t.Errorf("beat first %v: fsync %v, lateness %v, want at most %v and 0", beatFirst, fsync, lateness, beatEvery)
		}
	}
}

// The time by which a beat was late does not count as time of the disk.
func TestStarvationIsTakenOffTheDisk(t *testing.T) {
	c := newClocked()
	begun := c.Begin(c.now)
	c.now = c.now.Add(beatEvery + 80*time.Millisecond)
	c.beat(c.now)
	c.now = c.now.Add(20 * time.Millisecond)
	if got, want := c.Took(begun, c.now), 70*time.Millisecond; got != want {
		t.Errorf("a write of 150ms during which a timer was 80ms late took %v, want %v", got, want)
	}
}

func TestHeartbeatsFollowWithHysteresis(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	p := Fast
	now := p.nextHeartbeat(0, 0)
	for _, step := range []struct{ fsync, want int }{
		{0, 250}, {50, 250}, {51, 500}, {99, 500}, {100, 500}, {210, 2000}, {400, 2000},
		{200, 2000}, // 1 s would do, with nothing to spare
		{151, 2000}, {149, 1000}, {76, 1000}, {74, 500}, {40, 500}, {37, 250},
		{700, 4000}, {5000, 4000}, {0, 250},
	} {
		now = p.nextHeartbeat(now, leastHeartbeat(ms(step.fsync), 0))
		if now != ms(step.want) {
			t.Fatalf("fsync %d ms: heartbeat %v, want %d ms", step.fsync, now, step.want)
		}
	}
	dense := Dense
	if got := dense.nextHeartbeat(now, 0); got != dense.Heartbeat {
		t.Errorf("another profile: heartbeat %v, want %v", got, dense.Heartbeat)
	}
	slow := p.Stretched(ms(2000))
	if slow.LeaderLease != ms(1600) || slow.Commit != p.Commit || slow.Validate() != nil {
		t.Errorf("fast timers with a heartbeat of 2s are %+v, want a lease of 1.6s", slow)
	}
}

// A slow disk does not count as hung. A hung disk ends the process after 5 s at the latest.
func TestTheStallLimitHasACap(t *testing.T) {
	s := NewServer(ServerOptions{Logger: slog.New(slog.DiscardHandler), Profile: Fast})
	for _, tc := range []struct{ heartbeat, want time.Duration }{
		{250 * time.Millisecond, 500 * time.Millisecond}, {time.Second, 2 * time.Second}, {2 * time.Second, 4 * time.Second},
		{4 * time.Second, 5 * time.Second},
	} {
		s.heartbeat.Store(int64(tc.heartbeat))
		if got := s.StallLimit(); got != tc.want {
			t.Errorf("heartbeat %v: a leader's disk may hang for %v, want %v", tc.heartbeat, got, tc.want)
		}
	}
}

// A leader's disk may hang for as long as an election takes, unless a limit is given.
func TestTheStallLimitFollowsTheTimers(t *testing.T) {
	s := NewServer(ServerOptions{Logger: slog.New(slog.DiscardHandler), Profile: Fast})
	for _, p := range []Profile{Default, Dense, Fast} {
		if err := s.SetProfile(p); err != nil {
			t.Fatal(err)
		}
		if want := 2 * p.Heartbeat; s.StallLimit() != want {
			t.Errorf("the disk of a leader may hang for %v, want %v", s.StallLimit(), want)
		}
	}
	if s := NewServer(ServerOptions{Logger: slog.New(slog.DiscardHandler), Profile: Fast,
		StallLimit: time.Minute}); s.StallLimit() != time.Minute {
		t.Errorf("the disk of a leader may hang for %v, want the minute that was given", s.StallLimit())
	}
}
