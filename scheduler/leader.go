package scheduler

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/checkpoints"
)

// leader is the Scheduler as the services use it while this member leads the metadata group.
type leader struct{ s *Scheduler }

func (l leader) Leading() (rowraft.Term, error) {
	_, term, err := l.s.leading()
	return term, err
}

func (l leader) InSync(ctx context.Context) error {
	_, err := l.s.leadingInSync(ctx)
	return err
}

func (l leader) Propose(ctx context.Context, c *rowraftv1.MetaCommand) error {
	return l.s.proposeCommand(ctx, c)
}

func (l leader) ProposeResult(ctx context.Context, c *rowraftv1.MetaCommand) (any, error) {
	return l.s.propose(ctx, c)
}

func (l leader) LeadsFor() time.Duration { return l.s.soft.leadsFor() }

func (l leader) CheckPause() { l.s.feelPulse() }

func (l leader) OnLeader(ctx context.Context, sh clustermap.Shard, patience time.Duration, fn func(*grpc.ClientConn) error) error {
	return l.s.onLeader(ctx, sh, patience, fn)
}

func (l leader) Staged() (out []checkpoints.StagedRestore) {
	l.s.soft.mu.Lock()
	defer l.s.soft.mu.Unlock()
	for _, b := range l.s.soft.beats {
		for _, r := range b.replicas {
			if id := r.GetStagedRestore(); len(id) > 0 {
				out = append(out, checkpoints.StagedRestore{ID: id, At: b.at})
			}
		}
	}
	return out
}

func (l leader) Now() time.Time { return l.s.soft.now() }
