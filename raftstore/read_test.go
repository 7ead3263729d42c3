package raftstore

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/raftstore/timers"
	"github.com/rowraft/rowraft/raftstore/transport"
)

// oneWay controls the AppendEntries that one node sends.
type oneWay struct {
	mu   sync.Mutex
	cut  map[raft.ServerAddress]bool // nodes to which it fails
	hold chan struct{}               // not nil: answers to heartbeats wait for its end
	held atomic.Int64                // answers that wait, or waited
}

func (o *oneWay) cutOff(from *testNode, to ...*testNode) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range to {
		if n != from {
			o.cut[raft.ServerAddress(n.id)] = true
		}
	}
}

type oneWayTransport struct {
	*transport.Network
	*oneWay
}

func (o *oneWayTransport) AppendEntries(id raft.ServerID, to raft.ServerAddress, a *raft.AppendEntriesRequest,
	r *raft.AppendEntriesResponse) error {
	o.oneWay.mu.Lock()
	cut, hold := o.cut[to], o.hold
	o.oneWay.mu.Unlock()
	if cut {
		return errors.New("injected: cut off")
	}
	err := o.Network.AppendEntries(id, to, a, r)
	if hold != nil && a.PrevLogEntry == 0 && len(a.Entries) == 0 {
		o.held.Add(1)
		<-hold
	}
	return err
}

// oneWayCluster is three nodes that are not started, each with its oneWay.
func oneWayCluster(t *testing.T, more func(*Options)) (*testCluster, map[rowraft.NodeID]*oneWay) {
	ways := map[rowraft.NodeID]*oneWay{}
	for i := range 3 {
		ways[rowraft.NodeID(fmt.Sprintf("node-%d", i))] = &oneWay{cut: map[raft.ServerAddress]bool{}}
	}
	return newTestCluster(t, 3, func(o *Options) {
		way := ways[o.Node]
		o.hooks.wrapTransport = func(_ string, tr raft.Transport) raft.Transport {
			return &oneWayTransport{tr.(*transport.Network), way}
		}
		// a leader that is cut off leads for a second
		o.Profile = timers.Profile{Heartbeat: time.Second, LeaderLease: time.Second, Commit: 10 * time.Millisecond}
		if more != nil {
			more(o)
		}
	}), ways
}

// readRefused fails the test unless a read on l fails.
func readRefused(t *testing.T, l *testNode) {
	t.Helper()
	index, err := l.group.ReadIndex(testutil.Context(t))
	if err == nil {
		t.Errorf("a leader that is cut off read at index %d", index)
	} else if code := rowraft.CodeOf(err); code != rowraft.CodeNoLeader && code != rowraft.CodeNotLeader {
		t.Errorf("refused with %v, want CodeNoLeader or CodeNotLeader", err)
	}
}

// A leader that is cut off has State() == Leader until its lease ends. It must not serve reads during that time, even
// if answers to older heartbeats arrive: the followers may have another leader.
func TestReadNeedsNewAnswersOfAMajority(t *testing.T) {
	c, ways := oneWayCluster(t, nil)
	for _, n := range c.nodes {
		c.start(n)
	}
	c.propose("x")
	for range 3 { // in some tries the held answers are released too early or too late
		l := c.leader()
		way := ways[l.id]
		hold := make(chan struct{})
		way.mu.Lock()
		way.hold = hold
		way.mu.Unlock()
		before := way.held.Load()
		testutil.Eventually(t, "an answer of each follower is on its way", func() bool {
			_, _, leads := l.group.Leader()
			return way.held.Load() >= before+2 || !leads
		})
		way.cutOff(l, c.nodes...)
		release := time.AfterFunc(20*time.Millisecond, func() { close(hold) })
		readRefused(t, l)
		if release.Stop() {
			close(hold)
		}
		way.mu.Lock()
		way.hold, way.cut = nil, map[raft.ServerAddress]bool{}
		way.mu.Unlock()
	}
}

// Non-voters do not count. Raft's own check counts their answers as those of voters.
func TestReadNeedsVoters(t *testing.T) {
	c, ways := oneWayCluster(t, nil)
	c.conf = func(g *GroupConfig) {
		if g.Bootstrap = g.Bootstrap[:2]; g.Replica == replicaOf("node-2") {
			g.Bootstrap = nil
		}
	}
	for _, n := range c.nodes {
		c.start(n)
	}
	c.propose("x")
	learner := c.nodes[2]
	testutil.Eventually(t, "the learner is added", func() bool {
		r := c.leader().group.run.Load().raft
		return r.AddNonvoter(raft.ServerID(replicaOf(learner.id)), raft.ServerAddress(learner.id), 0, 0).Error() == nil
	})
	c.converged(c.propose("y"))
	l, voter := c.leader(), c.nodes[0]
	if voter == l {
		voter = c.nodes[1]
	}
	ways[l.id].cutOff(l, voter)
	readRefused(t, l)
}

// Another leader may be elected between the answers of the majority and the end of a read round, so the leader checks
// its term again.
func TestReadLooksAtTheTermAgain(t *testing.T) {
	c, ways := oneWayCluster(t, func(o *Options) { o.Profile = timers.Fast })
	for _, n := range c.nodes {
		c.start(n)
	}
	c.propose("x")
	l := c.leader()
	n := l.group.run.Load()
	index, err := n.readRound(func(term uint64) (rowraft.Index, error) {
		index, err := n.confirmedIndex(term)
		if err != nil {
			t.Error(err)
		}
		ways[l.id].cutOff(l, c.nodes...)
		testutil.Eventually(t, "the leader steps down", func() bool { return n.raft.State() != raft.Leader })
		return index, err
	})
	if err == nil {
		t.Errorf("a leader that was deposed meanwhile read at index %d", index)
	}
}
