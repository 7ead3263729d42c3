package raftstore

import (
	"time"

	"github.com/hashicorp/raft"
)

// keepFactor bounds the log that is kept for a follower that catches up, in units of
// what is applied between two snapshots.
const keepFactor = 4

// compactable returns up to where the log may be cut, of what raft wants to cut.
//
// A follower that is sent a snapshot needs the entries behind it: if they went
// meanwhile it would be sent the next snapshot, and under load so on for ever. It
// needs the last entry of the snapshot, too, whose term raft looks up, so that one
// always stays. The log is cut all the same before it fills the disk.
func (g *Group) compactable(first, want uint64) uint64 {
	if last, err := g.inner.LastIndex(); err != nil || want >= last {
		return want // raft clears the log for a snapshot, or cuts a tail that conflicts
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
	if kept := g.ledger.between(needed-1, want) + o.TrailingLogBytes; kept > keepFactor*g.snapshotEvery() {
		g.log.Warn("the log is cut before a follower has caught up", "follower", string(replica), "from", needed, "to", want, "kept_bytes", kept)
		return want
	}
	g.log.Info("the log is kept for a follower that catches up", "follower", string(replica), "from", needed, "to", want)
	return needed - 1
}

// neededFrom is the lowest entry, of those from first on, that must stay for a living
// follower which was sent a snapshot, and who that is; 0 if there is none. It is the
// one before the first that the follower lacks: raft looks up its term. Whoever needs
// entries below first needs another snapshot, and nothing of what is there.
func (n *instance) neededFrom(first uint64, now time.Time) (needed uint64, who raft.ServerID) {
	term := n.raft.CurrentTerm()
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		p, ok := n.trans.progress(s.ID, term)
		if !ok || p.recovering == 0 || !p.installing && now.Sub(p.contact) > n.g.store.opts.WedgeTimeout {
			continue
		}
		has := max(p.match, p.recovering)
		if has >= first && (needed == 0 || has < needed) {
			needed, who = has, s.ID
		}
	}
	return needed, who
}
