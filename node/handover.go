package node

import (
	"context"
	"errors"
	"time"

	"github.com/rowraft/rowraft"
)

// While a lead changes hands nobody can serve the shard, for some tens of milliseconds. A
// client that is refused then has to guess how long, and where to go: its guesses took
// several times as long as the change. So calls wait for the change where they are.
const (
	// electedWait is how long a call waits for a replica that has been elected, and applies
	// what was committed before.
	electedWait = 400 * time.Millisecond
	// nextLeaderWait is how long it waits for the next leader to show itself. Of a replica
	// that is cut off it must not be long: the others may have a leader.
	nextLeaderWait = 110 * time.Millisecond
	// handOverPoll is how often it looks.
	handOverPoll = 2 * time.Millisecond
	// maxHandOverWaits bounds the calls that wait at one replica; the others are refused.
	maxHandOverWaits = 512
)

// awaitServe is mustServe that waits while the lead changes hands: until this replica
// serves, or knows who leads.
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

// awaitLead asks must until the lead does not change hands any more, it has waited for long
// enough, or ctx ends, and returns what must said last.
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

// changing is how long to wait for what err, of mustServe, says to end; 0: not at all.
func changing(err error) time.Duration {
	switch rowraft.CodeOf(err) {
	case rowraft.CodeStarting:
		return electedWait
	case rowraft.CodeNoLeader:
		return nextLeaderWait
	}
	return 0
}

// refused is the error of a push that the group has refused. One that waited for the lead
// to be handed over is told who has it now.
func (r *replica) refused(ctx context.Context, err error) error {
	err = translate(r.shard, err)
	nl, ok := errors.AsType[*rowraft.NotLeaderError](err)
	if !ok || nl.Leader != "" {
		return err
	}
	if now := r.awaitServe(ctx); rowraft.CodeOf(now) == rowraft.CodeNotLeader {
		return now
	}
	return err
}
