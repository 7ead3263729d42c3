package raftlog

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft/internal/vfs"
)

// together appends an entry to the first n groups, to group i after i times apart.
func (s *sharedLogs) together(n int, apart time.Duration) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if apart > 0 {
				time.Sleep(time.Duration(i) * apart) //tidy:allow sleep virtual time
			}
			s.next(i, 10)
		})
	}
	wg.Wait()
}

// On a slow disk a batch waits a part of the time of a sync for as many groups as were active. A group that is alone
// waits for no other one, and on a fast disk none does.
func TestASlowDiskGathersChanges(t *testing.T) {
	const groups, us, ms = 3, time.Microsecond, time.Millisecond
	for _, tc := range []struct {
		name   string
		delay  time.Duration
		active []int         // how many groups append in each round before the measured one, in turns
		before time.Duration // how long one group appends after the other in those rounds
		stall  time.Duration // how long the sync before the measured round takes; 0: it does not stall
		append int           // how many groups append in the measured round
		apart  time.Duration // how long one appends after the other in it
		syncs  int64
		took   time.Duration
	}{
		{"others come just after the first", 8 * ms, []int{3}, 0, 0, 3, 200 * us, 1, 8400 * us},
		{"every other batch has one change", 8 * ms, []int{3, 1}, 0, 0, 3, 200 * us, 1, 8400 * us},
		{"others came during the sync of the first", 8 * ms, []int{3}, 2 * ms, 0, 3, 200 * us, 1, 8400 * us},
		{"others come too late", 8 * ms, []int{3}, 0, 0, 2, 2 * ms, 2, 18 * ms},
		{"a group alone", 8 * ms, []int{1}, 0, 0, 1, 0, 1, 8 * ms},
		{"a group alone, others before it", 8 * ms, []int{3, 3, 3, 1, 1}, 0, 0, 1, 0, 1, 8 * ms},
		{"a very slow disk", 40 * ms, []int{3}, 0, 0, 2, 3 * ms, 2, 84 * ms},
		{"a fast disk", 3 * ms, []int{3}, 0, 0, 2, 100 * us, 2, 6 * ms},
		{"a fast disk that stalled", 1 * ms, []int{3}, 0, 5 * time.Second, 2, 100 * us, 2, 2 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			slow := vfs.NewFaulty(vfs.NewMem())
			syncTakes := func(d time.Duration) {
				if err := slow.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpSync}, Path: "*" + segmentExt, Delay: d}); err != nil {
					t.Fatal(err)
				}
			}
			disk := &gatedDisk{FS: slow}
			s := openSharedLogs(t, disk, groups)
			defer s.close()
			syncTakes(tc.delay)
			for i := range 100 {
				s.together(tc.active[i%len(tc.active)], tc.before)
			}
			if tc.stall > 0 {
				syncTakes(tc.stall)
				s.together(1, 0)
				syncTakes(tc.delay)
			}
			before, begun := disk.synced.Load(), time.Now()
			s.together(tc.append, tc.apart)
			if n, took := disk.synced.Load()-before, time.Since(begun); n != tc.syncs || took > tc.took || took < tc.delay {
				t.Errorf("%s: %d syncs in %v, want %d in %v", tc.name, n, took, tc.syncs, tc.took)
			}
		})
	}
}
