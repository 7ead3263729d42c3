package nemesis

import (
	"context"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/cluster"
)

// mover is a cluster whose replicas can move.
type mover interface {
	StartMove(ctx context.Context, shard rowraft.ShardID, from, to string) (id uint64, err error)
	CancelMove(ctx context.Context, shard rowraft.ShardID, id uint64) error
	AwaitMove(ctx context.Context, id uint64) (cluster.Move, error)
	Placement(ctx context.Context) (*cluster.Placement, error)
}

const (
	moveStart = 5 * time.Second
	replicas  = 3
	moveLimit = 30 * time.Second // what takes longer is left to go on
)

// disturbance is what is done in the middle of a move.
type disturbance int

const (
	none disturbance = iota
	aKill
	aCancel
)

// move moves a replica of a random shard to a server that has none, under load.
func move(middle disturbance) func(context.Context, *act) error {
	return func(ctx context.Context, a *act) error {
		m, ok := a.Cluster.(mover)
		if !ok || len(a.Cluster.Names()) <= replicas {
			a.skipped = true
			return nil
		}
		began := time.Now()
		start, cancel := context.WithTimeout(ctx, moveStart)
		defer cancel()
		p, err := m.Placement(start)
		if err != nil {
			return nil // a second fault has the scheduler
		}
		shard := rowraft.ShardID(a.rng.IntN(a.Shards))
		has := p.Replicas[shard]
		spare := a.Cluster.Others(has...)
		if len(has) == 0 || len(spare) == 0 {
			return nil
		}
		from, to := has[a.rng.IntN(len(has))], spare[a.rng.IntN(len(spare))]
		a.target = from + "→" + to
		id, err := m.StartMove(start, shard, from, to)
		if err != nil {
			return nil // one runs already, or the scheduler is away
		}
		switch middle {
		case aKill:
			err = a.killInMove(ctx, p, from, to)
		case aCancel:
			sleep(ctx, time.Duration(a.rng.IntN(200))*time.Millisecond)
			_ = m.CancelMove(start, shard, id) // it may be too late
		}
		if err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, moveLimit)
		defer cancel()
		mv, err := m.AwaitMove(wait, id)
		if err != nil || !mv.Done() && middle != aCancel {
			a.observed = nil // a server may be dead, but no replica has moved
			return nil
		}
		a.saw("shard %d: %s after %.2f s", shard, mv.Phase, time.Since(began).Seconds())
		return nil
	}
}

// killInMove kills the source, the target, the leader of the scheduler or anybody,
// and restarts it.
func (a *act) killInMove(ctx context.Context, p *cluster.Placement, from, to string) error {
	victims := slices.DeleteFunc(append([]string{from, to, p.Scheduler}, a.Cluster.Names()...), func(s string) bool {
		return s == ""
	})
	name := victims[a.rng.IntN(len(victims))]
	sleep(ctx, time.Duration(a.rng.IntN(400))*time.Millisecond)
	if !a.take(name) {
		a.skipped = false // the move itself goes on
		return nil
	}
	defer a.release(name)
	if err := a.kill(name); err != nil {
		return err
	}
	a.hold(ctx, time.Millisecond, longest/2)
	return a.revive(ctx, name)
}
