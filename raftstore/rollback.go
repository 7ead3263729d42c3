package raftstore

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/marks"
	"github.com/rowraft/rowraft/raftstore/peer"
	"github.com/rowraft/rowraft/raftstore/registry"
	"github.com/rowraft/rowraft/raftstore/transport"
)

// DESIGN.md, "Rolled back disks", describes how a replica whose disk was rolled back is found.

// RolledBack begins the error of a replica whose disk is older than what other replicas remember of it.
const RolledBack = "rolled back disk"

// rollbackGuard compares this replica with what other servers remember of it. It implements peer.Member.
type rollbackGuard struct {
	g     *Group
	asked chan struct{} // closed by askPeers: from then on this replica may vote
}

// copied ends the messages about a copied directory.
const copied = "a copy of a data directory is no backup"

// checkCopy returns why g must stop because the directory is a copy, or "". After such a discovery no replica of the
// directory may run, and the store continues its count of starts after those of the other copy. So peers accept the
// replicas that this node gets instead, under new IDs. If the other copy still runs, checkCopy sets twin and changes
// nothing.
func (s *Store) checkCopy(g *Group, from rowraft.NodeID, statement *marks.Statement) (why string, twin bool) {
	if why = s.starts.Load().Contradicts(statement.About); why == "" { // before s.mu, which may be held for long
		return "", false
	}
	why = fmt.Sprintf("%s, as server %s remembers", why, from)
	if statement.Answers {
		return why, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	reg := s.mu.registry
	if reg.Starts().Contradicts(statement.About) == "" { // another group has done it
		rec, _ := reg.Group(g.cfg.ID)
		return rec.RolledBack, false
	}
	if err := reg.BeginAfter(statement.About, why); err != nil {
		s.opts.Logger.Error("cannot record that the data directory is a copy", "err", err)
		return why, false
	}
	s.starts.Store(reg.Starts())
	for _, other := range s.mu.groups {
		if other != nil && other != g {
			other.rolledBack("%s; %s", why, copied)
		}
	}
	return why, false
}

// Statement implements peer.Member.
func (r *rollbackGuard) Statement(node rowraft.NodeID) (marks.Statement, error) {
	g := r.g
	s, err := serverMember{g.store}.Statement(node)
	if err != nil {
		return s, err
	}
	n := g.run.Load()
	if n == nil {
		return s, rowraft.Errorf(rowraft.CodeStarting, "group %s does not run yet", g.cfg.ID)
	}
	for _, srv := range n.raft.GetConfiguration().Configuration().Servers {
		if rowraft.NodeID(srv.Address) == node {
			s.Replica = rowraft.ReplicaID(srv.ID)
			s.Mark = g.store.marks.Of(g.cfg.ID, s.Replica)
		}
	}
	return s, nil
}

// Compare implements peer.Member. It needs no lock. The other end read its mark before this replica reads its own
// state, and on an honest disk the committed entries that a replica confirmed, its term and its start never decrease.
func (r *rollbackGuard) Compare(from rowraft.NodeID, s *marks.Statement) error {
	g := r.g
	if err := g.Err(); err != nil {
		return err
	}
	if why, twin := g.store.checkCopy(g, from, s); why != "" {
		if twin {
			err := rowraft.Errorf(rowraft.CodeIdentity,
				"two processes run as server %s, on copies of one data directory: %s; stop one of them (%s)", g.store.opts.Node,
				why, copied)
			g.fail(err)
			return err
		}
		return g.rolledBack("%s; %s", why, copied)
	}
	if s.Replica != g.cfg.Replica {
		return nil
	}
	n := g.run.Load()
	if n == nil {
		return rowraft.Errorf(rowraft.CodeStarting, "group %s does not run yet", g.cfg.ID)
	}
	last, term := n.raft.LastIndex(), n.raft.CurrentTerm()
	if b := g.glog.Boundary(); b != nil {
		last = max(last, b.Index) // a snapshot that is being installed is on disk a moment before raft counts it
	}
	switch {
	case last < s.Mark.Index:
		return g.rolledBack(
			"its log ends at entry %d, and server %s remembers that it confirmed entry %d, which is committed; %s", last, from,
			s.Mark.Index, copied)
	case term < s.Mark.Term:
		return g.rolledBack("it is in term %d, and server %s remembers that it voted in term %d; %s", term, from, s.Mark.Term,
			copied)
	}
	return nil
}

// serverMember implements peer.Member for the connections that all groups share. It refuses a server that remembers a
// later start of this one, and stops nothing: the replicas compare on the connections of their groups, and use a shared
// one only after that.
type serverMember struct{ s *Store }

// Statement implements peer.Member.
func (m serverMember) Statement(node rowraft.NodeID) (marks.Statement, error) {
	s := marks.Statement{Self: m.s.starts.Load().Process(), About: m.s.marks.Process(node)}
	s.Answers = m.s.port.Answers(node, s.About)
	return s, nil
}

// Compare implements peer.Member.
func (m serverMember) Compare(from rowraft.NodeID, s *marks.Statement) error {
	if why := m.s.starts.Load().Contradicts(s.About); why != "" {
		return rowraft.Errorf(rowraft.CodeIdentity, "%s, as server %s remembers", why, from)
	}
	return nil
}

// rolledBack stops the group forever. From here on it neither votes nor answers.
func (g *Group) rolledBack(format string, args ...any) error {
	err := rowraft.Errorf(rowraft.CodeFenced, RolledBack+": "+format, args...)
	g.glog.Fence() // from here on no vote is stored
	g.failWith(err, func(err error) {
		if g.cfg.OnRolledBack != nil {
			g.cfg.OnRolledBack(err)
		} else {
			g.store.opts.Fatal(err)
		}
	})
	return err
}

// askRetry is the pause before askPeer tries again.
const askRetry = 50 * time.Millisecond

// askPeers connects to every other member, so that each one compares its mark with this replica and learns which
// process runs now. It closes asked after all have answered, or after two heartbeats: a peer that is down blocks
// nothing. Until then this replica neither votes nor requests votes.
func (r *rollbackGuard) askPeers(n *instance) {
	g := r.g
	defer close(r.asked)
	ctx, cancel := context.WithTimeout(n.layer.Context(), 2*time.Duration(n.heartbeat.Load()))
	defer cancel()
	var wg sync.WaitGroup
	for _, srv := range n.raft.GetConfiguration().Configuration().Servers {
		if srv.ID != raft.ServerID(g.cfg.Replica) {
			wg.Go(func() { r.askPeer(ctx, n.layer, srv.Address) })
		}
	}
	wg.Wait()
}

func (r *rollbackGuard) askPeer(ctx context.Context, layer *peer.Layer, peer raft.ServerAddress) {
	g := r.g
	for ctx.Err() == nil && g.failure.Load() == nil {
		if layer.Exchange(ctx, peer, transport.RPCTimeout) == nil {
			return
		}
		select {
		case <-time.After(askRetry):
		case <-ctx.Done():
		}
	}
}

// tellMarks records what this leader knows of each member and returns it for a heartbeat; nil if this replica does not
// lead in term. The match index of a follower and the commit index of this leader belong together only while it leads.
// So tellMarks reads both and then checks that it still leads.
func (n *instance) tellMarks(term uint64) []byte {
	if n.g.run.Load() != n {
		return nil
	}
	g, s := n.g, n.g.store
	commit := n.raft.CommitIndex()
	now := marksOf{term, commit, n.trans.Matches(), s.marks.Version(), s.starts.Load()}
	if old := n.marks.Load(); old != nil && old.of == now {
		if n.raft.State() != raft.Leader || n.raft.CurrentTerm() != term {
			return nil
		}
		return old.payload
	}
	servers := n.raft.GetConfiguration().Configuration().Servers
	match := make([]uint64, len(servers))
	for i, srv := range servers {
		if p, ok := n.trans.Progress(srv.ID, term); ok {
			match[i] = p.Match
		}
	}
	if n.raft.State() != raft.Leader || n.raft.CurrentTerm() != term {
		return nil
	}
	var out []byte
	for i, srv := range servers {
		id, node := rowraft.ReplicaID(srv.ID), rowraft.NodeID(srv.Address)
		m, p := marks.Mark{Index: min(match[i], commit)}, s.marks.Process(node)
		if id == g.cfg.Replica {
			// it stored what it sent, and voted for itself
			m, p = marks.Mark{Index: commit, Term: term}, s.starts.Load().Process()
		}
		s.marks.Raise(g.cfg.ID, id, m)
		out = marks.AppendMember(out, marks.Member{Replica: id, Node: node, Mark: s.marks.Of(g.cfg.ID, id), Process: p})
	}
	out = marks.SealMembers(out)
	now.version = s.marks.Version() // another change since then changes the next payload without need, and loses nothing
	n.marks.Store(&knownMarks{now, out})
	return out
}

// knownMarks is the payload of tellMarks, which is the same while of is.
type knownMarks struct {
	of      marksOf
	payload []byte
}

// marksOf is all that the payload of tellMarks depends on. The list of members changes with the commit index.
type marksOf struct {
	term, commit, matches, version uint64
	starts                         *registry.Starts
}

// learn stores the marks that a leader sent.
func (r *rollbackGuard) learn(from rowraft.NodeID, payload []byte) {
	g := r.g
	list, err := marks.DecodeMembers(payload)
	if err != nil {
		g.log.Warn("marks that a leader sent are ignored", "from", from, "err", err)
		return
	}
	for _, t := range list {
		if t.Replica == g.cfg.Replica {
			// Keep this replica's own mark too: it shows how much of the log is committed.
			if r.Compare(from, &marks.Statement{Replica: t.Replica, Mark: t.Mark}) != nil {
				return
			}
		} else if t.Node != g.store.opts.Node {
			g.store.marks.RecordProcess(t.Node, t.Process)
		}
		g.store.marks.Raise(g.cfg.ID, t.Replica, t.Mark)
	}
}

// voted records that a replica voted in term.
func (r *rollbackGuard) voted(id raft.ServerID, term uint64) {
	r.g.store.marks.Raise(r.g.cfg.ID, rowraft.ReplicaID(id), marks.Mark{Term: term})
}

// pruneEvery is the pause between two calls of pruneMarks.
const pruneEvery = 30 * time.Second

// keepMarks writes the file every marks.WriteEvery until the store closes, and once more at the end.
func (s *Store) keepMarks() {
	defer close(s.marksKept)
	t := time.NewTicker(marks.WriteEvery)
	defer t.Stop()
	for failing, pruned := false, time.Now(); ; {
		ended := false
		select {
		case <-t.C:
		case <-s.stop:
			ended = true
		}
		if ended || time.Since(pruned) > pruneEvery {
			s.pruneMarks()
			pruned = time.Now()
		}
		err := s.marks.Flush()
		if err != nil && !failing {
			s.opts.Logger.Warn("the marks of other replicas cannot be written: after a restart this server may not find a "+
				"disk that was rolled back", "err", err)
		}
		if failing = err != nil; ended {
			return
		}
	}
}

// pruneMarks deletes the marks of replicas that have left their groups.
func (s *Store) pruneMarks() {
	s.mu.Lock()
	groups := maps.Clone(s.mu.groups)
	s.mu.Unlock()
	for id, g := range groups {
		if g == nil {
			continue
		}
		n, c := g.run.Load(), g.fsm.members.Load()
		if n == nil || c == nil {
			continue
		}
		member := map[rowraft.ReplicaID]bool{g.cfg.Replica: true}
		for _, srv := range c.servers {
			member[rowraft.ReplicaID(srv.ID)] = true
		}
		for _, srv := range n.raft.GetConfiguration().Configuration().Servers {
			member[rowraft.ReplicaID(srv.ID)] = true
		}
		s.marks.Retain(id, func(r rowraft.ReplicaID) bool { return member[r] })
	}
}
