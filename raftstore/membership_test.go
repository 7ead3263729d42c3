package raftstore

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/timers"
	"github.com/rowraft/rowraft/raftstore/transport"
)

// join starts the group on n in join mode, as replica id.
func (c *testCluster) join(n *testNode, id rowraft.ReplicaID) {
	c.t.Helper()
	c.open(n)
	var err error
	if n.group, err = n.store.StartGroup(GroupConfig{ID: "shard-0", Replica: id, Machine: n.machine}); err != nil {
		c.t.Fatalf("join the group on node %s: %v", n.id, err)
	}
}

// spareCluster is a cluster of three nodes and a spare node that is neither a member nor started.
func spareCluster(t *testing.T, opts func(*Options)) (c *testCluster, spare *testNode) {
	c = newTestCluster(t, 4, opts)
	spare = c.nodes[3]
	founders := c.members()[:3]
	c.conf = func(g *GroupConfig) { g.Bootstrap = founders }
	for _, n := range c.nodes[:3] {
		c.start(n)
	}
	return c, spare
}

// moveStep makes the next step of a move of a replica, according to the leader's list of members. It returns true when
// the move is complete.
func (c *testCluster) moveStep(from, to Member) (done bool, err error) {
	l := c.leader()
	ctx := testutil.Context(c.t)
	m, err := l.group.Members()
	if err != nil {
		return false, err
	}
	in, hasIn := m.Find(to.Replica)
	_, hasOut := m.Find(from.Replica)
	switch {
	case !hasIn:
		_, err = l.group.AddLearner(ctx, to, m.Index)
	case !in.Voter:
		_, err = l.group.Promote(ctx, to.Replica, m.Index)
	case hasOut && l.id == from.Node:
		err = l.group.TransferLeadership(ctx, to.Replica)
	case hasOut:
		_, err = l.group.Remove(ctx, from.Replica, m.Index)
	default:
		return true, nil
	}
	return false, err
}

// The leader's replica moves to a new node while entries are proposed. The new node gets a snapshot first, because the
// log is cut.
func TestReplicaMovesUnderLoad(t *testing.T) {
	for _, backend := range raftlog.Backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			c, spare := spareCluster(t, func(o *Options) { o.Backend, o.TrailingLogBytes = backend, 1 })
			var last rowraft.Index
			for i := range 50 {
				last = c.propose(fmt.Sprint("before ", i))
			}
			c.converged(last) // otherwise a snapshot has fewer entries, and the log more
			source := c.leader()
			for _, n := range c.nodes[:3] { // any of them may lead
				if err := n.group.Snapshot(); err != nil {
					t.Fatal(err)
				}
			}
			c.join(spare, "new")
			from, to := Member{replicaOf(source.id), source.id}, Member{"new", spare.id}

			stop := make(chan struct{})
			var load sync.WaitGroup
			load.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
						c.propose(fmt.Sprint("during ", i))
					}
				}
			})
			testutil.Eventually(t, "the move ends", func() bool {
				done, err := c.moveStep(from, to)
				if code := rowraft.CodeOf(err); err != nil && !code.Retryable() && code != rowraft.CodePrecondition {
					t.Fatal(err)
				}
				return done
			})
			close(stop)
			load.Wait()
			if spare.machine.restored() == 0 {
				t.Error("the new replica got the log from its beginning, want a snapshot first")
			}
			var m Membership
			testutil.Eventually(t, "a leader tells the members", func() (ok bool) {
				var err error
				m, err = c.leader().group.Members()
				return err == nil
			})
			if len(m.Members) != 3 {
				t.Fatalf("members %+v, want three", m)
			}
			for _, s := range m.Members {
				if s.Replica == from.Replica || !s.Voter {
					t.Errorf("member %+v, want voters, and not the one that left", s)
				}
			}
			if err := source.store.RemoveReplica("shard-0", from.Replica); err != nil {
				t.Fatal(err)
			}
			source.group = nil
			c.nodes = append(c.nodes[:0:0], spare, c.nodes[0], c.nodes[1], c.nodes[2])
			c.converged(c.propose("after"))
			c.stop(spare) // the membership is known after a restart, from the snapshot or the log
			c.join(spare, "new")
			testutil.Eventually(t, "the restarted replica knows the members", func() bool {
				again, err := spare.group.Members()
				return err == nil && again.Index == m.Index && len(again.Members) == 3
			})
		})
	}
}

// If any node stops between two steps, the move continues from the membership of the group.
func TestMoveGoesOnAfterACrashInAnyPhase(t *testing.T) {
	for phase := range 4 {
		for _, victim := range []string{"source", "target", "leader"} {
			t.Run(fmt.Sprintf("after step %d the %s restarts", phase, victim), func(t *testing.T) {
				t.Parallel()
				c, spare := spareCluster(t, nil)
				c.propose("x")
				source := c.leader()
				from, to := Member{replicaOf(source.id), source.id}, Member{"new", spare.id}
				c.join(spare, to.Replica)
				for steps := 0; steps < phase; {
					done, err := c.moveStep(from, to)
					if done {
						break
					}
					if err == nil {
						steps++
					}
				}
				n := map[string]*testNode{"source": source, "target": spare, "leader": c.leader()}[victim]
				c.stop(n)
				if n == spare {
					c.join(spare, to.Replica)
				} else {
					c.start(n)
				}
				testutil.Eventually(t, "the move ends", func() bool {
					done, _ := c.moveStep(from, to)
					return done
				})
				if err := source.store.RemoveReplica("shard-0", from.Replica); err != nil {
					t.Fatal(err)
				}
				source.group = nil
				c.converged(c.propose("y"))
			})
		}
	}
}

func TestChangesAreComparedAndSet(t *testing.T) {
	c, spare := spareCluster(t, func(o *Options) { o.Profile = patient })
	c.elect(c.nodes[0])
	c.propose("x")
	l := c.leader()
	ctx := testutil.Context(t)
	m, err := l.group.Members()
	if err != nil {
		t.Fatal(err)
	}
	learner := Member{"new", spare.id}
	refused := func(what string, err error) {
		t.Helper()
		if rowraft.CodeOf(err) != rowraft.CodePrecondition {
			t.Errorf("%s: %v, want CodePrecondition", what, err)
		}
	}
	for _, prev := range []rowraft.Index{0, m.Index - 1, m.Index + 1} {
		_, err := l.group.AddLearner(ctx, learner, prev)
		refused(fmt.Sprintf("a change decided on configuration %d of %d", prev, m.Index), err)
	}
	f := c.followers()[0]
	_, err = l.group.AddLearner(ctx, Member{"second", f.id}, m.Index)
	refused("a second replica on one node", err)
	if _, err := f.group.AddLearner(ctx, learner, m.Index); rowraft.CodeOf(err) != rowraft.CodeNotLeader {
		t.Errorf("a change asked of a follower: %v, want CodeNotLeader", err)
	}
	_, err = l.group.Remove(ctx, replicaOf(l.id), m.Index)
	refused("removing the leader", err)
	_, err = l.group.Promote(ctx, learner.Replica, m.Index)
	refused("promoting a stranger", err)

	// Only one of several changes that were decided on the same configuration is made.
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			if _, err := l.group.AddLearner(ctx, Member{rowraft.ReplicaID(fmt.Sprint("r", i)),
				rowraft.NodeID(fmt.Sprint("n", i))}, m.Index); err == nil {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d changes decided on configuration %d happened, want 1", won.Load(), m.Index)
	}
	after, err := l.group.Members()
	if err != nil || after.Index <= m.Index || len(after.Members) != 4 {
		t.Fatalf("members %+v, %v, want one more than three", after, err)
	}
	// Repeating a change has no effect.
	have := after.Members[3].Member
	if again, err := l.group.AddLearner(ctx, have, after.Index); err != nil || again.Index != after.Index {
		t.Errorf("adding a learner again: %+v, %v", again, err)
	}
	_, err = l.group.Promote(ctx, have.Replica, after.Index)
	refused("promoting a learner whose node is away", err)
	gone, err := l.group.Remove(ctx, have.Replica, after.Index)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := l.group.Remove(ctx, have.Replica, gone.Index); err != nil || again.Index != gone.Index {
		t.Errorf("removing a replica again: %+v, %v", again, err)
	}
}

func TestRemovalBelowQuorumIsRefused(t *testing.T) {
	c := startedCluster(t, 3, nil)
	c.propose("x")
	dead := c.followers()[0]
	c.stop(dead)
	ctx := testutil.Context(t)
	testutil.Eventually(t, "a leader that misses the stopped replica refuses to remove the other one", func() bool {
		l, alive := c.leader(), c.followers()[0]
		m, err := l.group.Members()
		if err != nil || l == alive { // the leadership has just changed
			return false
		}
		s, _ := m.Find(replicaOf(dead.id))
		a, _ := m.Find(replicaOf(alive.id))
		if s.CaughtUp || !a.CaughtUp {
			return false
		}
		_, err = l.group.Remove(ctx, replicaOf(alive.id), m.Index)
		if err == nil {
			t.Fatal("one of the two that are left of three was removed")
		}
		return rowraft.CodeOf(err) == rowraft.CodePrecondition && strings.Contains(err.Error(), "are needed to commit")
	})
	c.propose("still writable")
	testutil.Eventually(t, "the dead one is removed", func() bool {
		m, err := c.leader().group.Members()
		if err == nil {
			_, err = c.leader().group.Remove(ctx, replicaOf(dead.id), m.Index)
		}
		return err == nil
	})
	c.propose("two members")
}

// A removed replica that missed its removal stays alone: it gets no votes, its campaign does not disturb the leader,
// and it serves nothing. When its node has another replica of the group, the node refuses messages for the removed one.
func TestRemovedReplicaNeitherVotesNorServes(t *testing.T) {
	c, _ := spareCluster(t, nil)
	c.propose("x")
	l, out := c.leader(), c.followers()[0]
	c.stop(out) // misses its removal
	testutil.Eventually(t, "it is removed", func() bool {
		l = c.leader()
		m, err := l.group.Members()
		if err == nil {
			_, err = l.group.Remove(testutil.Context(t), replicaOf(out.id), m.Index)
		}
		return err == nil
	})
	testutil.Eventually(t, "a leader that never knew it", func() bool {
		_ = l.group.TransferLeadership(testutil.Context(t), "")
		return c.leader() != l
	})
	c.stop(l) // the only node that would still send to it
	c.start(l)
	l = c.leader()
	c.propose("without it")
	c.start(out)
	testutil.Eventually(t, "the removed replica campaigns",
		func() bool { return out.group.Status().Role == RoleCandidate })
	for i := range 20 {
		c.propose(fmt.Sprint("meanwhile ", i))
	}
	if _, _, leads := out.group.Leader(); leads {
		t.Error("the removed replica leads")
	}
	_, _, err := out.group.Propose([]byte("y")).Wait(testutil.Context(t))
	if rowraft.CodeOf(err) != rowraft.CodeNotLeader {
		t.Errorf("a proposal to a removed replica: %v, want CodeNotLeader", err)
	}
	if _, err := out.group.ReadIndex(testutil.Context(t)); rowraft.CodeOf(err) != rowraft.CodeNotLeader {
		t.Errorf("a read of a removed replica: %v, want CodeNotLeader", err)
	}

	if err := out.store.RemoveReplica("shard-0", replicaOf(out.id)); err != nil {
		t.Fatal(err)
	}
	c.stop(out)
	c.join(out, "second-life")
	vote := func(to raft.ServerID) error {
		req := &raft.RequestVoteRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("stale"), Addr: []byte("stale")},
			Term:      100, LastLogIndex: 1000, LastLogTerm: 99,
		}
		resp := &raft.RequestVoteResponse{}
		err := l.group.run.Load().trans.RequestVote(to, raft.ServerAddress(out.id), req, resp)
		if err == nil && !resp.Granted {
			return errors.New("not granted")
		}
		return err
	}
	if err := vote(raft.ServerID(replicaOf(out.id))); err == nil {
		t.Error("a new, empty replica voted in the name of the one that was on its node before")
	}
	testutil.Eventually(t, "the replica itself votes (or the check above would prove nothing)", func() bool {
		return vote("second-life") == nil
	})
}

// hashicorp/raft #696: a transfer to a follower that stopped taking entries ends without clearing the flag that makes
// raft refuse proposals.
func TestInterruptedTransferDoesNotStopTheGroup(t *testing.T) {
	for range 50 { // in a process that is often suspended, the leader changes in most tries
		if interruptTransfer(t) {
			return
		}
		t.Log("the leader changed on its own, and nothing was tested: again")
	}
	t.Error("no leader kept its place for long enough, or no transfer left the flag set")
}

// interruptTransfer returns false if the leader changed before the guard acted, and no proposal was refused.
func interruptTransfer(t *testing.T) bool {
	var wedged atomic.Value
	var held atomic.Int64
	wedged.Store(raft.ServerID(""))
	c := startedCluster(t, 3, func(o *Options) {
		// another guard
		o.WedgeTimeout = time.Minute
		// a transfer takes as long to fail
		o.Profile = timers.Profile{Heartbeat: time.Second, LeaderLease: time.Second, Commit: 10 * time.Millisecond}
		o.hooks.tick = 20 * time.Millisecond
		o.hooks.wrapTransport = func(_ string, tr raft.Transport) raft.Transport {
			return &wedgingTransport{Network: tr.(*transport.Network), wedged: &wedged, held: &held}
		}
	})
	defer func() { // before the next try
		wedged.Store(raft.ServerID(""))
		for _, n := range c.nodes {
			c.stop(n)
		}
	}()
	c.elect(c.nodes[0])
	c.propose("x")
	l, f := c.nodes[0], c.nodes[1]
	wedged.Store(raft.ServerID(replicaOf(f.id)))
	c.propose("not on the follower")
	_, term, _ := l.group.Leader()
	deposed := func() bool { // raft has not ended and may lead again
		_, now, leads := l.group.Leader()
		return (!leads || now != term) && l.group.Status().Restarts == 0
	}
	testutil.Eventually(t, "replication to it stands still", func() bool { return held.Load() > 0 || deposed() })
	if deposed() {
		return false
	}
	// The first transfer leaves its request in the queue of the wedged replication, and the second one waits forever for
	// a place in that queue. TransferLeadership refuses such a target, but a follower may begin to lag after the check.
	r, moved := l.group.run.Load().raft, false
	for range 2 {
		testutil.Eventually(t, "a transfer is tried and fails", func() bool {
			err := r.LeadershipTransferToServer(raft.ServerID(replicaOf(f.id)), raft.ServerAddress(f.id)).Error()
			moved = moved || err == nil // not to the wedged one
			return !errors.Is(err, raft.ErrLeadershipTransferInProgress)
		})
	}
	refused := 0
	testutil.Eventually(t, "the group is restarted", func() bool {
		_, _, err := l.group.Propose([]byte("again")).Wait(testutil.Context(t))
		if rowraft.CodeOf(err) == rowraft.CodeNoLeader {
			refused++
		}
		moved = moved || deposed()
		return moved || l.group.Status().Restarts > 0
	})
	wedged.Store(raft.ServerID(""))
	if moved || refused == 0 { // the transfers did not leave the flag set
		return false
	}
	c.elect(c.nodes[2])
	c.converged(c.propose("after"))
	return true
}

func TestTransferGoesToACaughtUpVoter(t *testing.T) {
	c, spare := spareCluster(t, func(o *Options) { o.Profile = patient })
	c.elect(c.nodes[0])
	c.propose("x")
	l := c.leader()
	target := c.followers()[1]
	ctx := testutil.Context(t)
	if err := l.group.TransferLeadership(ctx, "stranger"); rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("transfer to a stranger: %v, want CodePrecondition", err)
	}
	c.join(spare, "new")
	m, err := l.group.Members()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.group.AddLearner(ctx, Member{"new", spare.id}, m.Index); err != nil {
		t.Fatal(err)
	}
	if err := l.group.TransferLeadership(ctx, "new"); rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("transfer to a learner: %v, want CodePrecondition", err)
	}
	if err := l.group.TransferLeadership(ctx, replicaOf(l.id)); err != nil {
		t.Errorf("transfer to the leader itself: %v", err)
	}
	c.handOver(l, replicaOf(target.id))
	if next := c.leader(); next != target {
		t.Errorf("node %s leads, want %s", next.id, target.id)
	}
	if err := l.group.TransferLeadership(ctx, ""); rowraft.CodeOf(err) != rowraft.CodeNotLeader {
		t.Errorf("transfer asked of a follower: %v, want CodeNotLeader", err)
	}
	stopped := l
	c.stop(stopped)
	testutil.Eventually(t, "a transfer to a stopped voter is refused before it begins", func() bool {
		err := target.group.TransferLeadership(ctx, replicaOf(stopped.id))
		return rowraft.CodeOf(err) == rowraft.CodeNoLeader && strings.Contains(err.Error(), "caught up")
	})
}
