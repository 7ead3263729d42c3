package raftstore

import (
	"testing"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
)

// Groups that run take other timers, as far as raft can change them, and go on; those that
// start anew take all of them.
func TestTimersChangeWhileGroupsRun(t *testing.T) {
	c := startedCluster(t, 3, nil)
	c.propose("fast")
	var last rowraft.Index
	for _, p := range []Profile{ProfileDefault, ProfileDense, ProfileFast} {
		for _, n := range c.nodes {
			if err := n.store.SetProfile(p); err != nil {
				t.Fatal(err)
			}
			var got raft.ReloadableConfig = n.group.run.Load().raft.ReloadableConfig()
			if got.HeartbeatTimeout != p.Heartbeat || got.ElectionTimeout != p.Heartbeat || n.store.Profile() != p {
				t.Errorf("timers %v and %v, want %v", got.HeartbeatTimeout, got.ElectionTimeout, p.Heartbeat)
			}
		}
		last = c.propose("again")
	}
	c.converged(last)

	n := c.followers()[0]
	if err := n.store.SetProfile(ProfileDense); err != nil {
		t.Fatal(err)
	}
	n.group.requestRestart("to take all timers")
	eventually(t, "the group runs again", func() bool {
		run := n.group.run.Load()
		return n.group.Status().Restarts == 1 && run != nil && run.lease == ProfileDense.LeaderLease
	})
	// Raft refuses a heartbeat below the lease, which it cannot change.
	if err := n.store.SetProfile(ProfileFast); err != nil {
		t.Fatal(err)
	}
	if got := n.group.run.Load().raft.ReloadableConfig().HeartbeatTimeout; got != ProfileDense.LeaderLease {
		t.Errorf("heartbeat %v, want the lease %v", got, ProfileDense.LeaderLease)
	}
	if err := n.store.SetProfile(Profile{}); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("no timers at all: %v", err)
	}
}

// A leader's disk may hang for as long as an election takes, unless a time was given.
func TestTheStallLimitFollowsTheTimers(t *testing.T) {
	c := newTestCluster(t, 1, func(o *Options) { o.DiskStallLimit = 0 })
	n := c.nodes[0]
	c.open(n) // and no group, whose disk could hang
	for _, p := range []Profile{ProfileDefault, ProfileDense, ProfileFast} {
		if err := n.store.SetProfile(p); err != nil {
			t.Fatal(err)
		}
		if want := 2 * p.Heartbeat; n.store.stallLimit() != want {
			t.Errorf("the disk of a leader may hang for %v, want %v", n.store.stallLimit(), want)
		}
	}
}
