package replay

import (
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/raftstore/offline"
)

// shardCheck is the check of one shard.
type shardCheck struct {
	report    *Report
	shard     rowraft.ShardID
	slots     []rowraft.Slot
	slotCount rowraft.SlotCount // of the cluster
	digests   map[rowraft.Index][]check.DigestAt

	replicas []*replica
	// committed is the highest index that is known to be committed; why is the reason.
	committed rowraft.Index
	why       string
}

// replica is the data of one server for the shard.
type replica struct {
	server Server
	*offline.Group
}

// know records that everything up to index is committed.
func (c *shardCheck) know(index rowraft.Index, why string) {
	if index > c.committed {
		c.committed, c.why = index, why
	}
}

// open opens the shard's replicas and reads from their disks what is committed.
func (c *shardCheck) open(servers []Server, stores []*offline.Store) error {
	group := fmt.Sprintf("shard-%d", c.shard)
	for i, s := range stores {
		for _, id := range s.GroupIDs() {
			if id != group {
				continue
			}
			g, err := s.Group(id)
			if rowraft.CodeOf(err) == rowraft.CodeCorrupt {
				c.wrong("server %s: %v", servers[i].Name, err)
				continue
			}
			if err != nil {
				return fmt.Errorf("server %s: %w", servers[i].Name, err)
			}
			for _, bad := range g.Bad {
				c.wrong("server %s: %v", servers[i].Name, bad)
			}
			c.replicas = append(c.replicas, &replica{servers[i], g})
		}
	}
	c.report.Replicas += len(c.replicas)
	if len(c.replicas) == 0 {
		c.wrong("no server has a replica")
	}
	for _, r := range c.replicas {
		for _, s := range r.Snapshots {
			c.know(s.Index, "a snapshot on server "+r.server.Name+" covers it")
		}
	}
	c.knowMajority()
	return nil
}

// end returns the index up to which a replica has everything, in its log or snapshot.
func (r *replica) end() rowraft.Index {
	end := r.Last
	if len(r.Snapshots) > 0 {
		end = max(end, r.Snapshots[0].Index)
	}
	return end
}

// has reports whether entry i is in the log.
func (r *replica) has(i rowraft.Index) bool { return r.First <= i && i <= r.Last && i > 0 }

// voters returns the voters in the newest configuration of all logs.
func (c *shardCheck) voters() []rowraft.ReplicaID {
	var farthest *replica
	for _, r := range c.replicas {
		if farthest == nil || r.end() > farthest.end() {
			farthest = r
		}
	}
	if farthest == nil {
		return nil
	}
	return farthest.Voters
}

// isVoter reports whether r counts towards a majority.
func isVoter(voters []rowraft.ReplicaID, r *replica) bool {
	for _, v := range voters {
		if v == r.Replica {
			return true
		}
	}
	return false
}

// knowMajority finds the last entry of the newest term of all logs that a majority of voters holds: no
// leader can be elected without it.
func (c *shardCheck) knowMajority() {
	voters := c.voters()
	newest := rowraft.Term(0)
	for _, r := range c.replicas {
		if e, err := r.Entry(r.Last); r.Last > 0 && err == nil {
			newest = max(newest, e.Term)
		}
	}
	for _, r := range c.replicas {
		e, err := r.Entry(r.Last)
		if r.Last == 0 || err != nil || e.Term != newest {
			continue
		}
		holders := 0
		for _, o := range c.replicas {
			if other, err := c.entry(o, r.Last); isVoter(voters, o) && err == nil && other.Equal(e) {
				holders++
			}
		}
		if 2*holders > len(voters) {
			c.know(r.Last, fmt.Sprintf("%d of %d logs hold it", holders, len(voters)))
		}
	}
}

func (c *shardCheck) entry(r *replica, i rowraft.Index) (offline.Entry, error) {
	if !r.has(i) {
		return offline.Entry{},
			rowraft.Errorf(rowraft.CodeNotFound, "entry %d is not in the log of server %s", i, r.server.Name)
	}
	return r.Entry(i)
}

// agree compares the committed part of all logs entry by entry, and checks that a majority of disks holds
// it. It returns false if there is no common log to replay.
func (c *shardCheck) agree() bool {
	before := len(c.report.Problems)
	voters := c.voters()
	holders := 0
	for _, r := range c.replicas {
		if isVoter(voters, r) && r.end() >= c.committed {
			holders++
		}
	}
	if 2*holders <= len(voters) {
		c.wrong("%d of %d replicas hold entry %d on disk, but it is committed: %s", holders, len(voters), c.committed, c.why)
	}
	for i := c.first(); i <= c.committed && len(c.report.Problems) < before+shownProblems; i++ {
		c.agreeAt(i)
	}
	c.agreeSnapshots()
	return len(c.replicas) > 0 && len(c.report.Problems) == before
}

// first returns the lowest index in any log.
func (c *shardCheck) first() rowraft.Index {
	first := rowraft.Index(0)
	for _, r := range c.replicas {
		if r.First > 0 && (first == 0 || r.First < first) {
			first = r.First
		}
	}
	return max(first, 1)
}

func (c *shardCheck) agreeAt(i rowraft.Index) {
	var one *replica
	var want offline.Entry
	for _, r := range c.replicas {
		if !r.has(i) {
			continue
		}
		e, err := r.Entry(i)
		switch {
		case err != nil:
			c.wrong("log of server %s: %v", r.server.Name, err)
		case one == nil:
			one, want = r, e
		case !e.Equal(want):
			c.wrong("entry %d is committed (up to %d: %s), but differs: server %s has %s of term %d with %d bytes, server "+
				"%s %s of term %d with %d bytes",
				i, c.committed, c.why, one.server.Name, want.Kind, want.Term, len(want.Data), r.server.Name, e.Kind, e.Term,
				len(e.Data))
		}
	}
}

// agreeSnapshots checks that the term of each snapshot's last entry equals that in the logs.
func (c *shardCheck) agreeSnapshots() {
	for _, r := range c.replicas {
		for _, s := range r.Snapshots {
			if e, ok := c.merged(s.Index); ok && e.Term != s.Term {
				c.wrong("snapshot %s of server %s ends with an entry of term %d, the logs have term %d there",
					s.ID, r.server.Name, s.Term, e.Term)
			}
		}
	}
}

// merged returns entry i from any log; the logs agree.
func (c *shardCheck) merged(i rowraft.Index) (offline.Entry, bool) {
	for _, r := range c.replicas {
		if e, err := c.entry(r, i); err == nil {
			return e, true
		}
	}
	return offline.Entry{}, false
}
