package timers

import (
	"sync"
	"time"
)

const (
	// fsyncShare: a log write may take 1/fsyncShare of a heartbeat timeout, for six writes and the part of the lease.
	fsyncShare = 5
	// latenessShare: a timer may be late by 1/latenessShare of a heartbeat timeout, on the leader and on the follower.
	latenessShare = 2

	// beatEvery is the interval of Delays.beat.
	beatEvery = 50 * time.Millisecond
	// suspension is the lateness from which on the process counts as suspended (SIGSTOP, a paused machine). Timers must
	// not follow that.
	suspension = time.Second

	// window is the number of seconds that are kept. The worst outliers of them are ignored, so short
	// hiccups change nothing. Three slow seconds count, for two minutes.
	window   = 120
	outliers = 2
)

// worstSeconds holds one figure for each of the last seconds.
type worstSeconds struct {
	seconds [window]time.Duration
	next    int
}

func (w *worstSeconds) add(d time.Duration) {
	w.seconds[w.next] = d
	w.next = (w.next + 1) % window
}

// figure returns the worst second after outliers worse ones.
func (w *worstSeconds) figure() time.Duration {
	var worst [outliers + 1]time.Duration // descending
	for _, d := range w.seconds {
		for i := range worst {
			if d > worst[i] {
				worst[i], d = d, worst[i]
			}
		}
	}
	return worst[outliers]
}

// Delays measures what delays the raft groups of a server: log writes with their fsyncs, and timers that fire late.
// Safe for concurrent use, except that one goroutine calls beat.
type Delays struct {
	mu sync.Mutex // guards all fields below

	beaten  time.Time     // last call of beat
	still   time.Duration // total time for which the process was suspended: the lateness of all beats; never decreases
	elapsed time.Duration // the time measured in the present second, without suspensions

	// Log writes of the present second. Their figure is the mean by time, Σd² / Σd: the duration of the write that a
	// heartbeat meets at a random moment.
	sum, squares float64 // seconds, seconds²
	latest       time.Duration

	fsync, lateness worstSeconds
	quiet           bool // no log write in the last second
}

// newDelays returns Delays that have measured nothing before now.
func newDelays(now time.Time) *Delays { return &Delays{beaten: now} }

// Moment is the start of a write.
type Moment struct {
	at    time.Time
	still time.Duration
}

// Begin returns the start of a log write, for End.
func (s *Delays) Begin(now time.Time) Moment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Moment{now, s.stillLocked(now)}
}

// stillLocked returns how long the process has been suspended until now. A write that ends just after a suspension may
// call it before beat runs.
// REQUIRES: s.mu is held.
func (s *Delays) stillLocked(now time.Time) time.Duration {
	return s.still + max(0, now.Sub(s.beaten)-beatEvery)
}

// End counts a log write that began at m, and returns how long the disk took for it.
func (s *Delays) End(m Moment, now time.Time) time.Duration {
	d := s.Took(m, now)
	s.wrote(d)
	return d
}

// Took returns the time since m without the time for which the process was suspended or without CPU: that is not the
// disk's fault.
func (s *Delays) Took(m Moment, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, now.Sub(m.at)-(s.stillLocked(now)-m.still))
}

// wrote counts a log write that took d.
func (s *Delays) wrote(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum += d.Seconds()
	s.squares += d.Seconds() * d.Seconds()
}

// beat is called every beatEvery, as far as the process can. It reports whether a second is over, and how long the
// process was suspended since the last call; 0: it was not.
func (s *Delays) beat(now time.Time) (second bool, suspended time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	late := max(0, now.Sub(s.beaten)-beatEvery)
	s.beaten = now
	s.still += late
	if late >= suspension {
		suspended = late
		late = 0
	}
	s.latest = max(s.latest, late)
	if s.elapsed += beatEvery + late; s.elapsed < time.Second {
		return false, suspended
	}
	mean := 0.0
	if s.sum > 0 {
		mean = s.squares / s.sum
	}
	s.fsync.add(time.Duration(mean * float64(time.Second)))
	s.lateness.add(s.latest)
	s.quiet = s.sum == 0
	s.elapsed, s.sum, s.squares, s.latest = 0, 0, 0, 0
	return true, suspended
}

// figures returns how long a log write takes and how late timers fire.
func (s *Delays) figures() (fsync, lateness time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fsync.figure(), s.lateness.figure()
}

// isQuiet reports whether there was no log write in the last second.
func (s *Delays) isQuiet() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quiet
}

// leastHeartbeat returns the shortest heartbeat timeout that a server with these figures can keep.
func leastHeartbeat(fsync, lateness time.Duration) time.Duration {
	return max(fsyncShare*fsync, latenessShare*lateness)
}
