package scheduler

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
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

// trainers are the connected trainers as checkpoints use them.
type trainers struct{ s *Scheduler }

func (c *trainers) Await(ctx context.Context, need string, skip bool, left map[string]error) error {
	_, err := c.s.assemble(ctx, need, skip, left)
	return err
}

func (c *trainers) Prove(ctx context.Context, need string) { c.s.proveTrainers(ctx, need) }

func (c *trainers) Pause(ctx context.Context, need string, skip, again bool, left map[string]error) (checkpoints.Pause, error) {
	m, err := c.s.pauseTrainers(ctx, need, skip, again, left)
	if err != nil {
		return nil, err
	}
	return pauseRound{m}, nil
}

func (c *trainers) Trains(job string) bool {
	return !c.s.jobWaits(job) && len(c.Callers(job)) > 0
}

func (c *trainers) Callers(job string) (callers []*rpc.Caller) {
	for _, a := range c.s.attendance.list() {
		if a.id.Job == job {
			callers = append(callers, a.caller)
		}
	}
	return callers
}

func (c *trainers) CheckOwner(ctx context.Context, job string) error {
	return c.s.jobs.checkOwner(ctx, job)
}

// pauseRound is a muster as checkpoints use it.
type pauseRound struct{ m *muster }

func (p pauseRound) ReadData(ctx context.Context) error { return p.m.readData(ctx) }

func (p pauseRound) Release(ctx context.Context) error { return p.m.release(ctx) }

func (p pauseRound) Store(ctx context.Context, d depot.Depot, name string, tag []byte) error {
	return p.m.store(ctx, d, name, tag)
}

func (p pauseRound) Blobs(ctx context.Context, d depot.Depot, name string, tag []byte) ([]checkpoint.Blob, error) {
	return p.m.blobs(ctx, d, name, tag)
}

func (p pauseRound) Attended() []*rowraftv1.AttendedTrainer { return p.m.attended() }

func (p pauseRound) End() { p.m.end() }

func (p pauseRound) Cancel() { p.m.letGo() }
