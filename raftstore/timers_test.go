package raftstore

import (
	"testing"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/raftstore/timers"
)

// Running groups change their timers, their leases included, without an unplanned restart, and accept proposals all the
// time.
func TestTimersChangeWhileGroupsRun(t *testing.T) {
	t.Parallel() // it waits for the pauses between restarts
	c := startedCluster(t, 3, nil)
	c.propose("fast")
	var last rowraft.Index
	for _, p := range []timers.Profile{timers.Dense, timers.Fast} {
		for _, n := range c.nodes {
			if err := n.store.SetProfile(p); err != nil {
				t.Fatal(err)
			}
		}
		c.propose("while they change")
		testutil.Eventually(t, "all replicas have the timers and the leases of the profile", func() bool {
			for _, n := range c.nodes {
				run := n.group.run.Load()
				if run == nil || run.lease != p.LeaderLease {
					return false
				}
				var rc raft.ReloadableConfig = run.raft.ReloadableConfig()
				if rc.HeartbeatTimeout != p.Heartbeat || rc.ElectionTimeout != p.Heartbeat ||
					n.group.Status().Heartbeat != p.Heartbeat {
					return false
				}
			}
			return true
		})
		last = c.propose("again")
	}
	c.converged(last)
	for _, n := range c.nodes {
		if got := n.group.Status().Restarts; got != 0 {
			t.Errorf("node %s: %d restarts count as unplanned", n.id, got)
		}
	}
	if err := c.nodes[0].store.SetProfile(timers.Profile{}); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("no timers at all: %v", err)
	}
}
