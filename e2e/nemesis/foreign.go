package nemesis

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// exchanger is a cluster that reaches the files of a server that does not run.
type exchanger interface {
	// ExchangeLogs exchanges the logs of the scheduler and of one shard on a server
	// that does not run; a second call restores them. It returns false if the server
	// does not have both.
	ExchangeLogs(name string, pick uint64) (bool, error)
	// StartRefused starts a server that must not serve, and returns when it has ended.
	// serves tells that it served; said is what it said otherwise.
	StartRefused(ctx context.Context, name string) (serves bool, said string)
}

// foreignLogSaid is in the error of a server that finds the log of another group.
const foreignLogSaid = "is opened as the log of"

// foreignLog exchanges the logs of two groups while their server is down. The server
// must not start on them, and must name both groups. With the logs back it serves.
func foreignLog(ctx context.Context, a *act) error {
	e, ok := a.Cluster.(exchanger)
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
	if err := a.kill(name); err != nil {
		return err
	}
	pick := a.rng.Uint64()
	done, err := e.ExchangeLogs(name, pick)
	if err != nil {
		return err
	}
	if !done {
		a.observed, a.skipped = nil, true
		return a.revive(ctx, name)
	}
	limited, cancel := context.WithTimeout(ctx, restartLimit)
	serves, said := e.StartRefused(limited, name)
	cancel()
	if serves {
		err = fmt.Errorf("VIOLATION: server %s serves with the log of another group", name)
	} else if !strings.Contains(said, foreignLogSaid) {
		err = fmt.Errorf("VIOLATION: server %s does not say that it found the log of another group, but: %s", name, said)
	} else {
		a.saw("refused")
	}
	_, restored := e.ExchangeLogs(name, pick)
	return errors.Join(err, restored, a.revive(ctx, name))
}
