package node

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// minStarts is how many replicas start concurrently even on few cores: a start mostly waits
// for the disk.
const minStarts = 4

// followReplicas starts the replicas that m lists on this server, and deletes those that m
// lists as removed.
//
// A server that restarts follows old maps before the newest. So an old map must do no harm: a
// replica that it does not list yet is kept, and a removed replica is not started again, because
// raftstore remembers the ids of all removed ones.
//
// Replicas read their snapshots and logs when they start, so they start concurrently.
func (n *Node) followReplicas(m *clustermap.Map) error {
	var g errgroup.Group
	g.SetLimit(max(runtime.GOMAXPROCS(0), minStarts))
	err := n.startReplicas(m, &g)
	return errors.Join(err, g.Wait())
}

func (n *Node) startReplicas(m *clustermap.Map, g *errgroup.Group) error {
	for _, s := range m.Shards {
		for _, r := range s.Removed {
			if r.Node == n.self.ID {
				if err := n.removeReplica(s.ID, r.ID); err != nil {
					return err
				}
			}
		}
		r, here := s.On(n.self.ID)
		if !here || n.replica(s.ID) != nil || n.store.Removed(groupName(s.ID), r.ID) {
			continue
		}
		segment := n.cfg.LogSegmentBytes
		if segment == 0 {
			segment = segmentSize(m, r.Node)
		}
		g.Go(func() error {
			begin := time.Now()
			if fenced, err := n.staysFenced(s.ID, r.ID); err != nil || fenced {
				return err
			}
			rep, err := n.openReplica(m, s, r, segment)
			if rowraft.CodeOf(err) == rowraft.CodeFenced { // its disk was rolled back
				return n.fenceUnopened(s.ID, r.ID, err)
			}
			if err != nil {
				return err
			}
			n.mu.Lock()
			n.replicas[s.ID] = rep
			n.mu.Unlock()
			n.watchers.Go(func() { n.watch(rep) })
			n.log.Info("runs a replica", "shard", uint32(s.ID), "replica", string(r.ID), "map_version", uint64(m.Version),
				"applied", uint64(rep.machine.AppliedIndex()), "after", time.Since(begin).String())
			return nil
		})
	}
	return nil
}

// removeReplica stops a replica that the map lists as removed and deletes its data. The store
// remembers the id, also if the replica never ran here.
func (n *Node) removeReplica(shard rowraft.ShardID, id rowraft.ReplicaID) error {
	n.mu.Lock()
	r := n.replicas[shard]
	if r != nil && r.id == id {
		delete(n.replicas, shard)
	} else {
		r = nil
	}
	n.mu.Unlock()
	if r != nil {
		if err := r.close(); err != nil {
			return fmt.Errorf("stop replica %s of shard %d, which left: %w", id, shard, err)
		}
	}
	known := n.store.Removed(groupName(shard), id)
	// Also if the store knows the id: a crash may have come before the data was deleted.
	if err := n.store.RemoveReplica(groupName(shard), id); err != nil {
		return fmt.Errorf("delete replica %s of shard %d, which left: %w", id, shard, err)
	}
	if err := n.forgetFence(shard, id); err != nil {
		return fmt.Errorf("forget that replica %s of shard %d was fenced: %w", id, shard, err)
	}
	if !known {
		n.log.Info("deleted a replica that left", "shard", uint32(shard), "replica", string(id))
	}
	return nil
}
