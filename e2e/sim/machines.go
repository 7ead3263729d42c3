package sim

import (
	"fmt"
	"time"

	"github.com/rowraft/rowraft/internal/vfs"
)

// PowerCut takes machines down at one moment; seed decides what becomes of what their
// disks had not synced.
func (c *Cluster) PowerCut(seed uint64, names ...string) error {
	for i, name := range names {
		c.server(name).cut(true, powerless(seed+uint64(i)))
	}
	return nil
}

// PowerCutAtStep takes a machine down right before the n-th step from now that its
// disk does. The channel is closed when that has happened; cancel calls it off.
func (c *Cluster) PowerCutAtStep(seed uint64, name string, n int) (down <-chan struct{}, cancel func()) {
	s := c.server(name)
	l := s.current()
	fell := make(chan struct{})
	l.disk.OnStep(func(step vfs.Step) {
		if step.N == n && !l.over.Load() {
			l.told.Store(true)
			s.end(l, true, powerless(seed))
			close(fell)
		}
	})
	return fell, func() { l.disk.OnStep(nil) }
}

// SlowLog makes every write to a log take a time more, until undo.
func (c *Cluster) SlowLog(name string, late time.Duration) (undo func() (writes int)) {
	l := c.server(name).current()
	f := vfs.DiskFault{Name: "slow", Ops: []vfs.Op{vfs.OpLog}, Delay: late}
	if err := l.disk.Set(f); err != nil {
		panic(fmt.Sprintf("fault %+v: %v", f, err))
	}
	before := l.disk.Done()[f.Name]
	return func() int {
		l.disk.Clear()
		return l.disk.Done()[f.Name] - before
	}
}

// CanDisk reports that disks can be told to fail.
func (c *Cluster) CanDisk() bool { return true }

// SetDisk sets the faults of a server's disk from now on. A late or hanging write waits before it begins, where no
// goroutine waits for a lock.
func (c *Cluster) SetDisk(name string, faults ...vfs.DiskFault) error {
	for i := range faults {
		if f := &faults[i]; f.Hang || f.Delay > 0 {
			f.Ops, f.Path = []vfs.Op{vfs.OpLog}, ""
		}
	}
	return c.server(name).current().disk.Set(faults...)
}

// DiskFaults counts the operations that met a fault, over all lives of a server.
func (c *Cluster) DiskFaults(name string) int {
	s := c.server(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hits + s.now.hits()
}

// hits is how many operations have met a fault.
func (l *life) hits() (sum int) {
	for _, n := range l.disk.Done() {
		sum += n
	}
	return sum
}

// MayEnd says that the present life of a server may end by itself.
func (c *Cluster) MayEnd(name string) { c.server(name).current().told.Store(true) }

// ExitCode is what a server's last life has ended with: 1 if by itself, also while it started, −1 if it
// runs or was killed.
func (c *Cluster) ExitCode(name string) int {
	l := c.server(name).current()
	if l.failed.Load() || l.hasEnded() && !l.over.Load() && l.err != nil {
		return 1
	}
	return -1
}

// FillDisk leaves so many bytes free.
func (c *Cluster) FillDisk(name string, free int64) (undo func() int) {
	s := c.server(name)
	set := func(limit func(*vfs.Mem) int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.disk.Limit(limit(s.disk))
	}
	before := 0
	set(func(m *vfs.Mem) int64 {
		before = m.Refused()
		return m.Used() + free
	})
	return func() (refused int) {
		set(func(m *vfs.Mem) int64 {
			refused = m.Refused() - before
			return 0
		})
		return refused
	}
}
