package raftstore

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/raftstore/transport"
)

// wedgingTransport stops sending entries to one follower while heartbeats pass. A stopped call ends with its transport,
// or when the follower is no longer wedged.
type wedgingTransport struct {
	*transport.Network
	wedged *atomic.Value // raft.ServerID
	held   *atomic.Int64 // calls that were stopped; may be nil
}

func (w *wedgingTransport) AppendEntries(id raft.ServerID, to raft.ServerAddress, a *raft.AppendEntriesRequest,
	r *raft.AppendEntriesResponse) error {
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
	return w.Network.AppendEntries(id, to, a, r)
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
			return &wedgingTransport{Network: tr.(*transport.Network), wedged: &wedged}
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
	testutil.Eventually(t, "the present leader restarts the group", func() bool {
		if _, _, leads := f.group.Leader(); leads { // no follower is wedged
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

// A leader whose follower gets no entries is wedged. A leader that finds no snapshot to send sends no entries either,
// but it is not restarted in place: raft would not start without the snapshot.
func TestLookingForASnapshotIsNoWedge(t *testing.T) {
	const limit = 10 * time.Second
	now := time.Now()
	long := now.Add(-time.Minute)
	good := func() wedge {
		return wedge{leads: true, last: 10, limit: limit, now: now, progress: map[raft.ServerID]transport.Progress{
			"r": {Match: 5, MatchSince: long, Attempt: long, Contact: now},
		}}
	}
	for _, tc := range []struct {
		name   string
		change func(*wedge, *transport.Progress)
		wedged bool
	}{
		{"a follower that gets nothing", func(*wedge, *transport.Progress) {}, true},
		{"it leads no more", func(w *wedge, _ *transport.Progress) { w.leads = false }, false},
		{"it looks for a snapshot", func(w *wedge, _ *transport.Progress) { w.noSnapshot = now.Add(-time.Second) }, false},
		{"it found none long ago", func(w *wedge, _ *transport.Progress) { w.noSnapshot = long }, true},
		{"the follower has all", func(_ *wedge, p *transport.Progress) { p.Match = 10 }, false},
		{"the follower is dead", func(_ *wedge, p *transport.Progress) { p.Contact = long }, false},
		{"a snapshot is sent", func(_ *wedge, p *transport.Progress) { p.Installing = true }, false},
		{"the leader has just tried", func(_ *wedge, p *transport.Progress) { p.Attempt = now }, false},
		{"the match has just moved", func(_ *wedge, p *transport.Progress) { p.MatchSince = now }, false},
	} {
		w := good()
		p := w.progress["r"]
		tc.change(&w, &p)
		w.progress["r"] = p
		if why := w.reason(); (why != "") != tc.wedged {
			t.Errorf("%s: %q, want wedged %v", tc.name, why, tc.wedged)
		}
	}
}
