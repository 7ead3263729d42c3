package scheduler

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
)

// maxWriting is how many checkpoints have parts in the shards at a time. A shard has room for one more
// (shard.MaxParts), because the part of a call that was given up may end a moment late.
const maxWriting = 3

// taskPhase is how far a task is, and so which others it excludes.
type taskPhase int

const (
	// opens: a checkpoint looks at its destination. It excludes others to the same destination, also later.
	opens taskPhase = iota
	// writes: a checkpoint may have parts in the shards. It excludes restores, and there are maxWriting at most.
	writes
	// cuts: a checkpoint also lets trainers and pushes wait. No destination is waited for meanwhile, so this is short.
	cuts
	// restores: a restore excludes checkpoints and restores.
	restores
)

// task is a checkpoint, a restore or the run of a policy.
type task struct {
	what        string // for messages
	destination string // of a checkpoint; "" if it does not matter
	since       time.Time
	at          taskPhase // guarded by tasks.mu
}

// tasks are the checkpoints and restores of this leader. A destination that hangs keeps no checkpoint to another one
// waiting. It keeps a restore waiting if it hangs after the cut, for no longer than a depot may hang.
type tasks struct {
	mu   sync.Mutex
	list []*task // oldest first
}

// inTheWay returns the oldest task that keeps o from a phase, nil if there is none.
// REQUIRES: mu is held.
func (l *tasks) inTheWay(o *task, to taskPhase) *task {
	var first *task
	writing := 0
	for _, other := range l.list {
		if other == o {
			continue
		}
		excludes := false
		switch to {
		case opens:
			excludes = o.destination != "" && other.destination == o.destination
		case writes:
			if other.at == writes || other.at == cuts {
				writing++
			}
			excludes = other.at == restores || writing >= maxWriting
		case cuts:
			excludes = other.at == cuts || other.at == restores
		case restores:
			excludes = other.at != opens
		}
		if excludes && first == nil {
			first = other
		}
	}
	return first
}

// try brings o to a phase, unless another task is in the way, which it returns.
func (l *tasks) try(o *task, to taskPhase) *task {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.inTheWay(o, to); other != nil {
		return other
	}
	if !slices.Contains(l.list, o) {
		o.since = time.Now()
		l.list = append(l.list, o)
	}
	o.at = to
	return nil
}

// enter is try that waits. Without an error, or once an earlier call had none, leave must follow.
//
// Errors: CodeOverloaded after patience; that of ctx.
func (l *tasks) enter(ctx context.Context, patience time.Duration, o *task, to taskPhase) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		other := l.try(o, to)
		if other == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			return rowraft.Errorf(rowraft.CodeOverloaded, "another checkpoint or restore is running: %s, for %v", other.what, time.Since(other.since).Round(time.Second))
		}
	}
}

// back returns o from cuts to writes, which excludes less.
func (l *tasks) back(o *task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o.at = writes
}

// leave ends o.
func (l *tasks) leave(o *task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = slices.DeleteFunc(l.list, func(x *task) bool { return x == o })
}
