package raftstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/raftstore/timers"
	"github.com/rowraft/rowraft/raftstore/transport"
)

// starvedTransport sends no entries to one replica.
type starvedTransport struct {
	*transport.Network
	starved *atomic.Value // raft.ServerID
}

func (s *starvedTransport) AppendEntries(id raft.ServerID, to raft.ServerAddress, a *raft.AppendEntriesRequest,
	r *raft.AppendEntriesResponse) error {
	if len(a.Entries) > 0 && id == s.starved.Load() {
		return errors.New("starved by the test")
	}
	return s.Network.AppendEntries(id, to, a, r)
}

// Followers do not wait for their timeouts if the leader's process has ended. The one with the longest log campaigns.
func TestFollowersSucceedALeaderThatEnded(t *testing.T) {
	for _, lacks := range []bool{false, true} {
		t.Run(fmt.Sprintf("the first lacks an entry: %v", lacks), func(t *testing.T) {
			t.Parallel()
			var starved atomic.Value
			starved.Store(raft.ServerID(""))
			var known sync.Map // the addresses of nodes, also of one that has ended
			c := patientCluster(t, 3, func(o *Options) {
				resolve := o.Resolve
				o.Resolve = func(node rowraft.NodeID) (string, error) {
					addr, err := resolve(node)
					if err == nil {
						known.Store(node, addr)
					} else if last, ok := known.Load(node); ok {
						return last.(string), nil
					}
					return addr, err
				}
				o.hooks.wrapTransport = func(_ string, tr raft.Transport) raft.Transport {
					return &starvedTransport{tr.(*transport.Network), &starved}
				}
			})
			c.converged(c.propose("before"))
			l := c.leader()
			followers := c.followers()
			first := raft.ServerID(replicaOf(followers[0].id))
			if s := &l.group.run.Load().succession; s.place(raft.ServerID(replicaOf(followers[1].id))) < s.place(first) {
				first = raft.ServerID(replicaOf(followers[1].id))
			}
			if lacks {
				starved.Store(first)
				c.propose("the first does not get it")
			}
			begun := time.Now()
			c.stop(l)
			starved.Store(raft.ServerID(""))
			next := c.leader()
			if took := time.Since(begun); took > patient.Heartbeat/2 {
				t.Errorf("the next leader served after %v, about the timeout of %v", took, patient.Heartbeat)
			}
			if raft.ServerID(replicaOf(next.id)) == first == lacks {
				t.Errorf("node %s leads, the first is %s", next.id, first)
			}
			c.start(l)
			c.converged(c.propose("after"))
		})
	}
}

// rejectingNet refuses the dials between some nodes, and ends their connections, as a firewall that rejects does.
type rejectingNet struct {
	mu    sync.Mutex
	cut   func(a, b rowraft.NodeID) bool
	conns map[net.Conn][2]rowraft.NodeID
}

func (r *rejectingNet) reject(cut func(a, b rowraft.NodeID) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
	for c, ends := range r.conns {
		if cut(ends[0], ends[1]) {
			c.Close()
		}
	}
}

func (r *rejectingNet) dial(ctx context.Context, from, to rowraft.NodeID, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && r.cut(from, to) {
		c.Close()
		return nil, syscall.ECONNREFUSED
	}
	if err == nil {
		r.conns[c] = [2]rowraft.NodeID{from, to}
	}
	return c, err
}

// A follower that is cut off takes the leader's process as ended, and does not campaign: no other voter supports it,
// neither one that it cannot reach, nor one that was cut off before and hears from the leader again.
func TestAFollowerThatIsCutOffKeepsItsTerm(t *testing.T) {
	none := func(a, b rowraft.NodeID) bool { return false }
	network := &rejectingNet{cut: none, conns: map[net.Conn][2]rowraft.NodeID{}}
	var resolved sync.Map // addresses to nodes
	const heartbeat = 3 * time.Second
	c := patientCluster(t, 3, func(o *Options) {
		o.Profile = timers.Profile{Heartbeat: heartbeat, LeaderLease: heartbeat, Commit: 10 * time.Millisecond}
		from, resolve := o.Node, o.Resolve
		o.Resolve = func(to rowraft.NodeID) (string, error) {
			addr, err := resolve(to)
			resolved.Store(addr, to)
			return addr, err
		}
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			to, _ := resolved.Load(addr)
			return network.dial(ctx, from, to.(rowraft.NodeID), addr)
		}
	})
	c.converged(c.propose("before"))
	l, followers := c.leader(), c.followers()
	_, term, _ := l.group.Leader()
	cut := func(f *testNode, from ...rowraft.NodeID) {
		t.Helper()
		//tidy:allow sleep until a heartbeat has used the shared connection, and what came before a cut is old
		time.Sleep(heartbeat/4 + 200*time.Millisecond)
		c.converged(c.propose("heard"))
		network.reject(func(a, b rowraft.NodeID) bool {
			return a == f.id && slices.Contains(from, b) || b == f.id && slices.Contains(from, a)
		})
		n := f.group.run.Load()
		testutil.Eventually(t, "the follower takes the leader's process as ended", func() bool {
			n.succession.mu.Lock()
			defer n.succession.mu.Unlock()
			return n.succession.seesLocked(uint64(term))
		})
		time.Sleep(300 * time.Millisecond) //tidy:allow sleep it asks in vain, which has no event
		if now := n.raft.CurrentTerm(); now != uint64(term) || n.raft.State() != raft.Follower {
			t.Errorf("node %s, cut off, is %v in term %d, want a follower in term %d", f.id, n.raft.State(), now, term)
		}
		network.reject(none)
		c.converged(c.propose("after"))
	}
	for _, f := range followers {
		cut(f, l.id, followers[0].id, followers[1].id)
	}
	for _, f := range followers {
		cut(f, l.id)
	}
	if _, now, me := l.group.Leader(); !me || now != term {
		t.Errorf("node %s leads: %v, in term %d, want still term %d", l.id, me, now, term)
	}
}
