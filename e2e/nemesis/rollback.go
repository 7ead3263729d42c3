package nemesis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/cluster"
)

// keeper is a cluster that reaches the files of a server that does not run.
type keeper interface {
	// KeepShards copies the shards of a server; putBack rolls them back to that, and
	// returns how many.
	KeepShards(name string) (putBack func() (int, error), err error)
	Placement(ctx context.Context) (*cluster.Placement, error)
	AwaitWhole(ctx context.Context, replicas int) error
}

const (
	refusedLimit = 20 * time.Second // for a replica to find that its disk was rolled back
	rebuiltLimit = 90 * time.Second // and for the scheduler to replace it, which it puts off a while
)

// MinPerMinute returns how many faults a minute must have an effect in a run of the kinds that list names.
func MinPerMinute(list string) float64 {
	if !slices.ContainsFunc(strings.Split(list, ","), func(k string) bool {
		return k != "rolled-back" &&
			!slices.Contains(gentle, k)
	}) {
		return 2 // each waits until its replicas are rebuilt, or longer than the lease of a trainer
	}
	return 10
}

// rolledBack copies the shards of a server while it is down, lets it run on, and puts the
// copy back. Each replica that has confirmed something since must be refused, named and
// replaced. That no acknowledged push is lost is for the checkers to say.
func rolledBack(ctx context.Context, a *act) error {
	k, ok := a.Cluster.(keeper)
	if !ok {
		a.skipped = true
		return nil
	}
	name, err := a.follower(ctx)
	if err != nil || !a.take(name) {
		return err
	}
	defer a.release(name)
	a.target = name
	if err := a.Cluster.Kill(name); err != nil {
		return err
	}
	putBack, err := k.KeepShards(name)
	if err := errors.Join(err, a.revive(ctx, name)); err != nil {
		return err
	}
	a.hold(ctx, shortest, longest)
	if err := a.Cluster.Kill(name); err != nil {
		return err
	}
	n, err := putBack()
	if err := errors.Join(err, a.revive(ctx, name)); err != nil || n == 0 { // its replicas have moved
		return err
	}
	var refused []rowraft.ShardID
	soon, cancel := context.WithTimeout(ctx, refusedLimit)
	defer cancel()
	if cluster.Poll(soon, func() error {
		p, err := k.Placement(soon)
		if err == nil {
			if refused = p.RolledBack[name]; len(refused) == 0 {
				err = errors.New("none is refused")
			}
		}
		return err
	}) != nil {
		return nil // it had confirmed nothing, or a second fault has the scheduler
	}
	began := time.Now()
	late, cancel := context.WithTimeout(ctx, rebuiltLimit)
	defer cancel()
	err = k.AwaitWhole(late, min(replicas, len(a.Cluster.Names())))
	if err != nil {
		return fmt.Errorf("the replicas of %s whose disk was rolled back are not replaced: %w", name, err)
	}
	a.saw("%d of %d replicas refused, all replaced after %.1f s", len(refused), n, time.Since(began).Seconds())
	return nil
}
