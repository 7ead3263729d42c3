package raftstore

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// wedgingTransport stops sending entries to one follower while heartbeats pass. A call
// that was stopped ends with its transport, or when the follower is wedged no more.
type wedgingTransport struct {
	*appendTransport
	wedged *atomic.Value // raft.ServerID
	held   *atomic.Int64 // calls that were stopped; may be nil
}

func (w *wedgingTransport) AppendEntries(id raft.ServerID, to raft.ServerAddress, a *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	if len(a.Entries) > 0 && id == w.wedged.Load() {
		if w.held != nil {
			w.held.Add(1)
		}
		for !w.IsShutdown() && id == w.wedged.Load() {
			//tidy:allow sleep the transport tells of its end by IsShutdown only
			time.Sleep(5 * time.Millisecond)
		}
		return raft.ErrTransportShutdown
	}
	return w.appendTransport.AppendEntries(id, to, a, r)
}

// A wedged leader is restarted in place: same stores, same machine, no entry
// applied twice.
func TestWedgedGroupIsRestartedInPlace(t *testing.T) {
	var wedged atomic.Value
	wedged.Store(raft.ServerID(""))
	c := startedCluster(t, 3, func(o *Options) {
		o.WedgeTimeout = 600 * time.Millisecond
		o.hooks.tick = 20 * time.Millisecond
		o.hooks.wrapTransport = func(_ string, tr raft.Transport) raft.Transport {
			return &wedgingTransport{appendTransport: tr.(*appendTransport), wedged: &wedged}
		}
	})
	for i := range 10 {
		c.propose(fmt.Sprint(i))
	}
	var l *testNode // that was restarted
	f := c.followers()[0]
	before := map[*testNode]int{}
	for _, n := range c.nodes {
		before[n], _ = n.machine.state()
	}
	wedged.Store(raft.ServerID(replicaOf(f.id)))
	c.propose("while wedged")
	eventually(t, "the leader, whoever that is by now, restarts the group", func() bool {
		if _, _, leads := f.group.Leader(); leads { // nobody is wedged
			f = c.followers()[0]
			wedged.Store(raft.ServerID(replicaOf(f.id)))
			c.propose("while another one is wedged")
		}
		for _, n := range c.nodes {
			if n != f && n.group.Status().Restarts > 0 {
				l = n
				return true
			}
		}
		return false
	})
	wedged.Store(raft.ServerID(""))
	c.converged(c.propose("after"))
	if after, _ := l.machine.state(); after < before[l]+2 || l.machine.ignored != 0 {
		t.Errorf("the machine went from %d to %d entries, %d of them twice", before[l], after, l.machine.ignored)
	}
}
