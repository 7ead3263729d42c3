package raftstore

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/raftstore/raftlog"
)

func TestClusterSurvivesItsLeader(t *testing.T) {
	for _, backend := range raftlog.Backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			c := startedCluster(t, 3, func(o *Options) { o.Backend = backend })
			var acked []string
			push := func(s string) rowraft.Index {
				acked = append(acked, s)
				return c.propose(s)
			}
			for i := range 20 {
				push(fmt.Sprint("a", i))
			}
			old := c.leader()
			c.stop(old)
			for i := range 20 {
				push(fmt.Sprint("b", i))
			}
			c.start(old)
			last := push("c")
			c.converged(last)
			for _, n := range c.nodes {
				have := map[string]bool{}
				for _, e := range n.machine.list() {
					have[e] = true
				}
				for _, e := range acked {
					if !have[e] {
						t.Errorf("node %s lost acknowledged entry %q", n.id, e)
					}
				}
			}
		})
	}
}

func TestWholeClusterRestarts(t *testing.T) {
	for _, backend := range raftlog.Backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			c := startedCluster(t, 3, func(o *Options) { o.Backend = backend })
			for i := range 10 {
				c.propose(fmt.Sprint(i))
			}
			for _, n := range c.nodes {
				c.stop(n)
			}
			for _, n := range c.nodes {
				c.start(n)
			}
			c.converged(c.propose("last"))
			list := c.nodes[0].machine.list()
			if len(list) < 11 || list[len(list)-1] != "last" {
				t.Errorf("after the restart the machine holds %q", list)
			}
		})
	}
}

func TestFarBehindFollowerGetsSnapshot(t *testing.T) {
	for _, backend := range raftlog.Backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			c := startedCluster(t, 3, func(o *Options) {
				o.Backend = backend
				o.SegmentSizeBytes = 64 << 10
				o.SnapshotEveryBytes = 64 << 10
				o.TrailingLogBytes = 8 << 10
				o.hooks.tick = 10 * time.Millisecond
			})
			c.propose("first")
			slow := c.followers()[0]
			c.stop(slow)
			pad := string(make([]byte, 4<<10))
			for i := range 64 {
				c.propose(fmt.Sprint(i, pad))
			}
			for _, n := range c.nodes { // any of them may lead
				if n != slow {
					testutil.Eventually(t, "the logs are compacted", func() bool {
						var e raft.Log
						if errors.Is(n.group.inner.GetLog(sentEntries+8, &e), raft.ErrLogNotFound) { // see outrun
							return true
						}
						c.propose(pad) // a later snapshot deletes the log that is kept for the slow one
						return false
					})
				}
			}
			c.start(slow)
			c.converged(c.propose("last"))
			if n := slow.machine.restored(); n == 0 {
				t.Error("the follower caught up without a snapshot")
			}
			// The log begins again after the snapshot, and survives a restart.
			c.stop(slow)
			c.start(slow)
			c.converged(c.propose("after restart"))
		})
	}
}

func TestProposalsKeepTheirOrder(t *testing.T) {
	c := patientCluster(t, 3, nil)
	c.propose("warm")
	l := c.leader()
	var futures []*Future
	for i := range 500 {
		futures = append(futures, l.group.Propose([]byte(fmt.Sprint(i))))
	}
	var last rowraft.Index
	for i, f := range futures {
		result, index, err := f.Wait(testutil.Context(t))
		if err != nil {
			t.Fatalf("proposal %d: %v", i, err)
		}
		if index <= last {
			t.Fatalf("proposal %d got index %d after %d", i, index, last)
		}
		if i > 0 && result.(int) <= 1 {
			t.Fatalf("proposal %d got result %v", i, result)
		}
		last = index
	}
	c.converged(last)
	if w := l.group.Status().LogWrites; w > 400 {
		t.Errorf("500 proposals took %d log writes: they are not grouped", w)
	}
}

func TestReadIsLinearizable(t *testing.T) {
	c := patientCluster(t, 3, nil)
	for i := range 20 {
		c.propose(fmt.Sprint(i))
		var n int
		if err := c.leader().group.Read(testutil.Context(t), func() error {
			n, _ = c.leader().machine.state()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if n < i+1 {
			t.Fatalf("read after %d acknowledged pushes saw %d", i+1, n)
		}
	}
	n := c.leader().group.run.Load()
	n.mu.Lock()
	if n.mu.barrierTerm != n.raft.CurrentTerm() {
		t.Errorf("reads in term %d without a barrier of it (%d)", n.raft.CurrentTerm(), n.mu.barrierTerm)
	}
	n.mu.Unlock()
	f := c.followers()[0]
	if _, err := f.group.ReadIndex(testutil.Context(t)); rowraft.CodeOf(err) != rowraft.CodeNotLeader {
		t.Errorf("ReadIndex on a follower: %v, want CodeNotLeader", err)
	}
}

func TestLeadershipIsHandedOver(t *testing.T) {
	type change struct {
		node   rowraft.NodeID
		leader bool
	}
	changes := make(chan change, 100)
	c := newTestCluster(t, 3, func(o *Options) { o.Profile = patient })
	for _, n := range c.nodes {
		c.conf = func(g *GroupConfig) {
			g.OnLeader = func(_ rowraft.Term, leader bool) { changes <- change{n.id, leader} }
		}
		c.start(n)
	}
	c.elect(c.nodes[0])
	c.propose("x")
	old := c.leader()
	seen := map[change]bool{}
	delivered := func(want ...change) { // each before the next: of two at once OnLeader sees only the later one
		t.Helper()
		testutil.Eventually(t, fmt.Sprintf("OnLeader told of %v", want), func() bool {
			select {
			case ch := <-changes:
				seen[ch] = true
			default:
			}
			return !slices.ContainsFunc(want, func(ch change) bool { return !seen[ch] })
		})
	}
	delivered(change{old.id, true})
	c.handOver(old, "")
	next := c.leader()
	if next == old {
		t.Fatalf("node %s still leads", old.id)
	}
	c.converged(c.propose("y"))
	delivered(change{old.id, false}, change{next.id, true})
}

func TestJoiningReplicaStartsEmpty(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.nodes[0]
	c.conf = func(g *GroupConfig) { g.Bootstrap = nil }
	for range 2 {
		c.start(n)
		if s := n.group.Status(); s.LastIndex != 0 || s.Role != RoleFollower {
			t.Fatalf("status %+v, want an empty follower", s)
		}
		c.stop(n)
	}
}

func TestSingleReplica(t *testing.T) {
	c := startedCluster(t, 1, nil)
	c.converged(c.propose("alone"))
	n := c.nodes[0]
	c.stop(n)
	c.start(n)
	c.converged(c.propose("again"))
}
