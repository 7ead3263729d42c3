package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft/internal/vfs"
)

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestADiskThatFillsDuringASnapshot fills the disk of the snapshots at each step of a snapshot. The group still
// acknowledges entries, logs why there is no snapshot, and keeps the log that the snapshot would have replaced. No
// unfinished file remains, a restart has all entries, and the group takes the next snapshot when there is space.
func TestADiskThatFillsDuringASnapshot(t *testing.T) {
	const steps = 20 // more than a snapshot has
	hit := 0
	for step := range steps {
		synctest.Test(t, func(t *testing.T) {
			disk := vfs.NewFaulty(vfs.NewMem())
			if err := vfs.MkdirAll(disk, "/node"); err != nil {
				t.Fatal(err)
			}
			var log lockedBuffer
			o := crashOptions(disk)
			o.SnapshotEveryBytes, o.TrailingLogBytes, o.Logger = 32<<10, 1, slog.New(slog.NewTextHandler(&log, nil))
			s, err := Open(o)
			if err != nil {
				t.Fatal(err)
			}
			m, l := &listMachine{}, groupLife{}
			g, err := s.StartGroup(crashGroup("shard-0", m))
			if err != nil {
				t.Fatal(err)
			}
			pad := strings.Repeat("x", 1<<10)
			push := func(n int) {
				for i := range n {
					if err := l.propose(g, fmt.Sprint(i, pad)); err != nil {
						t.Fatalf("step %d: a push on a disk without room for snapshots: %v", step, err)
					}
				}
			}
			push(4)
			if err := g.Snapshot(); err != nil {
				t.Fatal(err)
			}
			was := g.Status().SnapshotIndex
			full := vfs.DiskFault{Name: "full", Ops: []vfs.Op{vfs.OpMkdir, vfs.OpCreate, vfs.OpWrite, vfs.OpSync, vfs.OpSyncDir,
				vfs.OpRename},
				Path: "snapshots/*", After: step, Err: "ENOSPC"}
			inner := full
			inner.Name, inner.Path = "full inside", "snapshots/*/*"
			if err := disk.Set(full, inner); err != nil {
				t.Fatal(err)
			}
			push(4)
			serr := g.Snapshot()
			disk.Clear()
			if disk.Done()["full"]+disk.Done()["full inside"] == 0 {
				if serr != nil {
					t.Errorf("step %d: %v", step, serr)
				}
				closeStore(t, s)
				return
			}
			hit++
			if serr != nil && !errors.Is(serr, syscall.ENOSPC) && !strings.Contains(serr.Error(), "no space left") {
				t.Errorf("step %d: the snapshot failed with %v: want that there is no space", step, serr)
			}
			// The group takes the next one, and has all entries.
			if err := disk.Set(vfs.DiskFault{Name: "for a while", Path: "snapshots/*", Err: "ENOSPC"}); err != nil {
				t.Fatal(err)
			}
			push(40)
			time.Sleep(2 * time.Second) //tidy:allow sleep virtual time
			if !strings.Contains(log.String(), "snapshot failed, so the log continues to grow") {
				t.Errorf("step %d: the log does not mention the full disk", step)
			}
			disk.Clear()
			time.Sleep(snapshotRetry + time.Second) //tidy:allow sleep virtual time
			if now := g.Status().SnapshotIndex; now <= was {
				t.Errorf("step %d: there is room again, and no snapshot beyond entry %d", step, now)
			}
			push(1)
			want := m.list()
			closeStore(t, s)
			checkNoTmp(t, disk)
			after := lookAfter(t, disk)
			if !slices.Equal(after, want) {
				t.Errorf("step %d: %d entries after a restart, want %d", step, len(after), len(want))
			}
		})
	}
	if hit < 6 || hit == steps {
		t.Errorf("%d of %d steps were hit: want all of a snapshot's and some beyond", hit, steps)
	}
}

func closeStore(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// checkNoTmp looks for unfinished snapshots.
func checkNoTmp(t *testing.T, disk vfs.FS) {
	t.Helper()
	entries, err := disk.ReadDir("/node/raft/groups/shard-0/snapshots")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".tmp") {
			t.Errorf("%s was left behind", e.Name())
		}
	}
}

// lookAfter returns the state of the machine after a restart.
func lookAfter(t *testing.T, disk vfs.FS) []string {
	t.Helper()
	got, err := lookAtFlipped(disk, crashOptions)
	if err != nil {
		t.Fatal(err)
	}
	return got
}
