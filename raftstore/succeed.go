package raftstore

import (
	"cmp"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// Followers whose leader's process has ended need not wait for their timeouts. Each asks the other voters for their
// support, as a candidate of a pre-vote does. A voter supports one follower, if it has seen the end of the same process
// and its own log is not longer. A follower with the support of a majority campaigns. So a follower that is cut off
// from the others does not raise the term, and a leader that only one follower cannot reach keeps its lead.

// succession is what an instance knows and does when the process of its leader ends.
type succession struct {
	n *instance

	mu   sync.Mutex // guards the fields below
	seen sighting
}

// sighting is the end of the process that led term, as this replica saw it. The zero sighting is none.
type sighting struct {
	term      uint64
	at        time.Time
	supported raft.ServerID // the follower that this replica supports; "": none yet
}

// supportPause is the pause between two rounds of questions: other voters may see the end a little later.
const supportPause = 5 * time.Millisecond

// serverEnded is told that the process of a server has ended.
func (s *succession) serverEnded(node rowraft.NodeID) {
	n := s.n
	if n.g.run.Load() != n {
		return
	}
	term := n.raft.CurrentTerm()
	if leader, _ := n.raft.LeaderWithID(); rowraft.NodeID(leader) != node || !s.see(term) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.mu.stopping {
		n.watcher.Go(func() { s.succeed(node, term) })
	}
}

// see records that the process of the leader of term has ended. It returns false if that is known.
func (s *succession) see(term uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seesLocked(term) {
		return false
	}
	s.seen = sighting{term: term, at: time.Now()}
	return true
}

// seesLocked reports whether this replica follows the leader of term, has seen the end of its process, and does not
// hear from it any more. Messages that had come before may still wait for raft.
// REQUIRES: s.mu is held.
func (s *succession) seesLocked(term uint64) bool {
	r := s.n.raft
	return s.seen.term == term && r.CurrentTerm() == term && r.State() == raft.Follower &&
		r.LastContact().Before(s.seen.at.Add(s.n.heartbeatTimeout()/4))
}

// supports answers the question of another voter, whose log ends with last.
func (s *succession) supports(id raft.ServerID, term uint64, last entry.Position) bool {
	if s.n.g.run.Load() != s.n || !s.mayVote() {
		return false
	}
	own := s.n.lastEntry()
	longer := cmp.Or(cmp.Compare(own.Term, last.Term), cmp.Compare(own.Index, last.Index),
		cmp.Compare(s.place(id), s.place(raft.ServerID(s.n.g.cfg.Replica))))
	return longer < 0 && s.support(id, term)
}

// support gives id the support of this replica if it has seen the end of the leader of term and supports no other one.
func (s *succession) support(id raft.ServerID, term uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.seesLocked(term) || s.seen.supported != "" && s.seen.supported != id {
		return false
	}
	s.seen.supported = id
	return true
}

// place orders the replicas differently from group to group, so that one server does not lead them all.
func (s *succession) place(id raft.ServerID) uint32 {
	return crc32.ChecksumIEEE([]byte(s.n.g.cfg.ID + string(id)))
}

func (s *succession) mayVote() bool { return isClosed(s.n.g.rollback.asked) }

// lastEntry returns the position of the last entry of this replica's log, with term 0 if its term is not known.
func (n *instance) lastEntry() entry.Position {
	index := n.raft.LastIndex()
	var last raft.Log
	if err := n.g.glog.GetLog(index, &last); err != nil {
		return entry.Position{Index: index}
	}
	return entry.Position{Index: last.Index, Term: last.Term}
}

// succeed makes this replica campaign in the place of node, whose process has ended and which led term, if a majority
// supports it within the heartbeat timeout. Otherwise the timeouts of raft decide.
func (s *succession) succeed(node rowraft.NodeID, term uint64) {
	n := s.n
	me := raft.ServerID(n.g.cfg.Replica)
	voters := slices.DeleteFunc(slices.Clone(n.raft.GetConfiguration().Configuration().Servers), func(v raft.Server) bool {
		return v.Suffrage != raft.Voter
	})
	if !s.mayVote() || !slices.ContainsFunc(voters, func(v raft.Server) bool { return v.ID == me }) {
		return
	}
	end := time.NewTimer(n.heartbeatTimeout())
	defer end.Stop()
	again := time.NewTicker(supportPause)
	defer again.Stop()
	for {
		if s.ask(voters, node, term) > len(voters)/2 && s.support(me, term) {
			n.g.log.Info("campaigning, because the leader's process has ended", "leader", string(node))
			n.trans.Campaign(n.heartbeatTimeout() / 4)
			return
		}
		select {
		case <-again.C:
		case <-end.C:
			return
		case <-n.over:
			return
		}
	}
}

// ask returns how many voters support this replica, itself included, in the place of the leader of term on node. It
// does not wait for more than a majority, nor for longer than a quarter of the heartbeat timeout.
func (s *succession) ask(voters []raft.Server, node rowraft.NodeID, term uint64) (support int) {
	n := s.n
	last := n.lastEntry()
	answers := make(chan bool, len(voters))
	asked := 0
	for _, v := range voters {
		if v.ID != raft.ServerID(n.g.cfg.Replica) && rowraft.NodeID(v.Address) != node {
			asked++
			go func() { answers <- n.trans.AskSupport(v.ID, v.Address, term, last) }()
		}
	}
	late := time.NewTimer(n.heartbeatTimeout() / 4)
	defer late.Stop()
	for support = 1; asked > 0 && support <= len(voters)/2; asked-- {
		select {
		case yes := <-answers:
			if yes {
				support++
			}
		case <-late.C:
			return support
		case <-n.over:
			return 0
		}
	}
	return support
}
