package replica

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

// Follow starts the replicas that m lists on this server, and deletes those that m
// lists as removed.
//
// A server that restarts follows old maps before the newest. So an old map must do no harm: a
// replica that it does not list yet is kept, and a removed replica is not started again, because
// raftstore remembers the ids of all removed ones.
//
// Replicas read their snapshots and logs when they start, so they start concurrently.
func (h *Host) Follow(m *clustermap.Map) error {
	var g errgroup.Group
	g.SetLimit(max(runtime.GOMAXPROCS(0), minStarts))
	err := h.startReplicas(m, &g)
	if err = errors.Join(err, g.Wait()); err == nil {
		old := h.cluster.Swap(m)
		h.copies.Follow(m, old != nil && old.SlotsVersion != m.SlotsVersion)
	}
	return err
}

func (h *Host) startReplicas(m *clustermap.Map, g *errgroup.Group) error {
	for _, s := range m.Shards {
		for _, r := range s.Removed {
			if r.Node == h.opts.Node {
				if err := h.removeReplica(s.ID, r.ID); err != nil {
					return err
				}
			}
		}
		r, here := s.On(h.opts.Node)
		if !here || h.replica(s.ID) != nil || h.store.Removed(groupName(s.ID), r.ID) {
			continue
		}
		g.Go(func() error {
			begin := time.Now()
			if fenced, err := h.fences.recall(s.ID, r.ID); err != nil || fenced {
				return err
			}
			rep, err := h.openReplica(m, s, r)
			if rowraft.CodeOf(err) == rowraft.CodeFenced { // its disk was rolled back
				return h.fenceUnopened(s.ID, r.ID, err)
			}
			if err != nil {
				return err
			}
			h.mu.Lock()
			h.replicas[s.ID] = rep
			h.mu.Unlock()
			h.watchers.Go(func() { h.watch(rep) })
			h.log.Info("runs a replica", "shard", uint32(s.ID), "replica", string(r.ID), "map_version", uint64(m.Version),
				"applied", uint64(rep.machine.AppliedIndex()), "after", time.Since(begin).String())
			return nil
		})
	}
	return nil
}

// removeReplica stops a replica that the map lists as removed and deletes its data. The store
// remembers the id, also if the replica never ran here.
func (h *Host) removeReplica(shard rowraft.ShardID, id rowraft.ReplicaID) error {
	h.mu.Lock()
	r := h.replicas[shard]
	if r != nil && r.id == id {
		delete(h.replicas, shard)
	} else {
		r = nil
	}
	h.mu.Unlock()
	if r != nil {
		if err := r.close(); err != nil {
			return fmt.Errorf("stop replica %s of shard %d, which left: %w", id, shard, err)
		}
	}
	known := h.store.Removed(groupName(shard), id)
	// Also if the store knows the id: a crash may have come before the data was deleted.
	if err := h.store.RemoveReplica(groupName(shard), id); err != nil {
		return fmt.Errorf("delete replica %s of shard %d, which left: %w", id, shard, err)
	}
	if err := h.fences.forget(shard, id); err != nil {
		return fmt.Errorf("forget that replica %s of shard %d was fenced: %w", id, shard, err)
	}
	if err := h.removeColdDir(shard, id); err != nil {
		return err
	}
	if !known {
		h.log.Info("deleted a replica that left", "shard", uint32(shard), "replica", string(id))
	}
	return nil
}
