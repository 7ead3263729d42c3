package scheduler

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// settleParts asks the shard that keeps a run's positions how far workers that have gone
// were in their parts, and opens those to others. The present generation is in that shard, so
// they push nothing more, and the positions are final. Of a run that nobody trains in it asks before
// the shards forget it.
func (s *Scheduler) settleParts(ctx context.Context, r *rowraftv1.MetaRun) error {
	here := s.generations.of(r.GetRun()).number == r.GetGeneration() || len(trainingRanks(r)) == 0
	if !here || !unsettled(r) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, repairTimeout)
	defer cancel()
	read, full, err := s.generations.positions(ctx, r.GetRun())
	if err != nil {
		return err
	}
	return s.proposeCommand(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_SettleParts{SettleParts: &rowraftv1.MetaSettleParts{
		Job: r.GetJob(), Run: r.GetRun(), Parts: settled(r.GetData(), read, full),
	}}})
}

func unsettled(r *rowraftv1.MetaRun) bool {
	return slices.ContainsFunc(r.GetData().GetOpen(), func(p *rowraftv1.JobPart) bool { return p.GetUnsettled() != 0 })
}

// settled says of each unsettled part how far it was read. full: the shard may have
// forgotten some.
func settled(d *rowraftv1.JobData, read map[rowraft.DataPart]uint64, full bool) (out []*rowraftv1.PartSettled) {
	for _, p := range d.GetOpen() {
		if p.GetUnsettled() == 0 {
			continue
		}
		at := &rowraftv1.PartSettled{Epoch: p.GetEpoch(), Part: p.GetPart(), Incarnation: p.GetUnsettled(), Unknown: full}
		for _, reading := range []uint64{p.GetReading(), 0} { // a worker of an earlier binary tells none apart
			acknowledged, applied := rowraft.ReadParts(p.GetEpoch()*parts(d)+p.GetPart(), reading)
			at.Acknowledged, at.Applied = max(at.Acknowledged, read[acknowledged]), max(at.Applied, read[applied])
			if _, known := read[applied]; known {
				at.Unknown = false
			}
		}
		out = append(out, at)
	}
	return out
}

// positionsOf asks the shard that has the clocks of a run how far its data was read.
func (s *Scheduler) positionsOf(ctx context.Context, run []byte) (read map[rowraft.DataPart]uint64, full bool, err error) {
	m := s.view.Map()
	if m == nil || len(m.Shards) == 0 {
		return nil, false, rowraft.Errorf(rowraft.CodeStarting, "the cluster has no shards yet")
	}
	home := m.Shards[m.ShardOf(clustermap.JobSlot(rowraft.JobID(run)))]
	read = make(map[rowraft.DataPart]uint64)
	err = s.onLeader(ctx, home, repairTimeout, func(conn *grpc.ClientConn) error {
		st, err := rowraftv1.NewAdminClient(conn).JobState(ctx, &rowraftv1.JobStateRequest{Shard: uint32(home.ID), Job: run})
		if err = rpc.FromStatus(err); rowraft.CodeOf(err) == rowraft.CodeNotFound {
			full = true
			return nil
		} else if err != nil {
			return err
		}
		for _, p := range st.GetPositions() {
			read[rowraft.DataPart(p.GetPart())] = p.GetOffset()
		}
		full = len(st.GetPositions()) >= checkpoint.JobPositions
		return nil
	})
	return read, full, err
}
