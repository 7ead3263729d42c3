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

// leader is the Raft group of the scheduler as the services use it while this member leads.
type leader struct{ g *group }

func (l leader) Leading() (rowraft.Term, error) {
	_, term, err := l.g.leading()
	return term, err
}

func (l leader) InSync(ctx context.Context) error {
	_, err := l.g.leadingInSync(ctx)
	return err
}

func (l leader) Propose(ctx context.Context, c *rowraftv1.MetaCommand) error {
	_, err := l.g.propose(ctx, c)
	return err
}

func (l leader) ProposeResult(ctx context.Context, c *rowraftv1.MetaCommand) (any, error) {
	return l.g.propose(ctx, c)
}

func (l leader) LeadsFor() time.Duration { return l.g.soft.leadsFor() }

func (l leader) CheckPause() { l.g.pulse.check() }

func (l leader) OnLeader(ctx context.Context, sh clustermap.Shard, patience time.Duration,
	fn func(*grpc.ClientConn) error) error {
	return l.g.onLeader(ctx, sh, patience, fn)
}

func (l leader) Staged() (out []checkpoints.StagedRestore) {
	l.g.soft.mu.Lock()
	defer l.g.soft.mu.Unlock()
	for _, b := range l.g.soft.beats {
		for _, r := range b.replicas {
			if id := r.GetStagedRestore(); len(id) > 0 {
				out = append(out, checkpoints.StagedRestore{ID: id, At: b.at})
			}
		}
	}
	return out
}

func (l leader) Now() time.Time { return l.g.soft.now() }
