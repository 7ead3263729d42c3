package raftstore

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// Profile returns the timers of the store.
func (s *Store) Profile() Profile { return *s.profile.Load() }

// SetProfile changes the timers, of running groups too: heartbeat and election timeout at
// once, though not below the leader lease that a group was started with. Raft can change the
// lease and the commit timeout only when it starts anew, so these wait for that.
func (s *Store) SetProfile(p Profile) error {
	if err := p.validate(); err != nil {
		return err
	}
	s.profile.Store(&p)
	s.mu.Lock()
	groups := make([]*Group, 0, len(s.mu.groups))
	for _, g := range s.mu.groups {
		if g != nil { // one that is being opened takes it by itself
			groups = append(groups, g)
		}
	}
	s.mu.Unlock()
	for _, g := range groups {
		n := g.run.Load()
		if n == nil {
			continue // likewise one that is restarted
		}
		if err := n.follow(); err != nil {
			return fmt.Errorf("group %s: %w", g.cfg.ID, err)
		}
	}
	return nil
}

func (p *Profile) validate() error {
	if p.LeaderLease > p.Heartbeat || p.Heartbeat < 10*time.Millisecond || p.Commit < time.Millisecond {
		return invalidOptions("Profile %+v: want heartbeat ≥ 10ms, lease ≤ heartbeat, commit ≥ 1ms", *p)
	}
	return nil
}

// follow gives a running raft the timers of the store that it can take. It reads them as
// the one who changes raft's configuration, so that the last who does has the newest.
func (n *instance) follow() error {
	return n.change(func(rc *raft.ReloadableConfig) {
		heartbeat := max(n.g.store.Profile().Heartbeat, n.lease)
		rc.HeartbeatTimeout, rc.ElectionTimeout = heartbeat, heartbeat
	})
}

// change changes the configuration of a running raft.
func (n *instance) change(update func(*raft.ReloadableConfig)) error {
	n.reload.Lock()
	defer n.reload.Unlock()
	rc := n.raft.ReloadableConfig()
	update(&rc)
	return n.raft.ReloadConfig(rc)
}

// stallLimit is how long a write to the log may hang on a leader.
func (s *Store) stallLimit() time.Duration {
	if limit := s.opts.DiskStallLimit; limit > 0 {
		return limit
	}
	return max(500*time.Millisecond, 2*s.Profile().Heartbeat)
}
