package checkpoints

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// finishRestore closes a decided restore in all shards and then logs its end. Any leader of the scheduler may call
// it, also several times.
func (c *Service) finishRestore(ctx context.Context, r *rowraftv1.MetaRestore) ([]*rowraftv1.RestoredShard, error) {
	m := c.view.Map()
	if m == nil || len(m.Shards) != len(r.GetShards()) {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "a restore into %d shards, the map has other ones",
			len(r.GetShards()))
	}
	out := make([]*rowraftv1.RestoredShard, len(m.Shards))
	var g errgroup.Group
	g.SetLimit(maxShardCalls)
	for i, sh := range m.Shards {
		want := r.GetShards()[i]
		g.Go(func() error {
			reply, err := c.restoreStep(ctx, sh, &rowraftv1.RestoreShardRequest{Restore: r.GetId(),
				Step: &rowraftv1.RestoreShardRequest_Close{
					Close: &rowraftv1.RestoreShardClose{TableEpoch: r.GetTableEpoch(), Chunks: want.GetChunks(), Rows: want.GetRows(),
						Digest: want.GetDigest()},
				}})
			if err == nil {
				err = bringsAll(sh.ID, r, reply)
			}
			if err == nil && reply.GetTableEpoch() != r.GetTableEpoch() {
				err = rowraft.Errorf(rowraft.CodeInternal, "shard %d is of table epoch %d after its restore to %d", sh.ID,
					reply.GetTableEpoch(), r.GetTableEpoch())
			}
			out[i] = &rowraftv1.RestoredShard{Shard: uint32(sh.ID), Rows: reply.GetLiveRows(), Digest: reply.GetDigest()}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	// After every shard has closed: when the command is applied, no leader looks for the restore any more.
	err := c.lead.Propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndRestore{EndRestore: &rowraftv1.MetaEndRestore{Id: r.GetId(),
			Closed: true}}})
	c.noteEnded(r.GetId())
	return out, err
}

// bringsAll returns an error if a shard lacks a table of a restore after the close.
func bringsAll(shard rowraft.ShardID, r *rowraftv1.MetaRestore, reply *rowraftv1.RestoreShardReply) error {
	for _, t := range r.GetTables() {
		if !slices.ContainsFunc(reply.GetTables(),
			func(have *rowraftv1.ShardTable) bool { return have.GetId() == t.GetId() }) {
			return rowraft.Errorf(rowraft.CodeInternal, "shard %d has no table %s after its restore", shard, t.GetName())
		}
	}
	return nil
}

// dropStages gives up a restore that is not decided, and lets the shards drop its stages.
func (c *Service) dropStages(m *clustermap.Map, id []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), dropPatience)
	defer cancel()
	// Log the end before the shards drop anything. When the entry is applied, this leader knows every decision of
	// earlier leaders, and a restore that is not decided by then never will be.
	if err := c.lead.Propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndRestore{
			EndRestore: &rowraftv1.MetaEndRestore{Id: id}}}); err != nil {
		if rowraft.CodeOf(err) == rowraft.CodeAlreadyExists {
			return rowraft.Errorf(rowraft.CodeInternal, "the restore is decided all the same, and the scheduler finishes it")
		}
		return fmt.Errorf("what was staged stays until the scheduler drops it: %w", err)
	}
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for _, sh := range m.Shards {
		wg.Go(func() {
			if _, err := c.restoreStep(ctx, sh, &rowraftv1.RestoreShardRequest{Restore: id,
				Step: &rowraftv1.RestoreShardRequest_Drop{Drop: &rowraftv1.RestoreShardDrop{}}}); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("drop what was staged: %w", err))
			}
		})
	}
	wg.Wait()
	if len(errs) == 0 {
		c.noteEnded(id)
	}
	return errors.Join(errs...)
}

// dropOther ends the restore whose stage prevents that of req: an abandoned one, or one of an earlier leader.
func (c *Service) dropOther(ctx context.Context, m *clustermap.Map, conn *grpc.ClientConn,
	req *rowraftv1.RestoreShardRequest) error {
	look := &rowraftv1.RestoreShardRequest{Shard: req.GetShard(), Restore: req.GetRestore(),
		Step: &rowraftv1.RestoreShardRequest_Look{Look: &rowraftv1.RestoreShardLook{}}}
	reply, err := restoreCall(ctx, conn, look)
	if err != nil || len(reply.GetOther()) == 0 {
		return err
	}
	c.logger.Info("dropping what another restore had staged", "shard", req.GetShard())
	return c.dropStages(m, reply.GetOther())
}

// strayGrace is the time after the drop of a stage in which late heartbeats may still report it.
const strayGrace = 2 * time.Second

// noteEnded records a restore whose stages are dropped or closed, so that late heartbeats do not bring it up again.
func (c *Service) noteEnded(id []byte) {
	if len(id) != 16 {
		return
	}
	now := c.lead.Now()
	c.ended.mu.Lock()
	defer c.ended.mu.Unlock()
	if c.ended.at == nil {
		c.ended.at = make(map[[16]byte]time.Time)
	}
	maps.DeleteFunc(c.ended.at, func(_ [16]byte, at time.Time) bool { return now.Sub(at) > 2*strayGrace })
	c.ended.at[[16]byte(id)] = now
}

// Reconcile finishes a decided restore and drops the stages of abandoned ones. A shard with a stage takes no
// snapshot, so its log grows.
func (c *Service) Reconcile(ctx context.Context, m *clustermap.Map) error {
	// Read the stages first: the stage of a restore that begins in between must not look abandoned.
	staged := c.reportedStages()
	r, begun := c.machine.PendingRestore(), c.machine.BegunRestore()
	for _, id := range staged {
		if bytes.Equal(id, begun) || bytes.Equal(id, r.GetId()) {
			continue
		}
		// No entry can decide this restore any more, so no running call needs the stage. A late call created it after
		// the drop of its restore.
		if err := c.dropStages(m, id); err != nil {
			return err
		}
		c.logger.Info("dropped what a restore had staged that is over")
	}
	running := &task{what: "the end of a restore"}
	if r == nil && begun == nil || c.ops.try(running, restores) != nil {
		return nil // or an operation of this leader works on it
	}
	defer c.ops.leave(running)
	if r = c.machine.PendingRestore(); r != nil {
		_, err := c.finishRestore(ctx, r)
		if err != nil {
			return fmt.Errorf("finish a restore: %w", err)
		}
		c.logger.Info("finished a restore that an earlier call had begun", "epoch", r.GetTableEpoch())
		return nil
	}
	return c.giveUpBegun(ctx, m, staged)
}

// giveUpBegun ends a restore that was begun and not decided. The call that began it has ended.
func (c *Service) giveUpBegun(ctx context.Context, m *clustermap.Map, staged [][]byte) error {
	begun := c.machine.BegunRestore()
	switch {
	case begun == nil:
		return nil
	case slices.ContainsFunc(staged, func(id []byte) bool { return bytes.Equal(id, begun) }):
		if err := c.dropStages(m, begun); err != nil {
			return err
		}
		c.logger.Info("dropped the stages of an abandoned restore")
		return nil
	}
	// No shard has a stage of this restore. End it, because no table can be dropped while it may be decided.
	end := &rowraftv1.MetaCommand_EndRestore{EndRestore: &rowraftv1.MetaEndRestore{Id: begun}}
	if err := c.lead.Propose(ctx, &rowraftv1.MetaCommand{Command: end}); err != nil {
		return fmt.Errorf("give up a restore: %w", err)
	}
	c.logger.Info("ended an abandoned restore")
	return nil
}

// reportedStages returns the restores that servers report as staged.
func (c *Service) reportedStages() (ids [][]byte) {
	staged := c.lead.Staged()
	c.ended.mu.Lock()
	defer c.ended.mu.Unlock()
	for _, r := range staged {
		if len(r.ID) != 16 || slices.ContainsFunc(ids, func(o []byte) bool { return bytes.Equal(o, r.ID) }) {
			continue
		}
		if ended, ok := c.ended.at[[16]byte(r.ID)]; ok && r.At.Before(ended.Add(strayGrace)) {
			continue
		}
		ids = append(ids, r.ID)
	}
	return ids
}
