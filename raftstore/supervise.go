package raftstore

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/ticks"
	"github.com/rowraft/rowraft/raftstore/transport"
)

// supervise watches the group until it closes. It takes snapshots by bytes of log, restarts a wedged raft, fits the
// timers, and ends raft when the group has failed.
func (g *Group) supervise() {
	defer g.wg.Done()
	t := ticks.New(g.store.opts.hooks.tick)
	defer t.Stop()
	dead := g.dead
	for {
		select {
		case <-g.stop:
			return
		case <-dead:
			dead = nil
			g.stopFailed()
		case reason := <-g.wantRestart:
			g.restart(slog.LevelError, reason)
		case reason := <-g.stalled:
			if g.glog.NeedsRestart() { // else raft was started again meanwhile
				g.restartAfter((*instance).giveUp, slog.LevelWarn, reason)
			}
		case <-t.C:
			n := g.run.Load()
			if n == nil || g.failure.Load() != nil {
				continue
			}
			g.timers.fit(n)
			g.snapshots.takeIfDue(n)
			if !g.snapshots.replacing() { // before Check: a snapshot that was just taken ends the failure
				if err := g.watch.Check(); err != nil {
					g.fail(err)
					continue
				}
			}
			if reason := g.stuckTransfer(n); reason != "" {
				g.restart(slog.LevelWarn, reason) // #696: a cut during a transfer is enough
			} else if reason := n.wedge().reason(); reason != "" {
				g.restart(slog.LevelError, reason)
			}
		}
	}
}

// stopFailed ends raft after a failure, so that the replica neither votes nor answers.
func (g *Group) stopFailed() {
	if !g.life.TryAcquire(1) {
		return // Close is doing it
	}
	defer g.life.Release(1)
	if n := g.run.Swap(nil); n != nil {
		if err := n.shutdown(false); err != nil {
			g.log.Error("stopping a failed group", "err", err)
		}
	}
}

// stuckTransfer reports a leadership transfer that ended but whose flag in raft stayed set (#696).
func (g *Group) stuckTransfer(n *instance) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	since := n.mu.transferBusy
	limit := 2*time.Second + 4*n.heartbeatTimeout()
	// The last refusal must be recent: without proposals nothing shows whether the flag is still set.
	if n.mu.transfer != nil || since.IsZero() || time.Since(since) < limit || time.Since(n.mu.transferRefused) > limit/2 {
		return ""
	}
	return fmt.Sprintf("raft has refused proposals for %v because of a leadership transfer that ended", limit)
}

// wedge is what decides whether a leader is wedged.
type wedge struct {
	leads      bool
	last       uint64    // index of the leader's log
	noSnapshot time.Time // last failure to read a snapshot
	progress   map[raft.ServerID]transport.Progress
	limit      time.Duration
	now        time.Time
}

// reason returns why the group must be restarted, or "". A wedged leader no longer replicates to a follower that still
// answers heartbeats (#612 and similar bugs). A leader that finds no snapshot to send is not wedged and must not be
// restarted: raft could not start without the snapshot either.
func (w *wedge) reason() string {
	if !w.leads || w.now.Sub(w.noSnapshot) <= w.limit {
		return ""
	}
	for id, p := range w.progress {
		if p.Installing || p.Match >= w.last {
			continue
		}
		alive := w.now.Sub(p.Contact) < w.limit/2
		still := w.now.Sub(p.MatchSince) > w.limit && w.now.Sub(p.Attempt) > w.limit+p.Backoff()
		if alive && still {
			return fmt.Sprintf(
				"replication to replica %s has not advanced from entry %d of %d for %v, although it answers heartbeats", id,
				p.Match, w.last, w.now.Sub(p.MatchSince).Round(time.Millisecond))
		}
	}
	return ""
}

// wedge returns the present state of n.
func (n *instance) wedge() *wedge {
	if n.raft.State() != raft.Leader {
		return &wedge{}
	}
	w := &wedge{
		last:  n.raft.LastIndex(), // before the positions of the followers, or an up-to-date follower would look behind
		leads: true, noSnapshot: n.g.watch.LastFailure(), limit: n.g.store.opts.WedgeTimeout,
		now:      time.Now(),
		progress: map[raft.ServerID]transport.Progress{},
	}
	term := n.raft.CurrentTerm()
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if p, ok := n.trans.Progress(s.ID, term); ok && s.ID != raft.ServerID(n.g.cfg.Replica) {
			w.progress[s.ID] = p
		}
	}
	return w
}

// backlogBytes returns the bytes that were committed and passed to the machine but not applied.
func (g *Group) backlogBytes() int64 {
	n := g.run.Load()
	if n == nil {
		return 0
	}
	//tidy:allow raftconfig the entries that raft has sent to the machine are wanted
	return g.ledger.Between(g.fsm.applied.Load(), n.raft.AppliedIndex())
}

func (g *Group) isRaftLeader() bool {
	n := g.run.Load()
	return n != nil && n.raft.State() == raft.Leader
}

// Leader returns the leader of the group as this replica knows it, the term, and whether it is this replica. It is a
// hint: reads need ReadIndex.
func (g *Group) Leader() (node rowraft.NodeID, term rowraft.Term, isMe bool) {
	n := g.run.Load()
	if n == nil || g.failure.Load() != nil {
		return "", 0, false
	}
	addr, _ := n.raft.LeaderWithID()
	return rowraft.NodeID(addr), rowraft.Term(n.raft.CurrentTerm()), n.raft.State() == raft.Leader
}
