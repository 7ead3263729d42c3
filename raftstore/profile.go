package raftstore

import (
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/internal/vfs"
)

// slowestHeartbeat bounds what a slow disk makes of the timers: 16 times ProfileFast, for writes of 800 ms.
// A disk that is slower still is as good as none.
const slowestHeartbeat = 4 * time.Second

// Profile returns the timers that the groups of the store have while nothing is slow.
func (s *Store) Profile() Profile { return *s.profile.Load() }

// SetProfile changes these timers. Running groups follow, as they do when a disk becomes slow
// (Group.fitTimers).
func (s *Store) SetProfile(p Profile) error {
	if err := p.validate(); err != nil {
		return err
	}
	s.profile.Store(&p)
	s.fitHeartbeat()
	return nil
}

func (p *Profile) validate() error {
	if p.LeaderLease > p.Heartbeat || p.Heartbeat < 10*time.Millisecond || p.Commit < time.Millisecond {
		return invalidOptions("Profile %+v: want heartbeat ≥ 10ms, lease ≤ heartbeat, commit ≥ 1ms", *p)
	}
	return nil
}

// atLeast returns the heartbeat of p, doubled until it is d at least, within slowestHeartbeat.
func (p *Profile) atLeast(d time.Duration) time.Duration {
	h := p.Heartbeat
	for h < d && 2*h <= slowestHeartbeat {
		h *= 2
	}
	return h
}

// stretched returns p with another heartbeat, and the lease that goes with it.
func (p Profile) stretched(heartbeat time.Duration) Profile {
	p.LeaderLease = time.Duration(float64(p.LeaderLease) * (float64(heartbeat) / float64(p.Heartbeat)))
	p.Heartbeat = heartbeat
	return p
}

// nextHeartbeat is what a server with the heartbeat now needs by its measurements: more at once, less when
// what it needs is a quarter below the next step.
func (p *Profile) nextHeartbeat(now, least time.Duration) time.Duration {
	if up := p.atLeast(least); up > now {
		return up
	}
	return min(max(now, p.Heartbeat), p.atLeast(least+least/3))
}

// fitHeartbeat makes what this server measured the heartbeat that it needs.
func (s *Store) fitHeartbeat() {
	fsync, lateness := s.slowness.figures()
	if s.opts.hooks.steady {
		fsync, lateness = 0, 0
	}
	p := s.Profile()
	was := s.neededHeartbeat()
	now := p.nextHeartbeat(was, leastHeartbeat(fsync, lateness))
	if !s.heartbeat.CompareAndSwap(int64(was), int64(now)) || was == 0 || was == now {
		return
	}
	s.opts.Logger.Warn("Raft timers follow the disk and the CPU of this server", "heartbeat", now, "before", was,
		"fsync", fsync, "fsync_limit", p.Heartbeat/fsyncShare, "lateness", lateness, "lateness_limit", p.Heartbeat/latenessShare)
}

// neededHeartbeat is the heartbeat timeout that this server asks of its groups.
func (s *Store) neededHeartbeat() time.Duration { return time.Duration(s.heartbeat.Load()) }

// change changes the configuration of a running raft.
func (n *instance) change(update func(*raft.ReloadableConfig)) error {
	n.reload.Lock()
	defer n.reload.Unlock()
	rc := n.raft.ReloadableConfig()
	update(&rc)
	return n.raft.ReloadConfig(rc)
}

// Slowness is what a server measured of its disk and of its timers, and how much of it its profile bears.
type Slowness struct {
	Fsync, FsyncLimit       time.Duration // a write to the log with its fsync
	Lateness, LatenessLimit time.Duration // how late a timer fires
	Heartbeat               time.Duration // the timeout that the server asks of its groups for it
}

// Slowness returns what this server measured over the last two minutes.
func (s *Store) Slowness() Slowness {
	p := s.Profile()
	fsync, lateness := s.slowness.figures()
	return Slowness{
		Fsync: fsync, FsyncLimit: p.Heartbeat / fsyncShare, Lateness: lateness, LatenessLimit: p.Heartbeat / latenessShare,
		Heartbeat: s.neededHeartbeat(),
	}
}

// watchSlowness measures until the store is closed.
func (s *Store) watchSlowness() {
	defer s.wg.Done()
	t := time.NewTimer(beatEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.stop:
			return
		}
		t.Reset(beatEvery)
		second, suspended := s.slowness.beat(time.Now())
		if suspended > 0 {
			s.opts.Logger.Warn("this process stood still: it was suspended, or had no CPU", "took", suspended)
		}
		if second {
			s.fitHeartbeat()
			s.probe()
		}
	}
}

const probeName = "probe"

// probe measures a disk that was found slow while no group writes to it: otherwise it would be slow forever, or
// be taken for a fast one. It does not wait.
func (s *Store) probe() {
	if s.neededHeartbeat() <= s.Profile().Heartbeat || !s.slowness.isQuiet() || !s.probing.TryLock() {
		return
	}
	go func() {
		defer s.probing.Unlock()
		begun := s.slowness.begin(time.Now())
		if d, ok := s.opts.FS.(vfs.LogWaiter); ok {
			d.WaitLog(s.opts.Dir)
		}
		name := filepath.Join(s.opts.Dir, probeName)
		if err := vfs.WriteFile(s.opts.FS, name, []byte{0}); err != nil {
			s.opts.Logger.Debug("the disk cannot be probed", "err", err)
			return
		}
		s.slowness.wrote(s.slowness.took(begun, time.Now()))
		if err := s.opts.FS.Remove(name); err != nil {
			s.opts.Logger.Debug("the file of a probe stays", "err", err)
		}
	}()
}

// endProbe waits for a probe that runs, though not for a disk that hangs.
func (s *Store) endProbe() {
	t := time.NewTimer(shutdownLimit)
	defer t.Stop()
	select {
	case s.probing <- struct{}{}:
	case <-t.C:
	}
}

// Limits of how long a write to the log may hang on a leader.
const (
	leastStall = 500 * time.Millisecond
	mostStall  = 5 * time.Second
)

// stallLimit is how long a write to the log may hang on a leader: two heartbeats as this server needs them, so
// that a slow disk is no hung one.
func (s *Store) stallLimit() time.Duration {
	if limit := s.opts.DiskStallLimit; limit > 0 {
		return limit
	}
	limit := min(2*s.neededHeartbeat(), mostStall)
	return max(leastStall, 2*s.Profile().Heartbeat, limit)
}
