package raftstore

import (
	"context"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/raftstore/timers"
)

// groupTimers are the timers of a group and the raft that they are applied to.
type groupTimers struct {
	timers.Group
	g *Group
}

// fit applies the timers of the group. The supervisor calls it at each tick.
func (t *groupTimers) fit(n *instance) {
	g := t.g
	now := time.Now()
	rc := n.raft.ReloadableConfig()
	v := timers.View{
		Need: g.store.timers.Heartbeat(), Now: rc.HeartbeatTimeout, Started: n.started, Lease: n.lease,
		Leads: n.raft.State() == raft.Leader,
	}
	_, v.Leader = n.raft.LeaderWithID()
	t.Complete(&v, raft.ServerID(g.cfg.Replica), n.raft.GetConfiguration().Configuration().Servers, now)
	d := v.Decide()
	n.heartbeat.Store(int64(d.Heartbeat))
	if d.Heartbeat != v.Now {
		g.log.Info("Raft timers of the group", "heartbeat", d.Heartbeat, "before", v.Now, "started", v.Started)
		if err := n.reconfigure(func(rc *raft.ReloadableConfig) {
			rc.HeartbeatTimeout, rc.ElectionTimeout = d.Heartbeat,
				d.Heartbeat
		}); err != nil {
			g.fail(err)
			return
		}
	}
	t.Applied(&v, &d, now) // after raft uses them: the leader relies on the reports of its followers
	switch {
	case d.Restart:
		t.restart(n, v.Leader != "")
	case d.Transfer:
		t.transfer(n)
	}
}

// restart restarts raft in place to change its lease. While the group has a leader, only one group of the
// store at a time does this. Only the supervisor calls it.
func (t *groupTimers) restart(n *instance, paced bool) {
	g := t.g
	if g.snapshots.busy.Load() || n.raft.State() == raft.Leader {
		t.NotMoved()
		return
	}
	if paced {
		if !g.store.restarting.TryAcquire(1) {
			t.NotMoved()
			return
		}
		defer g.store.restarting.Release(1)
	}
	g.restart(slog.LevelInfo, "its lease changes with the timers of the group")
}

// transfer transfers the leadership to a member that has the lease of the group.
func (t *groupTimers) transfer(n *instance) {
	g := t.g
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.stopping {
		return
	}
	n.watcher.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timers.Pause)
		defer cancel()
		if err := g.TransferLeadership(ctx, ""); err != nil {
			g.log.Info("the leadership stays here although other timers need a new lease", "err", err)
		}
	})
}

// reconfigure changes the configuration of a running raft.
func (n *instance) reconfigure(update func(*raft.ReloadableConfig)) error {
	n.reload.Lock()
	defer n.reload.Unlock()
	rc := n.raft.ReloadableConfig()
	update(&rc)
	return n.raft.ReloadConfig(rc)
}
