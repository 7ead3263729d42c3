package scheduler

import (
	"context"
	"slices"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// settleParts asks all shards how far workers that left were in their parts, and makes the parts available to others.
// The positions are final: every shard has the present generation, and each shard's share of a push names its worker,
// so the shards refuse all later pushes of those workers. For a run without training workers, settleParts asks before
// the shards forget the run.
func (s *Scheduler) settleParts(ctx context.Context, r *rowraftv1.MetaRun) error {
	if s.generations.of(r.GetRun()).number != r.GetGeneration() || !unsettled(r) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, repairTimeout)
	defer cancel()
	shards, err := s.generations.positions(ctx, r.GetRun())
	if err != nil {
		return err
	}
	return s.proposeCommand(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_SettleParts{SettleParts: &rowraftv1.MetaSettleParts{
		Job: r.GetJob(), Run: r.GetRun(), Parts: settled(r.GetData(), shards),
	}}})
}

func unsettled(r *rowraftv1.MetaRun) bool {
	return slices.ContainsFunc(r.GetData().GetOpen(), func(p *rowraftv1.JobPart) bool { return p.GetUnsettled() != 0 })
}

// shardRead is what one shard knows of the positions in a run's data.
type shardRead struct {
	full bool // the shard may have forgotten some positions
	read map[rowraft.DataPart]uint64
}

// settled returns the position of each unsettled part. A batch counts as applied if at least one shard has applied its
// share.
func settled(d *rowraftv1.JobData, shards []shardRead) (out []*rowraftv1.PartSettled) {
	for _, p := range d.GetOpen() {
		if p.GetUnsettled() == 0 {
			continue
		}
		at := &rowraftv1.PartSettled{Epoch: p.GetEpoch(), Part: p.GetPart(), Incarnation: p.GetUnsettled()}
		for _, s := range shards {
			acknowledged, applied := rowraft.ReadParts(p.GetEpoch()*parts(d)+p.GetPart(), p.GetReading())
			at.Acknowledged = max(at.Acknowledged, s.read[acknowledged])
			offset, here := s.read[applied]
			at.Applied = max(at.Applied, offset)
			at.Unknown = at.Unknown || s.full && !here
		}
		out = append(out, at)
	}
	return out
}

// positionsOf asks every shard for the positions in a run's data.
func (s *Scheduler) positionsOf(ctx context.Context, run []byte) (out []shardRead, err error) {
	m := s.view.Map()
	if m == nil || len(m.Shards) == 0 {
		return nil, rowraft.Errorf(rowraft.CodeStarting, "the cluster has no shards yet")
	}
	var mu sync.Mutex
	err = s.eachShard(ctx, func(ctx context.Context, shard rowraft.ShardID, admin rowraftv1.ReplicasClient) error {
		one := shardRead{read: make(map[rowraft.DataPart]uint64)}
		st, err := admin.JobState(ctx, &rowraftv1.JobStateRequest{Shard: uint32(shard), Job: run})
		if err = rpc.FromStatus(err); err != nil && rowraft.CodeOf(err) != rowraft.CodeNotFound {
			return err
		}
		for _, p := range st.GetPositions() {
			one.read[rowraft.DataPart(p.GetPart())] = p.GetOffset()
		}
		one.full = err != nil || len(st.GetPositions()) >= checkpoint.JobPositions
		mu.Lock()
		defer mu.Unlock()
		out = append(out, one)
		return nil
	})
	return out, err
}
