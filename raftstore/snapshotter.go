package raftstore

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/raftstore/turns"
)

// snapshotter decides when a group takes a snapshot and how much of the log before it stays.
type snapshotter struct {
	g *Group

	at      atomic.Uint64 // raft index of the last snapshot of this replica; never decreases
	bytes   atomic.Int64  // its size
	taken   atomic.Int64  // when it was written, Unix ns; 0: unknown
	retryAt atomic.Int64  // no snapshot before this time, Unix ns
	wanted  atomic.Bool   // a new snapshot must replace a damaged one
	hurry   atomic.Bool   // the running snapshot replaces a damaged one, so it must not yield
	busy    atomic.Bool   // one is being taken
}

// snapshotRetry is the pause after a failed snapshot.
const snapshotRetry = 10 * time.Second

// takeIfDue takes a snapshot on its own goroutine if enough log was applied since the last one and it is the turn of
// this replica. The supervisor calls it at each tick.
func (p *snapshotter) takeIfDue(n *instance) {
	g := p.g
	wanted := p.wanted.Load() || g.cfg.WantsSnapshot != nil && g.cfg.WantsSnapshot()
	if may := p.mayTake(n, time.Now()); !may && !wanted || time.Now().UnixNano() < p.retryAt.Load() {
		return
	}
	if !p.busy.CompareAndSwap(false, true) {
		return
	}
	if !g.store.snapshots.TryAcquire(1) { // enough groups are taking one
		p.busy.Store(false)
		return
	}
	p.hurry.Store(p.wanted.Load())
	p.wanted.Store(false)
	g.turns.SetWriting(true)
	done := func() {
		g.turns.SetWriting(false)
		g.store.snapshots.Release(1)
		p.busy.Store(false)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.stopping {
		done()
		return
	}
	n.watcher.Go(func() {
		defer done()
		if err := n.snapshot(); err != nil {
			p.retryAt.Store(time.Now().Add(snapshotRetry).UnixNano())
			g.log.Warn("snapshot failed, so the log continues to grow", "err", err)
		}
	})
}

// mayTake reports whether a snapshot is due and it is the turn of this replica.
func (p *snapshotter) mayTake(n *instance, now time.Time) bool {
	g := p.g
	at := p.at.Load()
	v := turns.View{Self: raft.ServerID(g.cfg.Replica), Grown: g.ledger.Between(at, g.fsm.applied.Load()),
		Every: p.every(), First: at == 0, Failed: now.UnixNano() < p.retryAt.Load()}
	_, v.Leader = n.raft.LeaderWithID()
	if c := g.fsm.members.Load(); c != nil {
		for _, srv := range c.servers {
			v.Members = append(v.Members, srv.ID)
		}
	}
	return g.turns.May(&v, now)
}

// replacing reports whether a snapshot is being taken, or will be as soon as possible. For a large state that takes
// longer than the limit of snapstore.Watch.
func (p *snapshotter) replacing() bool {
	return p.busy.Load() || p.wanted.Load() && time.Now().UnixNano() >= p.retryAt.Load()
}

// minSnapshotEvery is the least log between two snapshots if SnapshotEveryBytes is 0: for a small state it is not worth
// cutting the log more often.
const minSnapshotEvery = 512 << 20

// every returns how much log the group applies between two snapshots. A snapshot has the whole state. If the
// interval did not grow with the state, snapshots of a large state would write many times as much as the log.
func (p *snapshotter) every() int64 {
	o := &p.g.store.opts
	if o.SnapshotEveryBytes > 0 {
		return o.SnapshotEveryBytes
	}
	return min(max(minSnapshotEvery, p.bytes.Load()), o.SnapshotMaxBytes)
}

// note records a snapshot of this replica if it is the newest.
func (p *snapshotter) note(m *raft.SnapshotMeta) {
	if m.Index < p.at.Load() {
		return
	}
	p.at.Store(m.Index)
	p.bytes.Store(m.Size)
	if taken, err := p.g.snaps.Time(m.ID); err == nil && !taken.IsZero() {
		p.taken.Store(taken.UnixNano())
	}
}

// Snapshot takes a snapshot now and returns when it is on disk.
func (g *Group) Snapshot() error {
	n, err := g.running()
	if err != nil {
		return err
	}
	return n.snapshot()
}

func (n *instance) snapshot() error {
	g := n.g
	first, err := g.inner.FirstIndex()
	if err != nil {
		return err
	}
	if err := n.reconfigure(func(rc *raft.ReloadableConfig) {
		rc.TrailingLogs = g.ledger.Trailing(g.store.opts.TrailingLogBytes, first)
	}); err != nil {
		return err
	}
	begun := time.Now()
	f := n.raft.Snapshot()
	if err := n.waitRaft(f); err != nil {
		if errors.Is(err, raft.ErrNothingNewToSnapshot) {
			return nil
		}
		return fmt.Errorf("group %s: %w", g.cfg.ID, err)
	}
	g.store.snapshotTook.Observe(time.Since(begun))
	list, err := g.snaps.List()
	if err != nil {
		return err
	}
	if len(list) > 0 {
		g.glog.Raise(list[0].Index, list[0].Term)
	}
	return nil
}

// keepFactor bounds the log that is kept for a follower that catches up, as a multiple of snapshotter.every.
const keepFactor = 4

// compactable returns the last entry up to which the log may be cut, out of those that raft wants to cut.
//
// A follower that receives a snapshot needs the entries after it. If these were cut in the meantime, the follower would
// need the next snapshot, and so on forever under load. Raft also looks up the term of the snapshot's last entry, so
// that entry always stays. The log is cut in any case before it fills the disk.
func (p *snapshotter) compactable(first, want uint64) uint64 {
	g := p.g
	if last, err := g.inner.LastIndex(); err != nil || want >= last {
		return want // raft clears the log for a snapshot, or deletes a tail that conflicts
	}
	if list, err := g.snaps.List(); err == nil && len(list) > 0 {
		want = min(want, list[0].Index-1)
	}
	n := g.run.Load()
	if n == nil || n.raft.State() != raft.Leader || g.store.diskFull.Load() {
		return want
	}
	needed, replica := n.neededFrom(first, time.Now())
	if needed == 0 || needed > want {
		return want
	}
	o := &g.store.opts
	if kept := g.ledger.Between(needed-1, want) + o.TrailingLogBytes; kept > keepFactor*p.every() {
		g.log.Warn("the log is cut before a follower has caught up", "follower", string(replica), "from", needed, "to", want,
			"kept_bytes", kept)
		return want
	}
	g.log.Info("the log is kept for a follower that catches up", "follower", string(replica), "from", needed, "to", want)
	return needed - 1
}

// neededFrom returns the lowest entry, of those from first on, that must stay for a follower that is alive and received
// a snapshot, and that follower; 0 if there is none. The entry is the one before the first that the follower lacks,
// because raft looks up its term. A follower that needs entries below first needs another snapshot anyway.
func (n *instance) neededFrom(first uint64, now time.Time) (needed uint64, who raft.ServerID) {
	term := n.raft.CurrentTerm()
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		p, ok := n.trans.Progress(s.ID, term)
		if !ok || p.Recovering == 0 || !p.Installing && now.Sub(p.Contact) > n.g.store.opts.WedgeTimeout {
			continue
		}
		has := max(p.Match, p.Recovering)
		if has >= first && (needed == 0 || has < needed) {
			needed, who = has, s.ID
		}
	}
	return needed, who
}
