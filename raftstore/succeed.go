package raftstore

import (
	"hash/crc32"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
)

// Followers whose leader's process has ended need not wait for their timeouts. Each asks the other voters whether they
// have seen the same, and how long their logs are. If a majority has, the one with the longest log campaigns. So a
// follower that is cut off from the others does not raise the term, two followers do not compete, and a leader that
// only one follower cannot reach keeps its lead.

// succession is what an instance knows and does when the process of its leader ends.
type succession struct {
	n    *instance
	seen atomic.Pointer[sighting] // the last one; nil: none
}

// sighting is the end of the process that led term, as this replica saw it.
type sighting struct {
	term uint64
	at   time.Time
}

// askPause is the pause between two questions: the other voters may learn of the end a little later.
const askPause = 10 * time.Millisecond

// serverEnded is told that the process of a server has ended.
func (s *succession) serverEnded(node rowraft.NodeID) {
	n := s.n
	if n.g.run.Load() != n {
		return
	}
	term := n.raft.CurrentTerm()
	if leader, _ := n.raft.LeaderWithID(); rowraft.NodeID(leader) != node || s.sees(term) {
		return
	}
	s.seen.Store(&sighting{term, time.Now()})
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.mu.stopping {
		n.watcher.Go(func() { s.succeed(node, term) })
	}
}

// leaderEnded answers the question of another voter: whether the process of the leader of term has ended, as far as
// this replica knows, and the last index of its log.
func (s *succession) leaderEnded(term uint64) (ended bool, last uint64) {
	n := s.n
	if n.g.run.Load() != n {
		return false, 0
	}
	return s.sees(term), n.raft.LastIndex()
}

// sees reports whether this replica follows the leader of term, has seen the end of its process, and does not hear from
// it any more. Messages that had come before may still wait for raft.
func (s *succession) sees(term uint64) bool {
	seen, r := s.seen.Load(), s.n.raft
	return seen != nil && seen.term == term && r.CurrentTerm() == term && r.State() == raft.Follower &&
		r.LastContact().Before(seen.at.Add(s.n.heartbeatTimeout()/4))
}

// succeed makes this replica campaign in the place of node, whose process has ended and which led term, if a majority
// has seen that and this replica has the longest log. Otherwise the timeouts of raft decide.
func (s *succession) succeed(node rowraft.NodeID, term uint64) {
	n := s.n
	select {
	case <-n.g.rollback.asked: // it may vote
	default:
		return
	}
	voters := s.voters(node)
	end := time.NewTimer(n.heartbeatTimeout())
	defer end.Stop()
	again := time.NewTicker(askPause)
	defer again.Stop()
	for {
		if !s.sees(term) {
			return
		}
		if agreed, best := s.ask(voters, term); agreed && best {
			n.g.log.Info("campaigning, because the leader's process has ended", "leader", string(node))
			n.trans.Campaign(n.heartbeatTimeout() / 4)
			return
		} else if agreed {
			return // another one campaigns
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

// voters returns the voters of the group, this replica among them, without the one on node. The order differs from
// group to group, so that one server does not lead them all.
func (s *succession) voters(node rowraft.NodeID) []raft.Server {
	voters := slices.Clone(s.n.raft.GetConfiguration().Configuration().Servers)
	voters = slices.DeleteFunc(voters, func(v raft.Server) bool {
		return v.Suffrage != raft.Voter || rowraft.NodeID(v.Address) == node
	})
	if len(voters) == 0 {
		return nil
	}
	first := int(crc32.ChecksumIEEE([]byte(s.n.g.cfg.ID)) % uint32(len(voters)))
	return append(voters[first:], voters[:first]...)
}

// ask asks voters, which are all but the leader. agreed means that a majority with this replica has seen the end
// of the leader of term, and best that this replica has the longest log of them, or is the first of several.
func (s *succession) ask(voters []raft.Server, term uint64) (agreed, best bool) {
	n := s.n
	me := slices.IndexFunc(voters, func(v raft.Server) bool { return v.ID == raft.ServerID(n.g.cfg.Replica) })
	if me < 0 {
		return false, false
	}
	type answer struct {
		from  int
		ended bool
		last  uint64
	}
	answers := make(chan answer, len(voters))
	for i, v := range voters {
		if i != me {
			go func() {
				ended, last, err := n.trans.AskEnded(v.ID, v.Address, term)
				answers <- answer{i, ended && err == nil, last}
			}()
		}
	}
	late := time.NewTimer(n.heartbeatTimeout() / 4)
	defer late.Stop()
	best = true
	count, last := 1, n.raft.LastIndex()
	for range len(voters) - 1 {
		select {
		case a := <-answers:
			if a.ended {
				count++
				best = best && (a.last < last || a.last == last && me < a.from)
			}
		case <-late.C:
			return count > (len(voters)+1)/2, best
		case <-n.over:
			return false, false
		}
	}
	return count > (len(voters)+1)/2, best
}
