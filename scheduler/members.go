package scheduler

import (
	"context"
	"math"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// eachShard calls fn for the leader of every shard, several at a time.
func (s *Scheduler) eachShard(ctx context.Context, fn func(ctx context.Context, shard rowraft.ShardID, admin rowraftv1.ReplicasClient) error) error {
	m := s.view.Map()
	if m == nil || len(m.Shards) == 0 {
		return rowraft.Errorf(rowraft.CodeStarting, "the cluster has no shards yet")
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxEnsureCalls)
	for _, sh := range m.Shards {
		g.Go(func() error {
			return s.onLeader(ctx, sh, repairTimeout, func(conn *grpc.ClientConn) error {
				return rpc.FromStatus(fn(ctx, sh.ID, rowraftv1.NewReplicasClient(conn)))
			})
		})
	}
	return g.Wait()
}

// noWorker is the only member of a generation that has none: an incarnation that no worker
// has. With it a shard refuses what the workers of the run before still push, and keeps
// their positions, until these are settled.
const noWorker = math.MaxUint64

// driveMembers makes the present generation of a run known to every shard; one without
// members only to those that know the run. Its first
// step is beyond any that a shard has closed or begun, and is logged before the first
// shard is told: whoever leads next drives the same.
func (s *Scheduler) driveMembers(ctx context.Context, r *rowraftv1.MetaRun) (firstStep uint64, err error) {
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
		if training(w) {
			q.Members = append(q.Members, &rowraftv1.JobMember{Rank: w.GetRank(), Incarnation: w.GetIncarnation()})
		}
	}
	q.Quorum = quorumOf(r.GetQuorum(), len(q.Members))
	none := len(q.Members) == 0
	if none {
		q.Members = []*rowraftv1.JobMember{{Incarnation: noWorker}}
	}
	return r.GetFirstStep(), s.eachShard(ctx, func(ctx context.Context, shard rowraft.ShardID, admin rowraftv1.ReplicasClient) error {
		if none {
			_, err := admin.JobState(ctx, &rowraftv1.JobStateRequest{Shard: uint32(shard), Job: q.Job})
			if rowraft.CodeOf(rpc.FromStatus(err)) == rowraft.CodeNotFound {
				return nil
			}
		}
		_, err := admin.EnsureJob(ctx, &rowraftv1.EnsureJobRequest{
			Shard: uint32(shard), TableEpoch: uint64(m.Epoch), Job: q.Job, Generation: q.Generation, FirstStep: q.FirstStep, Members: q.Members, Quorum: q.Quorum, DeadlineNs: q.DeadlineNs,
		})
		return err
	})
}

// startGeneration logs the first step of a run's present generation and returns the run
// with the one that counts.
func (s *Scheduler) startGeneration(ctx context.Context, r *rowraftv1.MetaRun, first uint64) (*rowraftv1.MetaRun, error) {
	return proposeFor[*rowraftv1.MetaRun](ctx, s, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_StartGeneration{StartGeneration: &rowraftv1.MetaStartGeneration{
		Job: r.GetJob(), Run: r.GetRun(), Generation: r.GetGeneration(), FirstStep: first,
	}}})
}

// quorumOf is the number of members that are at least that share of n; 0: all.
func quorumOf(share float64, n int) uint32 {
	if share == 0 || share == 1 {
		return 0
	}
	return uint32(max(1, min(n, int(math.Ceil(share*float64(n)-1e-9)))))
}

// beyondOpenSteps is a step that no worker of a run has pushed to yet.
func (s *Scheduler) beyondOpenSteps(ctx context.Context, r *rowraftv1.MetaRun) (uint64, error) {
	first := max(r.GetFirstStep(), 1)
	var mu sync.Mutex
	err := s.eachShard(ctx, func(ctx context.Context, shard rowraft.ShardID, admin rowraftv1.ReplicasClient) error {
		st, err := admin.JobState(ctx, &rowraftv1.JobStateRequest{Shard: uint32(shard), Job: r.GetRun()})
		if err = rpc.FromStatus(err); rowraft.CodeOf(err) == rowraft.CodeNotFound {
			return nil // the shard has not heard of it
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

// restMembers has every shard forget a run that nobody trains in, after it has logged
// with which step it goes on: so who comes back finds neither steps nor clocks of those
// who are gone, and a run that nobody goes on with holds nothing.
func (s *Scheduler) restMembers(ctx context.Context, r *rowraftv1.MetaRun) error {
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

// endMembers has every shard forget a run.
func (s *Scheduler) endMembers(ctx context.Context, run []byte) error { return s.endUpTo(ctx, run, 0) }

// endUpTo has every shard forget a run, unless it is past a generation; 0: any.
func (s *Scheduler) endUpTo(ctx context.Context, run []byte, generation uint64) error {
	epoch := uint64(0)
	if m := s.view.Map(); m != nil {
		epoch = uint64(m.Epoch)
	}
	return s.eachShard(ctx, func(ctx context.Context, shard rowraft.ShardID, admin rowraftv1.ReplicasClient) error {
		_, err := admin.EndJob(ctx, &rowraftv1.EndJobRequest{Shard: uint32(shard), TableEpoch: epoch, Job: run, Generation: generation})
		return err
	})
}
