package raftstore

import (
	"sync"
	"time"
)

// How slow disks and starved processes are measured
//
// A log write blocks raft's main goroutine, and with it heartbeats and votes. An election makes up to six writes, one
// after the other: term and vote of the candidate, then of the voter. With timers shorter than that, no election
// succeeds. A process without enough CPU sends and answers heartbeats late, with the same effect. So a server measures
// both, and the slower one determines the shortest timers that the server can keep.
const (
	// fsyncShare: a log write may take 1/fsyncShare of a heartbeat timeout, for six writes and the part of the lease.
	fsyncShare = 5
	// latenessShare: a timer may be late by 1/latenessShare of a heartbeat timeout, on the leader and on the follower.
	latenessShare = 2

	// beatEvery is the interval of slowness.beat.
	beatEvery = 50 * time.Millisecond
	// standstill is the lateness from which on the process counts as suspended (SIGSTOP, a paused machine). Timers must
	// not follow that.
	standstill = time.Second

	// slownessWindow is the number of seconds that are kept. The worst slownessOutliers of them are ignored, so short
	// hiccups change nothing. Three slow seconds count, for two minutes.
	slownessWindow   = 120
	slownessOutliers = 2
)

// worstSeconds holds one figure for each of the last seconds.
type worstSeconds struct {
	seconds [slownessWindow]time.Duration
	next    int
}

func (w *worstSeconds) add(d time.Duration) {
	w.seconds[w.next] = d
	w.next = (w.next + 1) % slownessWindow
}

// figure returns the worst second after slownessOutliers worse ones.
func (w *worstSeconds) figure() time.Duration {
	var worst [slownessOutliers + 1]time.Duration // descending
	for _, d := range w.seconds {
		for i := range worst {
			if d > worst[i] {
				worst[i], d = d, worst[i]
			}
		}
	}
	return worst[slownessOutliers]
}

// slowness measures what delays the raft groups of a server: log writes with their fsyncs, and timers that fire late.
// Safe for concurrent use, except that one goroutine calls beat.
type slowness struct {
	mu      sync.Mutex
	beaten  time.Time     // last call of beat
	still   time.Duration // total time for which the process was suspended: the lateness of the beats
	elapsed time.Duration // the time measured in the present second, without suspensions

	// Log writes of the present second. Their figure is the mean by time, Σd² / Σd: the duration of the write that a
	// heartbeat meets at a random moment.
	sum, squares float64 // seconds, seconds²
	latest       time.Duration

	fsync, lateness worstSeconds
	quiet           bool // no log write in the last second
}

func newSlowness(now time.Time) *slowness { return &slowness{beaten: now} }

// moment is the start of a write.
type moment struct {
	at    time.Time
	still time.Duration
}

// begin records the start of a write.
func (s *slowness) begin(now time.Time) moment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return moment{now, s.stillLocked(now)}
}

// stillLocked returns how long the process has been suspended until now. A write that ends just after a suspension may
// call it before beat runs.
// REQUIRES: s.mu is held.
func (s *slowness) stillLocked(now time.Time) time.Duration {
	return s.still + max(0, now.Sub(s.beaten)-beatEvery)
}

// took returns the time since m without the time for which the process was suspended or without CPU: that is not the
// disk's fault.
func (s *slowness) took(m moment, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, now.Sub(m.at)-(s.stillLocked(now)-m.still))
}

// wrote counts a log write that took d.
func (s *slowness) wrote(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum += d.Seconds()
	s.squares += d.Seconds() * d.Seconds()
}

// beat is called every beatEvery, as far as the process can. It reports whether a second is over, and how long the
// process was suspended since the last call; 0: it was not.
func (s *slowness) beat(now time.Time) (second bool, suspended time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	late := max(0, now.Sub(s.beaten)-beatEvery)
	s.beaten = now
	s.still += late
	if late >= standstill {
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
func (s *slowness) figures() (fsync, lateness time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fsync.figure(), s.lateness.figure()
}

// isQuiet reports whether there was no log write in the last second.
func (s *slowness) isQuiet() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quiet
}

// leastHeartbeat returns the shortest heartbeat timeout that a server with these figures can keep.
func leastHeartbeat(fsync, lateness time.Duration) time.Duration {
	return max(fsyncShare*fsync, latenessShare*lateness)
}
