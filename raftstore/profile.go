package raftstore

import (
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/internal/vfs"
)

// slowestHeartbeat bounds the heartbeat of a slow disk: 16 times that of ProfileFast, for writes of 800 ms. A slower
// disk is useless.
const slowestHeartbeat = 4 * time.Second

// Profile returns the timers of the store's groups while nothing is slow.
func (s *Store) Profile() Profile { return *s.profile.Load() }

// SetProfile changes these timers. Running groups follow, as they do when a disk becomes slow (Group.fitTimers).
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

// atLeast returns the heartbeat of p, doubled until it is at least d, but at most slowestHeartbeat.
func (p *Profile) atLeast(d time.Duration) time.Duration {
	h := p.Heartbeat
	for h < d && 2*h <= slowestHeartbeat {
		h *= 2
	}
	return h
}

// stretched returns p with another heartbeat and a lease in proportion.
func (p Profile) stretched(heartbeat time.Duration) Profile {
	p.LeaderLease = time.Duration(float64(p.LeaderLease) * (float64(heartbeat) / float64(p.Heartbeat)))
	p.Heartbeat = heartbeat
	return p
}

// nextHeartbeat returns the heartbeat for a server that uses now and needs least. It increases at once. It decreases
// when least is a quarter below the next step.
func (p *Profile) nextHeartbeat(now, least time.Duration) time.Duration {
	if up := p.atLeast(least); up > now {
		return up
	}
	return min(max(now, p.Heartbeat), p.atLeast(least+least/3))
}

// fitHeartbeat updates the heartbeat that this server needs from its measurements.
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

// neededHeartbeat returns the heartbeat timeout that this server requests of its groups.
func (s *Store) neededHeartbeat() time.Duration { return time.Duration(s.heartbeat.Load()) }

// change changes the configuration of a running raft.
func (n *instance) change(update func(*raft.ReloadableConfig)) error {
	n.reload.Lock()
	defer n.reload.Unlock()
	rc := n.raft.ReloadableConfig()
	update(&rc)
	return n.raft.ReloadConfig(rc)
}

// Slowness has the measurements of a server's disk and timers, and the limits of its profile.
type Slowness struct {
	Fsync, FsyncLimit       time.Duration // a log write with its fsync
	Lateness, LatenessLimit time.Duration // how late a timer fires
	Heartbeat               time.Duration // timeout that the server requests of its groups
}

// Slowness returns the measurements of the last two minutes.
func (s *Store) Slowness() Slowness {
	p := s.Profile()
	fsync, lateness := s.slowness.figures()
	return Slowness{
		Fsync: fsync, FsyncLimit: p.Heartbeat / fsyncShare, Lateness: lateness, LatenessLimit: p.Heartbeat / latenessShare,
		Heartbeat: s.neededHeartbeat(),
	}
}

// watchSlowness measures until the store closes.
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

// probe measures a disk that was slow while no group writes to it. Without a probe the disk would count as slow
// forever, or as fast. probe does not wait.
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

// endProbe waits for a running probe, but not for a disk that hangs.
func (s *Store) endProbe() {
	t := time.NewTimer(shutdownLimit)
	defer t.Stop()
	select {
	case s.probing <- struct{}{}:
	case <-t.C:
	}
}

// Limits of the time that a log write may take on a leader.
const (
	leastStall = 500 * time.Millisecond
	mostStall  = 5 * time.Second
)

// stallLimit returns how long a log write may take on a leader: two of this server's heartbeats, so that a slow disk
// does not count as hung.
func (s *Store) stallLimit() time.Duration {
	if limit := s.opts.DiskStallLimit; limit > 0 {
		return limit
	}
	limit := min(2*s.neededHeartbeat(), mostStall)
	return max(leastStall, 2*s.Profile().Heartbeat, limit)
}
