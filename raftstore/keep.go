package raftstore

import (
	"time"

	"github.com/hashicorp/raft"
)

// keepFactor bounds the log that is kept for a follower that catches up, as a multiple of snapshotEvery.
const keepFactor = 4

// compactable returns the last entry up to which the log may be cut, out of those that raft wants to cut.
//
// A follower that receives a snapshot needs the entries after it. If these were cut in the meantime, the follower would
// need the next snapshot, and so on forever under load. Raft also looks up the term of the snapshot's last entry, so
// that entry always stays. The log is cut in any case before it fills the disk.
func (g *Group) compactable(first, want uint64) uint64 {
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
	if kept := g.ledger.Between(needed-1, want) + o.TrailingLogBytes; kept > keepFactor*g.snapshotEvery() {
		g.log.Warn("the log is cut before a follower has caught up", "follower", string(replica), "from", needed, "to", want, "kept_bytes", kept)
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
