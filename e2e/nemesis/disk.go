package nemesis

import (
	"context"
	"fmt"
	"time"

	"github.com/rowraft/rowraft/internal/vfs"
)

// disks is a cluster whose disks can be told to fail.
type disks interface {
	CanDisk() bool
	// SetDisk says what is wrong with a server's disk from now on.
	SetDisk(name string, faults ...vfs.DiskFault) error
	// DiskFaults counts the operations that met a fault so far.
	DiskFaults(name string) int
	// MayEnd says that a server may end by itself; its exit code then is ExitCode.
	MayEnd(name string)
	ExitCode(name string) int
}

// trouble is what a disk has.
type trouble int

const (
	fails trouble = iota // writes or syncs of the log fail
	full                 // the log finds no room
	hangs                // writes or syncs of the log do not return
	slow                 // syncs of the log take 20 to 120 ms
)

const (
	logFiles  = "log/[0-9]*"     // the segments of either backend
	endLimit  = 25 * time.Second // for a server to end that cannot write its log
	hangLimit = 10 * time.Second // for a leader to be replaced whose disk hangs; its server would end later
	exitCode  = 1
)

// disk makes the log of a leader or a follower fail. A server that cannot write its log must end, without having
// acknowledged what it could not write. A leader whose writes hang must lose its lead, and its server must not end.
func disk(t trouble, leads bool) func(context.Context, *act) error {
	return func(ctx context.Context, a *act) error {
		d, ok := a.Cluster.(disks)
		if !ok || !d.CanDisk() {
			a.skipped = true
			return nil
		}
		shard, l, err := a.leader(ctx)
		if err != nil {
			return err
		}
		name := l.Server
		if !leads {
			others := a.Cluster.Others(name)
			name = others[a.rng.IntN(len(others))]
		}
		if !a.take(name) {
			return nil
		}
		defer a.release(name)
		a.target = name
		ends := t == fails || t == full
		if ends {
			d.MayEnd(name)
		}
		before := d.DiskFaults(name)
		if err := d.SetDisk(name, a.diskFault(t)); err != nil {
			return err
		}
		replaced := true
		switch {
		case ends:
			a.awaitEnd(ctx, name)
		case t == hangs && leads:
			replaced = a.sawNewLeader(ctx, shard, l, hangLimit)
		default:
			a.hold(ctx, shortest, longest)
		}
		hit := d.DiskFaults(name) - before
		if err := d.SetDisk(name); err != nil {
			return err
		}
		switch {
		case hit == 0 && a.Cluster.Running(name):
			return nil // it had nothing to write
		case !replaced && ctx.Err() == nil:
			return a.unlessDisturbed(fmt.Errorf("VIOLATION: server %s still leads shard %d %v after its log began to hang", name,
				shard, hangLimit))
		case !ends:
			a.saw("%d operations hit", hit)
			return nil
		case a.Cluster.Running(name):
			return fmt.Errorf("VIOLATION: server %s lives on %v after its log could not be written", name, endLimit)
		case d.ExitCode(name) != exitCode:
			return fmt.Errorf("VIOLATION: server %s ended with code %d after its log could not be written, want %d", name,
				d.ExitCode(name), exitCode)
		}
		a.saw("the process has ended, code %d", exitCode)
		if leads {
			a.sawNewLeader(ctx, shard, l, leaderSeen)
		}
		return a.revive(ctx, name)
	}
}

func (a *act) diskFault(t trouble) vfs.DiskFault {
	ops := []vfs.Op{vfs.OpWrite, vfs.OpSync}
	f := vfs.DiskFault{Ops: ops[a.rng.IntN(2):][:1], Path: logFiles, After: a.rng.IntN(10)}
	switch t {
	case fails:
		f.Err, f.Times = "EIO", 1
	case full:
		f.Err, f.Ops, f.Path = "ENOSPC", nil, "log/*"
	case hangs:
		f.Hang = true
	case slow:
		f.Ops, f.Delay = ops[1:], time.Duration(20+a.rng.IntN(100))*time.Millisecond
	}
	f.Name = fmt.Sprintf("%d", a.rng.Uint32()) // another one each time
	return f
}

// awaitEnd waits until a server has ended by itself.
func (a *act) awaitEnd(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	for a.Cluster.Running(name) && sleep(ctx, 20*time.Millisecond) {
	}
}

// How long all disks are slow: the timers of Raft need some seconds to follow.
const (
	shortestSlow = 3 * time.Second
	longestSlow  = 15 * time.Second
)

// slowDisks makes all disks slow at once. The cluster becomes slow with them, and no server ends.
func slowDisks(ctx context.Context, a *act) error {
	d, ok := a.Cluster.(disks)
	if !ok || !d.CanDisk() {
		a.skipped = true
		return nil
	}
	names := a.Cluster.Names()
	if !a.take(names...) {
		return nil
	}
	defer a.release(names...)
	a.target = "all"
	late := time.Duration(200+a.rng.IntN(201)) * time.Millisecond
	f := vfs.DiskFault{Name: fmt.Sprintf("%d", a.rng.Uint32()), Ops: []vfs.Op{vfs.OpSync}, Path: "log/*", Delay: late}
	before := 0
	for _, name := range names {
		before += d.DiskFaults(name)
		if err := d.SetDisk(name, f); err != nil {
			return err
		}
	}
	a.hold(ctx, shortestSlow, longestSlow)
	hit := -before
	for _, name := range names {
		if err := d.SetDisk(name); err != nil {
			return err
		}
		hit += d.DiskFaults(name)
		if !a.Cluster.Running(name) {
			return fmt.Errorf("VIOLATION: server %s has ended on a disk that takes %v", name, late)
		}
	}
	if hit > 0 {
		a.saw("%d operations late by %v", hit, late)
	}
	return nil
}
