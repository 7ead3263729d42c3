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
			first := l.group.run.Load().succession.voters(l.id)[0].ID
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

// rejectingNet refuses the dials to and from one node, and ends its connections, as a firewall that rejects does.
type rejectingNet struct {
	mu    sync.Mutex
	cut   rowraft.NodeID
	conns map[net.Conn][2]rowraft.NodeID
}

func (r *rejectingNet) reject(node rowraft.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = node
	for c, ends := range r.conns {
		if slices.Contains(ends[:], node) {
			c.Close()
		}
	}
}

func (r *rejectingNet) dial(ctx context.Context, from, to rowraft.NodeID, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && r.cut != "" && (r.cut == from || r.cut == to) {
		c.Close()
		return nil, syscall.ECONNREFUSED
	}
	if err == nil {
		r.conns[c] = [2]rowraft.NodeID{from, to}
	}
	return c, err
}

// A follower that is cut off sees the ends of all its connections, but does not campaign: no other voter agrees.
func TestAFollowerThatIsCutOffKeepsItsTerm(t *testing.T) {
	network := &rejectingNet{conns: map[net.Conn][2]rowraft.NodeID{}}
	var resolved sync.Map // addresses to nodes
	c := patientCluster(t, 3, func(o *Options) {
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
	l := c.leader()
	cutOff := c.followers()[0]
	n := cutOff.group.run.Load()
	term := n.raft.CurrentTerm()
	network.reject(cutOff.id)
	testutil.Eventually(t, "the follower takes the leader's process as ended", func() bool {
		return n.succession.sees(term)
	})
	c.propose("without it")
	time.Sleep(500 * time.Millisecond) //tidy:allow sleep it asks in vain, which has no event
	if now := n.raft.CurrentTerm(); now != term || n.raft.State() != raft.Follower {
		t.Errorf("the follower that is cut off is %v in term %d, it was in term %d", n.raft.State(), now, term)
	}
	network.reject("")
	c.converged(c.propose("after"))
	if _, now, me := l.group.Leader(); !me || now != rowraft.Term(term) {
		t.Errorf("node %s leads: %v, in term %d, want still term %d", l.id, me, now, term)
	}
}
