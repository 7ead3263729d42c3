package replica

import (
	"context"
	"errors"
	"time"

	"github.com/rowraft/rowraft"
)

// While the leadership changes, no replica can serve the shard, for some tens of milliseconds. A
// client that is refused then must guess how long to wait and which server to ask: its guesses
// took several times as long as the change. So calls wait for the change at this server.
const (
	// electedWait is how long a call waits for a replica that has been elected, and applies
	// what was committed before.
	electedWait = 400 * time.Millisecond
	// nextLeaderWait is how long it waits until this replica knows the next leader. It must be short,
	// because this replica may be cut off while the others have a leader.
	nextLeaderWait = 110 * time.Millisecond
	// handOverPoll is the interval of checks.
	handOverPoll = 2 * time.Millisecond
	// maxHandOverWaits is the maximum number of calls that wait at one replica; the others are refused.
	maxHandOverWaits = 512
)

// awaitServe is mustServe that waits while the leader changes: until this replica serves, or knows the
// leader.
func (r *replica) awaitServe(ctx context.Context) error {
	err := r.mustServe()
	if changing(err) == 0 {
		return err
	}
	defer r.handOverWaits.Add(-1)
	if r.handOverWaits.Add(1) > maxHandOverWaits {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	return awaitLead(ctx, r.mustServe)
}

// awaitLead calls must until its error is not about a change of the leader (changing), the wait
// for that error is over, or ctx ends. It returns the last result of must.
func awaitLead(ctx context.Context, must func() error) error {
	begin := time.Now()
	tick := time.NewTicker(handOverPoll)
	defer tick.Stop()
	for {
		err := must()
		if time.Since(begin) >= changing(err) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// changing returns how long to wait if err, of mustServe, means that the leader changes just
// now, and 0 if it does not.
func changing(err error) time.Duration {
	switch rowraft.CodeOf(err) {
	case rowraft.CodeStarting:
		return electedWait
	case rowraft.CodeNoLeader:
		return nextLeaderWait
	}
	return 0
}

// nameNextLeader returns the error of a push that the group has refused. If the group refused because the leadership
// was handed over, nameNextLeader waits for the next leader, to name it in the error.
func (r *replica) nameNextLeader(ctx context.Context, err error) error {
	err = ShardError(r.shard, err)
	nl, ok := errors.AsType[*rowraft.NotLeaderError](err)
	if !ok || nl.Leader != "" {
		return err
	}
	if now := r.awaitServe(ctx); rowraft.CodeOf(now) == rowraft.CodeNotLeader {
		return now
	}
	return err
}
