package nemesis

import (
	"context"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/cluster"
)

// transferrer is a cluster in which the lead of a shard can be handed over.
type transferrer interface {
	// TransferLeader asks server from to hand its lead of a shard to another.
	TransferLeader(ctx context.Context, from string, shard rowraft.ShardID, to string) (rowraft.Term, error)
}

const transferLimit = 3 * time.Second

// handOver asks the leader of a random shard to hand over to a random other server.
func (a *act) handOver(ctx context.Context, t transferrer, l cluster.Leader,
	shard rowraft.ShardID) (to string, term rowraft.Term, err error) {
	others := a.Cluster.Others(l.Server)
	to = others[a.rng.IntN(len(others))]
	ctx, cancel := context.WithTimeout(ctx, transferLimit)
	defer cancel()
	term, err = t.TransferLeader(ctx, l.Server, shard, to)
	return to, term, err
}

// transfer hands the lead over once. That it is refused is no fault's effect: the
// leader may have changed, or a second fault has the target.
func transfer(ctx context.Context, a *act) error {
	t, ok := a.Cluster.(transferrer)
	if !ok {
		a.skipped = true
		return nil
	}
	for range 5 { // a successor that has not caught up, or is held by another fault, is refused at once
		shard, l, err := a.leader(ctx)
		if err != nil {
			return err
		}
		a.target = l.Server
		began := time.Now()
		if to, term, err := a.handOver(ctx, t, l, shard); err == nil && term > l.Term {
			a.saw("shard %d: %s leads term %d after %.3f s", shard, to, term, time.Since(began).Seconds())
			return nil
		}
		a.hold(ctx, 50*time.Millisecond, 200*time.Millisecond)
	}
	return nil
}

// transferStorm hands the leads of all shards over, again and again.
func transferStorm(ctx context.Context, a *act) error {
	t, ok := a.Cluster.(transferrer)
	if !ok {
		a.skipped = true
		return nil
	}
	a.target = "all"
	done, asked := 0, 0
	for range 10 + a.rng.IntN(20) {
		shard, l, err := a.leader(ctx)
		if err != nil {
			return err
		}
		asked++
		if _, term, err := a.handOver(ctx, t, l, shard); err == nil && term > l.Term {
			done++
		}
		a.hold(ctx, time.Millisecond, 100*time.Millisecond)
	}
	if done > 1 {
		a.saw("%d of %d transfers went through", done, asked)
	}
	return nil
}

// transferCut hands the lead over to a server that cannot hear the leader, and then
// to anybody while the leader cannot be heard.
func transferCut(ctx context.Context, a *act) error {
	t, ok := a.Cluster.(transferrer)
	if !ok {
		a.skipped = true
		return nil
	}
	shard, l, err := a.leader(ctx)
	if err != nil {
		return err
	}
	a.target = l.Server
	ls := links(direction(a.rng.IntN(3)), l.Server, a.Cluster.Others(l.Server))
	before := a.Net.Stats(ls...)
	lift := a.Net.Apply(cluster.LinkPolicy{Drop: true}, ls...)
	_, _, refused := a.handOver(ctx, t, l, shard)
	lift()
	if held := a.Net.Stats(ls...).Held - before.Held; held > 0 {
		if refused != nil {
			a.saw("%d bytes held back, the transfer ended with %v", held, rowraft.CodeOf(refused))
		} else {
			a.saw("%d bytes held back, the transfer went through", held)
		}
	}
	return nil
}
