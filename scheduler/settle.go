package scheduler

import (
	"context"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// settleParts asks all shards how far workers that left were in their parts, and makes the parts available to others.
// The positions are final: every shard has the present generation, and each shard's share of a push names its worker,
// so the shards refuse all later pushes of those workers. For a run without training workers, settleParts asks before
// the shards forget the run.
func (s *Scheduler) settleParts(ctx context.Context, r *rowraftv1.MetaRun) error {
	if s.generations.of(r.GetRun()).number != r.GetGeneration() || !meta.HasUnsettled(r) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, repairTimeout)
	defer cancel()
	shards, err := s.generations.positions(ctx, r.GetRun())
	if err != nil {
		return err
	}
	return s.proposeCommand(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_SettleParts{SettleParts: &rowraftv1.MetaSettleParts{
		Job: r.GetJob(), Run: r.GetRun(), Parts: meta.SettledParts(r.GetData(), shards),
	}}})
}

// positionsOf asks every shard for the positions in a run's data.
func (s *Scheduler) positionsOf(ctx context.Context, run []byte) (out []meta.ShardPositions, err error) {
	m := s.view.Map()
	if m == nil || len(m.Shards) == 0 {
		return nil, rowraft.Errorf(rowraft.CodeStarting, "the cluster has no shards yet")
	}
	var mu sync.Mutex
	err = s.eachShard(ctx, func(ctx context.Context, shard rowraft.ShardID, admin rowraftv1.ReplicasClient) error {
		one := meta.ShardPositions{Read: make(map[rowraft.DataPart]uint64)}
		st, err := admin.JobState(ctx, &rowraftv1.JobStateRequest{Shard: uint32(shard), Job: run})
		if err = rpc.FromStatus(err); err != nil && rowraft.CodeOf(err) != rowraft.CodeNotFound {
			return err
		}
		for _, p := range st.GetPositions() {
			one.Read[rowraft.DataPart(p.GetPart())] = p.GetOffset()
		}
		one.Full = err != nil || len(st.GetPositions()) >= checkpoint.JobPositions
		mu.Lock()
		defer mu.Unlock()
		out = append(out, one)
		return nil
	})
	return out, err
}
