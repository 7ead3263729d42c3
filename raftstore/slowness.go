package raftstore

import (
	"sync"
	"time"
)

// Slow disks and starved processes
//
// A write to the log holds up raft's main goroutine, and with it heartbeats and votes. An election writes up
// to six times, one after the other: term and vote of the candidate, then of the voter. Timers that are
// shorter than that elect nobody. A process that gets no CPU sends and answers heartbeats late, to the same
// effect. So a server measures both, and the slower decides the shortest timers that it can keep.
const (
	// fsyncShare of a heartbeat timeout is what a write to the log may take: six of them and the lease's share.
	fsyncShare = 5
	// latenessShare of a heartbeat timeout is how late a timer may fire: on the leader, and on the follower.
	latenessShare = 2

	// beatEvery is between two looks at the clock.
	beatEvery = 50 * time.Millisecond
	// standstill is from when on a late timer means that the process was suspended (SIGSTOP, a paused
	// machine). No timer is to follow that.
	standstill = time.Second

	// slownessWindow is how many seconds are remembered. The worst slownessOutliers of them do not count, so
	// that hiccups change nothing; three slow seconds do, and are remembered for two minutes.
	slownessWindow   = 120
	slownessOutliers = 2
)

// worstSeconds is one figure for each of the last seconds.
type worstSeconds struct {
	seconds [slownessWindow]time.Duration
	next    int
}

func (w *worstSeconds) add(d time.Duration) {
	w.seconds[w.next] = d
	w.next = (w.next + 1) % slownessWindow
}

// figure is the worst second but slownessOutliers.
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

// slowness measures what delays the raft groups of a server: writes to the log with their fsyncs, and
// timers that fire late. Safe for concurrent use; one goroutine calls beat.
type slowness struct {
	mu      sync.Mutex
	beaten  time.Time     // when beat was called last
	still   time.Duration // for which the process has stood still so far: what timers were late
	elapsed time.Duration // of the present second, standstills taken off

	// Of the present second. The figure of its writes is the mean by time, Σd² / Σd: how long the write takes
	// that a heartbeat meets when it comes at a random moment.
	sum, squares float64 // seconds, seconds²
	latest       time.Duration

	fsync, lateness worstSeconds
	quiet           bool // nothing was written in the last second
}

func newSlowness(now time.Time) *slowness { return &slowness{beaten: now} }

// moment is when a write began.
type moment struct {
	at    time.Time
	still time.Duration
}

// begin is called when a write begins.
func (s *slowness) begin(now time.Time) moment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return moment{now, s.stillLocked(now)}
}

// stillLocked is how long the process has stood still until now. A write that ends right after a standstill
// may look before beat does.
// REQUIRES: s.mu is held.
func (s *slowness) stillLocked(now time.Time) time.Duration {
	return s.still + max(0, now.Sub(s.beaten)-beatEvery)
}

// took is how long it is since m, without the time for which the process itself stood still: suspended or
// without CPU, which is not the disk's fault.
func (s *slowness) took(m moment, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, now.Sub(m.at)-(s.stillLocked(now)-m.still))
}

// wrote counts a write to the log that took d.
func (s *slowness) wrote(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum += d.Seconds()
	s.squares += d.Seconds() * d.Seconds()
}

// beat is called every beatEvery, as well as the process can. It reports when a second is over, and how long
// the process was suspended since the last call; 0: not at all.
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

// figures returns how long a write to the log takes, and how late timers fire.
func (s *slowness) figures() (fsync, lateness time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fsync.figure(), s.lateness.figure()
}

// isQuiet reports whether nothing was written in the last second.
func (s *slowness) isQuiet() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quiet
}

// leastHeartbeat is the shortest heartbeat timeout that such a server keeps.
func leastHeartbeat(fsync, lateness time.Duration) time.Duration {
	return max(fsyncShare*fsync, latenessShare*lateness)
}
