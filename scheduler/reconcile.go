package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/ticks"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/placement"
)

// Run starts the control loops and returns when ctx ends. It also runs the loop of reconcile itself. All loops act only
// while this member leads the scheduler, and they try again in the next round after an error.
func (s *Scheduler) Run(ctx context.Context) {
	tick := ticks.New(reconcileInterval)
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	s.pulse.begin()
	wg.Go(func() { s.pulse.run(ctx) })
	wg.Go(func() { s.driver.run(ctx) })
	wg.Go(func() { s.placeLoop.run(ctx) })
	wg.Go(func() { s.checkpoints.RunPolicies(ctx) })
	wg.Go(func() { s.jobs.Run(ctx) })
	var lastErr string
	for {
		err := s.reconcile(ctx)
		// Log the same error once.
		if msg := errorText(err); msg != lastErr && ctx.Err() == nil {
			if lastErr = msg; err != nil {
				s.logger.Warn("cannot bring the cluster to its wanted state; trying again", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.kick:
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// reconcile is one round of the main loop. It names the cluster, creates the shards once enough servers have
// registered, raises the format version, finishes restores, removes dead trainers, and creates and drops tables in the
// shards.
func (s *Scheduler) reconcile(ctx context.Context) error {
	if _, _, err := s.leading(); err != nil {
		return nil // another member's work
	}
	defer s.stats.round(loopReconcile)()
	m := s.view.Map()
	if m == nil || m.Cluster == "" {
		cluster := s.opts.Identity.Identity().Cluster
		c := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Init{Init: &rowraftv1.MetaInit{ClusterId: string(
			cluster)}}}
		if _, err := s.propose(ctx, c); err != nil {
			return fmt.Errorf("name the cluster: %w", err)
		}
		m = s.view.Map()
	}
	if m == nil {
		return nil
	}
	if len(m.Shards) == 0 {
		// Placing the shards on the first servers that register would leave the others empty, and every replica would move
		// soon.
		if len(m.Servers()) < s.opts.Servers {
			return nil
		}
		if wait, err := s.awaitVersions(ctx, m); err != nil || wait {
			return err
		}
		return s.makeShards(ctx, s.view.Map())
	}
	ctx, cancel := context.WithTimeout(ctx, repairTimeout)
	defer cancel()
	if _, err := s.raiseVersion(ctx, m); err != nil {
		return err
	}
	if err := s.checkpoints.Reconcile(ctx, m); err != nil {
		return err
	}
	// Both run even if one fails: a shard without a leader must not stop the drops in the others.
	return errors.Join(s.tables.ensure(ctx, m.Tables), s.tables.ensureDrops(ctx))
}

func (s *Scheduler) makeShards(ctx context.Context, m *clustermap.Map) error {
	servers := m.Servers()
	shards := placement.NewShards(servers, s.opts.Shards, uuid.NewString)
	if n := len(shards[0].Replicas); n < placement.ReplicasPerShard {
		s.logger.Warn(fmt.Sprintf("DATA IS NOT SAFE: %d replica(s) per shard, because the cluster starts with %d server(s). "+
			"With fewer than 3 a machine that dies stops training, and a disk that dies loses rows.", n, len(servers)),
			"replicas", n, "servers", len(servers))
	}
	c := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateShards{CreateShards: &rowraftv1.MetaCreateShards{
		Shards: meta.ShardsToProto(shards), Slots: rpc.SlotsToProto(clustermap.EvenSlots(len(shards), s.opts.Slots)),
	}}}
	if _, err := s.propose(ctx, c); err != nil {
		return fmt.Errorf("make the shards: %w", err)
	}
	s.logger.Info("Cluster is successfully initialized.", "cluster", m.Cluster, "servers", len(servers), "shards",
		len(shards), "replicas", len(shards[0].Replicas))
	return nil
}
