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

// minStarts is how many replicas start at once even on few cores: they wait for the disk.
const minStarts = 4

// followReplicas starts the replicas that m gives this server, and deletes those
// that m says have left.
//
// A server that restarts goes through old maps before it gets to the newest. So an
// old map must do no harm: what it does not list yet is kept, and a replica that left
// is not started again, since raftstore remembers all that did.
//
// Replicas that start read their snapshots and logs, so they do it beside each other.
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

// removeReplica stops a replica that left its group and deletes its data. That it
// left is remembered even if it never ran here.
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
	// Again even so: a crash may have come before the data was gone.
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
