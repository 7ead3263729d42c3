package jobs

import (
	"context"
	"math"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// maxShardCalls bounds the shards that are called concurrently.
const maxShardCalls = 16

// shards calls the shards for the runs. It has no state.
type shards struct{ env }

// each calls fn for the leader of every shard, for maxShardCalls shards concurrently.
func (s shards) each(ctx context.Context,
	fn func(ctx context.Context, shard rowraft.ShardID, admin rowraftv1.ReplicasClient) error) error {
	m := s.view.Map()
	if m == nil || len(m.Shards) == 0 {
		return rowraft.Errorf(rowraft.CodeStarting, "the cluster has no shards yet")
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxShardCalls)
	for _, sh := range m.Shards {
		g.Go(func() error {
			return s.lead.OnLeader(ctx, sh, shardTimeout, func(conn *grpc.ClientConn) error {
				return rpc.FromStatus(fn(ctx, sh.ID, rowraftv1.NewReplicasClient(conn)))
			})
		})
	}
	return g.Wait()
}

// noWorker is an incarnation that no worker has. It is the only member of a generation without workers. With it, a
// shard refuses late pushes of the previous members and keeps their positions until the scheduler has read them.
const noWorker = math.MaxUint64

// drive sends the current generation of a run to every shard. A generation without members goes only to the
// shards that know the run.
//
// The first step of the generation is greater than every step that a shard has closed or begun. It is logged before the
// first shard receives it, so that the next leader sends the same step.
func (s shards) drive(ctx context.Context, r *rowraftv1.MetaRun) (firstStep uint64, err error) {
	// The step is read from the shards only once per generation. Later, workers of this generation may have pushed, and
	// the highest step would be one of theirs.
	if r.GetStarted() != r.GetGeneration() {
		first, err := s.beyondOpenSteps(ctx, r)
		if err != nil {
			return 0, err
		}
		if r, err = s.startGeneration(ctx, r, first); err != nil {
			return 0, err
		}
	}
	m := s.view.Map()
	q := &rowraftv1.EnsureJobRequest{
		Job: r.GetRun(), Generation: r.GetGeneration(), FirstStep: r.GetFirstStep(), DeadlineNs: r.GetDeadlineNs(),
	}
	for _, w := range r.GetMembers() {
		if meta.IsTraining(w) {
			q.Members = append(q.Members, &rowraftv1.JobMember{Rank: w.GetRank(), Incarnation: w.GetIncarnation()})
		}
	}
	q.Quorum = quorumOf(r.GetQuorum(), len(q.Members))
	none := len(q.Members) == 0
	if none {
		q.Members = []*rowraftv1.JobMember{{Incarnation: noWorker}}
	}
	return r.GetFirstStep(), s.each(ctx, func(ctx context.Context, shard rowraft.ShardID,
		admin rowraftv1.ReplicasClient) error {
		if none {
			_, err := admin.JobState(ctx, &rowraftv1.JobStateRequest{Shard: uint32(shard), Job: q.Job})
			if rowraft.CodeOf(rpc.FromStatus(err)) == rowraft.CodeNotFound {
				return nil
			}
		}
		_, err := admin.EnsureJob(ctx, &rowraftv1.EnsureJobRequest{
			Shard: uint32(shard), TableEpoch: uint64(m.Epoch), Job: q.Job, Generation: q.Generation, FirstStep: q.FirstStep,
			Members: q.Members, Quorum: q.Quorum, DeadlineNs: q.DeadlineNs,
		})
		return err
	})
}

// startGeneration logs the first step of the run's current generation. It returns the run with the step that was logged
// first, which may be that of an earlier leader.
func (s shards) startGeneration(ctx context.Context, r *rowraftv1.MetaRun, first uint64) (*rowraftv1.MetaRun, error) {
	return resultOf[*rowraftv1.MetaRun](s.lead.ProposeResult(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_StartGeneration{
			StartGeneration: &rowraftv1.MetaStartGeneration{
				Job: r.GetJob(), Run: r.GetRun(), Generation: r.GetGeneration(), FirstStep: first,
			}}}))
}

// quorumOf returns the smallest number of members that is at least share of n. 0 means all.
func quorumOf(share float64, n int) uint32 {
	if share == 0 || share == 1 {
		return 0
	}
	// 0.07 of 100 is 7.000000000000001 in floating point, which must not become 8.
	return uint32(max(1, min(n, int(math.Ceil(share*float64(n)-1e-9)))))
}

// beyondOpenSteps returns a step to which no worker of the run has pushed yet.
func (s shards) beyondOpenSteps(ctx context.Context, r *rowraftv1.MetaRun) (uint64, error) {
	first := max(r.GetFirstStep(), 1)
	var mu sync.Mutex
	err := s.each(ctx, func(ctx context.Context, shard rowraft.ShardID, admin rowraftv1.ReplicasClient) error {
		st, err := admin.JobState(ctx, &rowraftv1.JobStateRequest{Shard: uint32(shard), Job: r.GetRun()})
		if err = rpc.FromStatus(err); rowraft.CodeOf(err) == rowraft.CodeNotFound {
			return nil // the shard does not know the run
		} else if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		first = max(first, st.GetLastClosed()+1, st.GetHighestOpen()+1)
		return nil
	})
	return first, err
}

// rest lets every shard forget a run in which no worker trains. It first logs the step at which the run can
// resume. So a worker that returns finds no steps and no clocks of earlier workers, and an abandoned run uses no memory
// in the shards.
func (s shards) rest(ctx context.Context, r *rowraftv1.MetaRun) error {
	if r.GetStarted() != r.GetGeneration() {
		first, err := s.beyondOpenSteps(ctx, r)
		if err != nil {
			return err
		}
		if _, err := s.startGeneration(ctx, r, first); err != nil {
			return err
		}
	}
	return s.endUpTo(ctx, r.GetRun(), r.GetGeneration())
}

// end lets every shard forget a run.
func (s shards) end(ctx context.Context, run []byte) error { return s.endUpTo(ctx, run, 0) }

// endUpTo lets every shard forget a run if the shard's generation is at most generation; 0: any generation.
func (s shards) endUpTo(ctx context.Context, run []byte, generation uint64) error {
	epoch := uint64(0)
	if m := s.view.Map(); m != nil {
		epoch = uint64(m.Epoch)
	}
	return s.each(ctx, func(ctx context.Context, shard rowraft.ShardID, admin rowraftv1.ReplicasClient) error {
		_, err := admin.EndJob(ctx, &rowraftv1.EndJobRequest{Shard: uint32(shard), TableEpoch: epoch, Job: run,
			Generation: generation})
		return err
	})
}

// positions asks every shard for the positions in a run's data.
func (s shards) positions(ctx context.Context, run []byte) (out []meta.ShardPositions, err error) {
	var mu sync.Mutex
	err = s.each(ctx, func(ctx context.Context, shard rowraft.ShardID, admin rowraftv1.ReplicasClient) error {
		one := meta.ShardPositions{Read: make(map[rowraft.PositionID]uint64)}
		st, err := admin.JobState(ctx, &rowraftv1.JobStateRequest{Shard: uint32(shard), Job: run})
		if err = rpc.FromStatus(err); err != nil && rowraft.CodeOf(err) != rowraft.CodeNotFound {
			return err
		}
		for _, p := range st.GetPositions() {
			one.Read[rowraft.PositionID(p.GetId())] = p.GetOffset()
		}
		// A shard that does not know the run may have forgotten it, so its silence about a part proves nothing.
		one.Full = err != nil || len(st.GetPositions()) >= checkpoint.JobPositions
		mu.Lock()
		defer mu.Unlock()
		out = append(out, one)
		return nil
	})
	return out, err
}
