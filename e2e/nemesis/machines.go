package nemesis

import (
	"context"
	"fmt"
	"time"

	"github.com/rowraft/rowraft/e2e/cluster"
)

// Machines is the power and the disks of servers, where a driver has them in its hand
// (package sim).
type Machines interface {
	// PowerCut takes machines down at one moment; seed decides what becomes of what
	// their disks had not synced.
	PowerCut(seed uint64, names ...string) error
	// PowerCutAtStep takes a machine down right before the n-th step from now that its
	// disk does. The channel is closed when that has happened; cancel calls it off.
	PowerCutAtStep(seed uint64, name string, n int) (down <-chan struct{}, cancel func())
	// FillDisk leaves so many bytes free. undo returns how many writes found no room
	// meanwhile.
	FillDisk(name string, free int64) (undo func() (refused int))
	// SlowLog makes every write to a log take a time more, until undo.
	SlowLog(name string, late time.Duration) (undo func() (writes int))
}

// machineFaults are the kinds that need Machines.
var machineFaults = []fault{
	{"power-leader", "a leader loses power, with what its disk had not synced", powerLeader, stands},
	{"power-follower", "a follower loses power", powerFollower, stands},
	{"power-majority", "all but one server lose power at once", powerMajority, stands},
	{"power-all", "every server loses power at once", powerAll, stands},
	{"power-step", "a server loses power between two steps of its disk", powerStep, stands},
	{"disk-full", "the disk of a server has no space left", diskFull, stands},
	{"stuck-leader", "a leader is cut off from the others while its log takes its time", stuckLeader, stands},
}

// every lists all kinds.
func every() []fault { return append(faults[:len(faults):len(faults)], machineFaults...) }

func (a *act) power(ctx context.Context, names ...string) error {
	if !a.take(names...) {
		return nil
	}
	defer a.release(names...)
	if a.target == "" {
		a.target = names[0]
	}
	if err := a.Machines.PowerCut(a.rng.Uint64(), names...); err != nil {
		return err
	}
	a.saw("%d without power", len(names))
	a.hold(ctx, time.Millisecond, longest/2)
	return a.revive(ctx, names...)
}

func powerLeader(ctx context.Context, a *act) error {
	_, l, err := a.leader(ctx)
	if err != nil {
		return err
	}
	return a.power(ctx, l.Server)
}

func powerFollower(ctx context.Context, a *act) error {
	name, err := a.follower(ctx)
	if err != nil {
		return err
	}
	return a.power(ctx, name)
}

func powerMajority(ctx context.Context, a *act) error {
	names := a.Cluster.Names()
	others := a.Cluster.Others(names[a.rng.IntN(len(names))])
	a.target = fmt.Sprint(len(others))
	return a.power(ctx, others...)
}

func powerAll(ctx context.Context, a *act) error {
	names := a.Cluster.Names()
	a.target = fmt.Sprint(len(names))
	return a.power(ctx, names...)
}

// anyServer takes a server at random; "" if another fault has it.
func (a *act) anyServer() string {
	names := a.Cluster.Names()
	name := names[a.rng.IntN(len(names))]
	if !a.take(name) {
		return ""
	}
	a.target = name
	return name
}

func powerStep(ctx context.Context, a *act) error {
	name := a.anyServer()
	if name == "" {
		return nil
	}
	defer a.release(name)
	n := 1 + a.rng.IntN(60)
	down, cancel := a.Machines.PowerCutAtStep(a.rng.Uint64(), name, n)
	if !await(ctx, down, longestPause) {
		cancel()
		return nil
	}
	a.saw("down before step %d", n)
	a.hold(ctx, time.Millisecond, longest/2)
	return a.revive(ctx, name)
}

// await waits for a channel to be closed, for a while.
func await(ctx context.Context, c <-chan struct{}, patience time.Duration) bool {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-c:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// awaitDeath waits until a server has ended by itself.
func (a *act) awaitDeath(ctx context.Context, name string, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return cluster.Poll(ctx, func() error {
		if a.Cluster.Running(name) {
			return fmt.Errorf("server %s runs", name)
		}
		return nil
	}) == nil
}

// broken does something to a disk that ends its server, undoes it and restarts the
// server.
func (a *act) broken(ctx context.Context, name string, brk func() (undo func()), patience time.Duration) error {
	undo := brk()
	died := a.awaitDeath(ctx, name, patience)
	if died {
		a.saw("the server has ended")
		a.hold(ctx, time.Millisecond, longest/2)
	}
	undo()
	if !died {
		// It may have seen the fault and end of it much later, as when a log could not
		// make its next segment.
		if err := a.Cluster.Kill(name); err != nil {
			return err
		}
	}
	return a.revive(ctx, name)
}

func diskFull(ctx context.Context, a *act) error {
	name := a.anyServer()
	if name == "" {
		return nil
	}
	defer a.release(name)
	free := int64(a.rng.IntN(3_000))
	return a.broken(ctx, name, func() func() {
		undo := a.Machines.FillDisk(name, free)
		return func() {
			// A log that has old segments to write over lives on; its snapshots do not.
			if n := undo(); n > 0 && a.Cluster.Running(name) {
				a.saw("%d writes found no room, and the server goes on", n)
			}
		}
	}, 2*longestPause)
}

// stuckLeader keeps raft's main goroutine in the log, as SIGSTOP keeps a process,
// while the others elect: a leader that has not noticed yet.
func stuckLeader(ctx context.Context, a *act) error {
	shard, l, err := a.leader(ctx)
	if err != nil || !a.take(l.Server) {
		return err
	}
	defer a.release(l.Server)
	a.target = l.Server
	late := time.Duration(300+a.rng.IntN(1200)) * time.Millisecond
	undo := a.Machines.SlowLog(l.Server, late)
	a.cut(ctx, links(both, l.Server, a.Cluster.Others(l.Server)), func() { a.sawNewLeader(ctx, shard, l, leaderSeen) })
	if n := undo(); n > 0 {
		a.saw("%d writes late by %v", n, late)
	}
	if !a.Cluster.Running(l.Server) { // too late for the watchdog
		return a.revive(ctx, l.Server)
	}
	return nil
}
