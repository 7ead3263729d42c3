package raftlog

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft/internal/vfs"
)

// On a slow disk a batch waits for the groups that were active, a part of the time of a sync. A group that is alone
// waits for no other one, and on a fast disk none does.
func TestASlowDiskGathersChanges(t *testing.T) {
	for _, tc := range []struct {
		name   string
		delay  time.Duration
		others time.Duration // the other groups append so long after the first; 0: they do not
		syncs  int64
		took   time.Duration
	}{
		{"others come just after the first", 8 * time.Millisecond, 200 * time.Microsecond, 1, 8300 * time.Microsecond},
		{"others come too late", 8 * time.Millisecond, 2 * time.Millisecond, 2, 18500 * time.Microsecond},
		{"a group alone", 8 * time.Millisecond, 0, 1, 8 * time.Millisecond},
		{"a fast disk", 400 * time.Microsecond, 30 * time.Microsecond, 2, 800 * time.Microsecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			const groups = 3
			disk := &gatedDisk{FS: vfs.NewMem(), delay: tc.delay}
			s := openSharedLogs(t, disk, groups)
			defer s.close()
			for range 40 {
				var wg sync.WaitGroup
				for i := range groups {
					if i == 0 || tc.others > 0 {
						wg.Go(func() { s.next(i, 10) })
					}
				}
				wg.Wait()
			}
			before, begun := disk.synced.Load(), time.Now()
			var wg sync.WaitGroup
			for i := range groups {
				if i == 0 || tc.others > 0 {
					wg.Go(func() {
						if i > 0 {
							<-time.After(tc.others)
						}
						s.next(i, 10)
					})
				}
			}
			wg.Wait()
			if n, took := disk.synced.Load()-before, time.Since(begun); n != tc.syncs || took > tc.took {
				t.Errorf("%s: %d syncs in %v, want %d in %v", tc.name, n, took, tc.syncs, tc.took)
			}
		})
	}
}
