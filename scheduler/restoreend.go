package scheduler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// finishRestore closes a decided restore in all shards and forgets it. It may be
// repeated, by any leader of the metadata group.
func (s *Scheduler) finishRestore(ctx context.Context, r *rowraftv1.MetaRestore) ([]*rowraftv1.RestoredShard, error) {
	m := s.view.Map()
	if m == nil || len(m.Shards) != len(r.GetShards()) {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "a restore into %d shards, the map has other ones", len(r.GetShards()))
	}
	out := make([]*rowraftv1.RestoredShard, len(m.Shards))
	var g errgroup.Group
	g.SetLimit(maxEnsureCalls)
	for i, sh := range m.Shards {
		want := r.GetShards()[i]
		g.Go(func() error {
			reply, err := s.restoreStep(ctx, sh, &rowraftv1.RestorePartRequest{Restore: r.GetId(), Step: &rowraftv1.RestorePartRequest_Close{
				Close: &rowraftv1.RestorePartClose{TableEpoch: r.GetTableEpoch(), Chunks: want.GetChunks(), Rows: want.GetRows(), Digest: want.GetDigest()},
			}})
			if err == nil && reply.GetTableEpoch() != r.GetTableEpoch() {
				err = rowraft.Errorf(rowraft.CodeInternal, "shard %d is of table epoch %d after its restore to %d", sh.ID, reply.GetTableEpoch(), r.GetTableEpoch())
			}
			out[i] = &rowraftv1.RestoredShard{Shard: uint32(sh.ID), Rows: reply.GetLiveRows(), Digest: reply.GetDigest()}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	_, err := s.propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndRestore{EndRestore: &rowraftv1.MetaEndRestore{Id: r.GetId(), Closed: true}}})
	s.noteEnded(r.GetId())
	return out, err
}

// dropStages gives a restore up, unless it is decided, and lets the shards forget it.
func (s *Scheduler) dropStages(m *clustermap.Map, id []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), dropPatience)
	defer cancel()
	// Through the log: what an earlier leader decided is applied here then, and what
	// is not decided never will be.
	if _, err := s.propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndRestore{EndRestore: &rowraftv1.MetaEndRestore{Id: id}}}); err != nil {
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
			if _, err := s.restoreStep(ctx, sh, &rowraftv1.RestorePartRequest{Restore: id, Step: &rowraftv1.RestorePartRequest_Drop{Drop: &rowraftv1.RestorePartDrop{}}}); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("drop what was staged: %w", err))
			}
		})
	}
	wg.Wait()
	if len(errs) == 0 {
		s.noteEnded(id)
	}
	return errors.Join(errs...)
}

// dropOther ends the restore whose stage stands where that of req should begin:
// one that nobody goes on with, or an earlier leader's.
func (s *Scheduler) dropOther(ctx context.Context, m *clustermap.Map, conn *grpc.ClientConn, req *rowraftv1.RestorePartRequest) error {
	look := &rowraftv1.RestorePartRequest{Shard: req.GetShard(), Restore: req.GetRestore(), Step: &rowraftv1.RestorePartRequest_Look{Look: &rowraftv1.RestorePartLook{}}}
	reply, err := restoreCall(ctx, conn, look)
	if err != nil || len(reply.GetOther()) == 0 {
		return err
	}
	s.logger.Info("dropping what another restore had staged", "shard", req.GetShard())
	return s.dropStages(m, reply.GetOther())
}

// noteEnded remembers a restore whose stages are gone, so that heartbeats from
// before do not bring it up again.
func (s *Scheduler) noteEnded(id []byte) {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	s.soft.ended = append(s.soft.ended, id)
}

// reconcileRestore finishes a restore that is decided, and drops the stages of one
// that nobody goes on with.
func (s *Scheduler) reconcileRestore(ctx context.Context, m *clustermap.Map) error {
	r, begun, stray := s.machine.pendingRestore(), s.machine.begunRestore(), s.strayStages()
	if r == nil && begun == nil && len(stray) == 0 || !s.checkpoints.busy.TryLock() {
		return nil // or an operation of this leader is at it
	}
	defer s.checkpoints.busy.Unlock()
	if r = s.machine.pendingRestore(); r != nil {
		_, err := s.finishRestore(ctx, r)
		if err != nil {
			return fmt.Errorf("finish a restore: %w", err)
		}
		s.logger.Info("finished a restore that an earlier call had begun", "epoch", r.GetTableEpoch())
		return nil
	}
	for _, id := range stray {
		if err := s.dropStages(m, id); err != nil {
			return err
		}
		s.logger.Info("dropped what a restore had staged that nobody went on with")
	}
	// One that no shard has a stage of: no table can be dropped as long as it may be decided.
	if begun = s.machine.begunRestore(); begun != nil {
		end := &rowraftv1.MetaCommand_EndRestore{EndRestore: &rowraftv1.MetaEndRestore{Id: begun}}
		if _, err := s.propose(ctx, &rowraftv1.MetaCommand{Command: end}); err != nil {
			return fmt.Errorf("give up a restore: %w", err)
		}
		s.logger.Info("gave up a restore that nobody went on with")
	}
	return nil
}

// strayStages lists the restores that servers report to have staged.
func (s *Scheduler) strayStages() (ids [][]byte) {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	for _, b := range s.soft.beats {
		for _, r := range b.replicas {
			if id := r.GetStagedRestore(); len(id) == 16 && !containsBytes(ids, id) && !containsBytes(s.soft.ended, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

func containsBytes(list [][]byte, b []byte) bool {
	for _, o := range list {
		if bytes.Equal(o, b) {
			return true
		}
	}
	return false
}
