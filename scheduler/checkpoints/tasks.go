package checkpoints

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
)

// maxWriting bounds the checkpoints that write shard files at the same time. A shard has room for one more
// (shard.MaxParts), because the file of a cancelled call may end a moment late.
const maxWriting = 3

// taskPhase is the progress of a task. It decides which other tasks the task excludes.
type taskPhase int

const (
	// opens: the checkpoint checks its destination. From here on it excludes other tasks to the same destination.
	opens taskPhase = iota
	// writes: the checkpoint may have files in the shards. It excludes restores. At most maxWriting tasks are in this
	// phase or in cuts.
	writes
	// cuts: trainers and pushes wait for the checkpoint. It waits for no destination in this phase, so the phase is
	// short.
	cuts
	// restores: a restore. It excludes checkpoints beyond the phase opens, and other restores.
	restores
)

// task is one checkpoint, one restore or one run of a policy.
type task struct {
	what        string // for messages
	destination string // where the checkpoint is; "": the task has none
	since       time.Time
	at          taskPhase // guarded by tasks.mu
}

// tasks holds the running checkpoints and restores of this leader, and decides which may run together. A destination
// that hangs delays no checkpoint to another destination. It delays a restore if it hangs after the cut, for at most
// the time limit of a depot.
type tasks struct {
	mu   sync.Mutex
	list []*task // oldest first
}

// inTheWay returns the oldest task that excludes o from a phase, nil if there is none. REQUIRES: mu is held.
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

// try moves o to a phase. If another task excludes that, try returns that task and changes nothing.
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

// enter is try with a wait. After the first call without an error, the caller must call leave.
//
// Errors: CodeOverloaded after patience; the error of ctx.
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
			return rowraft.Errorf(rowraft.CodeOverloaded, "another checkpoint or restore is running: %s, for %v", other.what,
				time.Since(other.since).Round(time.Second))
		}
	}
}

// back moves o from cuts to writes, which excludes less.
func (l *tasks) back(o *task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o.at = writes
}

// leave removes o.
func (l *tasks) leave(o *task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = slices.DeleteFunc(l.list, func(x *task) bool { return x == o })
}
