package timers

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/rowraft/rowraft/internal/vfs"
)

// ServerOptions configure a Server.
type ServerOptions struct {
	FS      vfs.FS // the disk of Dir
	Dir     string // for the file of a probe
	Profile Profile
	// StallLimit is how long a log write may take before a leader gives its lead up; 0: it follows the heartbeat.
	StallLimit time.Duration
	Logger     *slog.Logger
	// Fixed keeps the timers at those of Profile. For tests, which share a busy machine.
	Fixed bool
}

// Server measures one server and derives the timers that it needs. Safe for concurrent use.
type Server struct {
	ServerOptions
	Delays  *Delays
	profile atomic.Pointer[Profile] // timers while nothing is slow
	// heartbeat is the result of the last fit (a time.Duration). fit swaps it, because SetProfile and Run both call fit.
	heartbeat atomic.Int64
	probing   *semaphore.Weighted // of 1: held by a running probe
}

// NewServer returns a Server that has measured nothing yet. The caller runs Run.
func NewServer(o ServerOptions) *Server {
	s := &Server{ServerOptions: o, Delays: newDelays(time.Now()), probing: semaphore.NewWeighted(1)}
	s.profile.Store(&o.Profile)
	s.fit()
	return s
}

// Profile returns the timers while nothing is slow.
func (s *Server) Profile() Profile { return *s.profile.Load() }

// SetProfile changes these timers.
func (s *Server) SetProfile(p Profile) error {
	if err := p.Validate(); err != nil {
		return err
	}
	s.profile.Store(&p)
	s.fit()
	return nil
}

// Heartbeat returns the heartbeat timeout that this server needs.
func (s *Server) Heartbeat() time.Duration { return time.Duration(s.heartbeat.Load()) }

// fit updates the heartbeat from the measurements.
func (s *Server) fit() {
	fsync, lateness := s.Delays.figures()
	if s.Fixed {
		fsync, lateness = 0, 0
	}
	p := s.Profile()
	was := s.Heartbeat()
	now := p.nextHeartbeat(was, leastHeartbeat(fsync, lateness))
	if !s.heartbeat.CompareAndSwap(int64(was), int64(now)) || was == 0 || was == now {
		return
	}
	s.Logger.Info("Raft timers follow the disk and the CPU of this server", "heartbeat", now, "before", was,
		"fsync", fsync, "fsync_limit", p.Heartbeat/fsyncShare, "lateness", lateness, "lateness_limit",
		p.Heartbeat/latenessShare)
}

// Slowness has the measurements of a server's disk and timers, and the limits of its profile.
type Slowness struct {
	Fsync, FsyncLimit       time.Duration // a log write with its fsync
	Lateness, LatenessLimit time.Duration // how late a timer fires
	Heartbeat               time.Duration // timeout that the server requests of its groups
}

// Slowness returns the measurements of the last two minutes.
func (s *Server) Slowness() Slowness {
	p := s.Profile()
	fsync, lateness := s.Delays.figures()
	return Slowness{
		Fsync: fsync, FsyncLimit: p.Heartbeat / fsyncShare, Lateness: lateness, LatenessLimit: p.Heartbeat / latenessShare,
		Heartbeat: s.Heartbeat(),
	}
}

// Run measures until stop is closed. Close waits for what it leaves behind.
func (s *Server) Run(stop <-chan struct{}) {
	t := time.NewTimer(beatEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-stop:
			return
		}
		t.Reset(beatEvery)
		second, suspended := s.Delays.beat(time.Now())
		if suspended > 0 {
			s.Logger.Warn("this process did not run: it was suspended, or had no CPU", "took", suspended)
		}
		if second {
			s.fit()
			s.probe()
		}
	}
}

const probeName = "probe"

// probe measures a disk that was slow while no group writes to it. Without a probe the disk would count as slow
// forever, or as fast. probe does not wait.
func (s *Server) probe() {
	if s.Heartbeat() <= s.Profile().Heartbeat || !s.Delays.isQuiet() || !s.probing.TryAcquire(1) {
		return
	}
	go func() {
		defer s.probing.Release(1)
		begun := s.Delays.Begin(time.Now())
		if d, ok := s.FS.(vfs.LogWaiter); ok {
			d.WaitLog(s.Dir)
		}
		name := filepath.Join(s.Dir, probeName)
		if err := vfs.WriteFile(s.FS, name, []byte{0}); err != nil {
			s.Logger.Debug("the disk cannot be probed", "err", err)
			return
		}
		s.Delays.End(begun, time.Now())
		if err := s.FS.Remove(name); err != nil {
			s.Logger.Debug("the file of a probe stays", "err", err)
		}
	}()
}

// Close waits for a running probe until ctx ends, because a disk may hang.
func (s *Server) Close(ctx context.Context) {
	_ = s.probing.Acquire(ctx, 1) // its only error is that of ctx
}

// Bounds of the time that a log write may take on a leader.
const (
	leastStall = 500 * time.Millisecond
	mostStall  = 5 * time.Second
)

// StallLimit returns how long a log write may take on a leader: two of this server's heartbeats, so that a slow disk
// does not count as hung.
func (s *Server) StallLimit() time.Duration {
	if limit := s.ServerOptions.StallLimit; limit > 0 {
		return limit
	}
	limit := min(2*s.Heartbeat(), mostStall)
	return max(leastStall, 2*s.Profile().Heartbeat, limit)
}

// FatalStalls is how many times the StallLimit a log write may take on any replica.
const FatalStalls = 10
