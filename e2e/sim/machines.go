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

// FailLog lets the n-th write or sync of a log from now fail with EIO.
func (c *Cluster) FailLog(name string, n int) (undo func()) {
	return c.fault(name, vfs.DiskFault{Ops: []vfs.Op{vfs.OpWrite, vfs.OpSync}, Path: "log/*", After: n - 1, Times: 1, Err: "EIO"})
}

// SlowLog makes every write to a log take a time more; 0: until undo.
func (c *Cluster) SlowLog(name string, late time.Duration) (undo func() (writes int)) {
	l := c.server(name).current()
	f := vfs.DiskFault{Name: "slow", Ops: []vfs.Op{vfs.OpLog}, Delay: late, Hang: late == 0}
	before := l.disk.Done()[f.Name]
	clear := c.fault(name, f)
	return func() int {
		clear()
		return l.disk.Done()[f.Name] - before
	}
}

// fault sets a fault on the disk of a life, in the place of any other.
func (c *Cluster) fault(name string, f vfs.DiskFault) (clear func()) {
	l := c.server(name).current()
	if err := l.disk.Set(f); err != nil {
		panic(fmt.Sprintf("fault %+v: %v", f, err))
	}
	return l.disk.Clear
}

// FillDisk leaves so many bytes free.
func (c *Cluster) FillDisk(name string, free int64) (undo func()) {
	s := c.server(name)
	set := func(limit func(*vfs.Mem) int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.disk.Limit(limit(s.disk))
	}
	set(func(m *vfs.Mem) int64 { return m.Used() + free })
	return func() { set(func(*vfs.Mem) int64 { return 0 }) }
}
