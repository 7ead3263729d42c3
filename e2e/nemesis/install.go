package nemesis

import (
	"context"
	"time"

	"github.com/rowraft/rowraft/e2e/cluster"
)

// installer is a cluster that can tell how many snapshots of its leaders a server
// has installed so far, over all its lives.
type installer interface{ Installs(name string) int }

const (
	ballastLimit = 15 * time.Second
	installLimit = 15 * time.Second
)

// install holds a follower back, dead or cut off, until the logs of its leaders begin
// behind it; then only a snapshot can bring it up, while clients push.
func install(ctx context.Context, a *act) error {
	in, ok := a.Cluster.(installer)
	if !ok || a.ShortLogBytes == 0 {
		a.skipped = true
		return nil
	}
	name, err := a.follower(ctx)
	if err != nil || !a.take(name) {
		return err
	}
	defer a.release(name)
	a.target = name
	before := in.Installs(name)
	if a.rng.IntN(2) == 0 {
		if err := a.Cluster.Kill(name); err != nil {
			return err
		}
		a.fillLogs(ctx)
		if err := a.revive(ctx, name); err != nil {
			return err
		}
	} else {
		lift := a.Net.Apply(cluster.LinkPolicy{Drop: true}, cluster.Between([]string{name}, a.Cluster.Others(name))...)
		a.fillLogs(ctx)
		lift()
	}
	healed := time.Now()
	late, cancel := context.WithTimeout(ctx, installLimit)
	defer cancel()
	n := 0
	for n == 0 && sleep(late, 50*time.Millisecond) {
		n = in.Installs(name) - before
	}
	if n > 0 {
		a.saw("snapshots of %d shards installed, the first %.2f s after", n, time.Since(healed).Seconds())
	}
	return nil
}

// fillLogs pushes until the logs begin again. If a second fault does not let it, the
// follower will catch up without a snapshot, and the fault was none.
func (a *act) fillLogs(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ballastLimit)
	defer cancel()
	_ = a.Load.Ballast(ctx, a.ShortLogBytes)
}
