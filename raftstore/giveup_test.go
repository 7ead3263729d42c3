package raftstore

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/raftstore/timers"
	"github.com/rowraft/rowraft/raftstore/transport"
)

// unwillingTransport makes the first voter of each round refuse the leadership, and holds entries back while hold is
// set.
type unwillingTransport struct {
	*transport.Network
	unwilling *atomic.Value // raft.ServerID; "": the next voter
	refused   *atomic.Int64
	hold      *atomic.Bool
}

func (u *unwillingTransport) TimeoutNow(id raft.ServerID, to raft.ServerAddress, a *raft.TimeoutNowRequest,
	r *raft.TimeoutNowResponse) error {
	u.unwilling.CompareAndSwap(raft.ServerID(""), id)
	if u.unwilling.Load() == id {
		u.refused.Add(1)
		return errors.New("injected: it does not take the lead")
	}
	return u.Network.TimeoutNow(id, to, a, r)
}

func (u *unwillingTransport) AppendEntries(id raft.ServerID, to raft.ServerAddress, a *raft.AppendEntriesRequest,
	r *raft.AppendEntriesResponse) error {
	for len(a.Entries) > 0 && u.hold.Load() {
		//tidy:allow sleep polls a switch of the test, which lets go of it in the end
		time.Sleep(2 * time.Millisecond)
	}
	return u.Network.AppendEntries(id, to, a, r)
}

func unwillingCluster(t *testing.T) (c *testCluster, u *unwillingTransport) {
	u = &unwillingTransport{unwilling: &atomic.Value{}, refused: &atomic.Int64{}, hold: &atomic.Bool{}}
	u.unwilling.Store(raft.ServerID(""))
	c = startedCluster(t, 3, func(o *Options) {
		o.Profile = timers.Default
		o.WedgeTimeout = time.Minute // entries are held back on purpose
		o.hooks.wrapTransport = func(_ string, tr raft.Transport) raft.Transport {
			return &unwillingTransport{tr.(*transport.Network), u.unwilling, u.refused, u.hold}
		}
	})
	t.Cleanup(func() { u.hold.Store(false) })
	return c, u
}

// A server that stops tries to transfer the leadership to one voter after the other.
func TestGivingUpTheLeadTriesEveryVoter(t *testing.T) {
	c, u := unwillingCluster(t)
	testutil.Eventually(t, "a lead that one voter refuses goes to the other", func() bool {
		c.propose("x")
		l := c.leader()
		u.unwilling.Store(raft.ServerID(""))
		u.refused.Store(0)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		tries, err := l.group.GiveUpLead(ctx)
		if err != nil || tries < 2 || u.refused.Load() == 0 {
			t.Logf("again: %d tries, %d refused, %v", tries, u.refused.Load(), err) // the leadership moved without a transfer
			return false
		}
		_, _, leads := l.group.Leader()
		return !leads
	})
}

// If no other voter answers, the server does not wait for one.
func TestALeadThatNoVoterCanTakeIsKept(t *testing.T) {
	c := startedCluster(t, 1, nil)
	tries, err := c.leader().group.GiveUpLead(context.Background())
	if tries != 0 || rowraft.CodeOf(err) != rowraft.CodeNoLeader {
		t.Errorf("%d tries, %v: want none and CodeNoLeader", tries, err)
	}
}

// Proposals wait during a transfer, so a transfer to followers that answer heartbeats and take no entries ends early.
func TestATransferDoesNotWaitForACommit(t *testing.T) {
	c, u := unwillingCluster(t)
	testutil.Eventually(t, "a transfer is given up because nothing is committed", func() bool {
		c.propose("before")
		l := c.leader()
		u.hold.Store(true)
		defer u.hold.Store(false)
		l.group.Propose([]byte("held back"))
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err := l.group.TransferLeadership(ctx, "")
		return err != nil && strings.Contains(err.Error(), "are not committed")
	})
	c.converged(c.propose("after"))
}
