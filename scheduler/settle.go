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

// settleParts asks all shards how far workers that have gone were in their parts, and opens
// those to others. The present generation is in every shard, and each part of a push names
// its worker, so they push nothing more anywhere, and the positions are final. Of a run that
// nobody trains in it asks before the shards forget it.
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

// shardRead is what one shard knows of how far a run's data was read.
type shardRead struct {
	full bool // it may have forgotten some
	read map[rowraft.DataPart]uint64
}

// settled says of each unsettled part how far it was read. A batch counts as applied if at
// least one shard has applied a part of it.
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

// positionsOf asks every shard how far a run's data was read.
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
