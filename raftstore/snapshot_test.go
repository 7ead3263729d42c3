package raftstore

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/snapstore"
)

// If the newest snapshot is damaged, a node starts from the older one only if its log covers the difference. Otherwise
// it would forget acknowledged entries.
func TestDamagedSnapshotAtStart(t *testing.T) {
	for _, tc := range []struct {
		name     string
		trailing int64
		want     rowraft.Code
	}{
		{"the log covers it", 1 << 30, rowraft.CodeUnknown},
		{"the log does not", 1, rowraft.CodeCorrupt},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := startedCluster(t, 1, func(o *Options) {
				o.TrailingLogBytes = tc.trailing
				o.SegmentSizeBytes = 64 << 10
				o.Backend = raftlog.Bolt
			})
			n := c.nodes[0]
			for i := range 3 {
				for range 3 {
					c.propose(strings.Repeat("x", 100+i))
				}
				if err := n.group.Snapshot(); err != nil {
					t.Fatal(err)
				}
			}
			list, err := n.group.snaps.List()
			if err != nil || len(list) != 2 {
				t.Fatalf("%v, %v", list, err)
			}
			c.stop(n)
			path := filepath.Join(n.snapshotDir(), list[0].ID, "data")
			flipLastByte(t, path)
			if err := c.tryStart(n); rowraft.CodeOf(err) != tc.want {
				t.Fatalf("start: %v, want %v", err, tc.want)
			}
			if tc.want != rowraft.CodeUnknown {
				return
			}
			c.stop(n)
			c.start(n)
			c.propose("y")
			if k, _ := n.machine.state(); k != 10 {
				t.Errorf("the machine holds %d entries, want 10", k)
			}
		})
	}
}

// A leader that finds its snapshot damaged while it sends it takes a new one, because its machine is good.
func TestDamagedSnapshotIsReplaced(t *testing.T) {
	c := startedCluster(t, 1, func(o *Options) { o.hooks.tick = 5 * time.Millisecond })
	n := c.nodes[0]
	c.propose("x")
	if err := n.group.Snapshot(); err != nil {
		t.Fatal(err)
	}
	c.propose("y")
	list, _ := n.group.snaps.List()
	path := filepath.Join(n.snapshotDir(), list[0].ID, "data")
	flipLastByte(t, path)
	_, r, err := n.group.snaps.Open(list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); err == nil {
		t.Fatal("the damage was not noticed")
	}
	testutil.Eventually(t, "a good snapshot of a later index", func() bool {
		now, err := n.group.snaps.List()
		return err == nil && len(now) == 1 && now[0].Index > list[0].Index
	})
}

// A leader that lost its snapshots takes a new one, and continues no matter how long that takes: for a large state it
// takes longer than the limit of snapstore.Watch.
func TestALostSnapshotIsReplacedHoweverLongThatTakes(t *testing.T) {
	c := newTestCluster(t, 1, func(o *Options) {
		o.WedgeTimeout = 400 * time.Millisecond
		o.hooks.tick = 5 * time.Millisecond
	})
	n := c.nodes[0]
	c.open(n)
	taken := make(chan struct{})
	done := sync.OnceFunc(func() { close(taken) })
	t.Cleanup(done)
	var slow atomic.Bool
	n.machine.beforeWrite = func() {
		if slow.Load() {
			<-taken
		}
	}
	c.startGroup(n)
	c.propose("x")
	if err := n.group.Snapshot(); err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	if err := errors.Join(os.RemoveAll(n.snapshotDir()), os.Mkdir(n.snapshotDir(), 0o700)); err != nil {
		t.Fatal(err)
	}
	w := n.group.watch
	testutil.Eventually(t, "there is no snapshot for longer than one may be unreadable", func() bool {
		if list, err := w.List(); err != nil || len(list) > 0 { // as raft does for a follower
			t.Fatalf("List = %v, %v", list, err)
		}
		return n.group.Err() != nil || w.Check() != nil && n.group.snapshots.busy.Load()
	})
	for range 20 { // several ticks of the supervisor
		time.Sleep(5 * time.Millisecond) //tidy:allow sleep nothing is to happen
	}
	if err := n.group.Err(); err != nil {
		t.Fatalf("the group stopped while it took a snapshot: %v", err)
	}
	done()
	testutil.Eventually(t, "the new one", func() bool {
		list, err := w.List()
		return err == nil && len(list) > 0
	})
	c.propose("y")
}

// A crash after a snapshot from the leader was stored and before the log was cleared leaves a log that ends too early
// or conflicts. The next start clears it, and so does a restart in place, which may interrupt an install, too.
func TestInterruptedInstallIsFinished(t *testing.T) {
	beyond := func(last, term uint64) (uint64, uint64) { return last + 100, term }
	for _, backend := range raftlog.Backends {
		for name, place := range map[string]func(last, term uint64) (uint64, uint64){
			"the snapshot is beyond the log":  beyond,
			"the group restarts in place":     beyond,
			"the log conflicts with its last": func(last, term uint64) (uint64, uint64) { return last - 1, term + 1 },
		} {
			t.Run(name+" with "+backend, func(t *testing.T) {
				t.Parallel()
				c := startedCluster(t, 1, func(o *Options) { o.Backend = backend })
				n := c.nodes[0]
				for range 5 {
					c.propose("old")
				}
				s := n.group.Status()
				conf := n.group.run.Load().raft.GetConfiguration().Configuration()
				index, term := place(uint64(s.LastIndex), uint64(s.Term))
				donor := &listMachine{index: rowraft.Index(index)}
				donor.addLocked([]byte("from the leader"))
				snap, err := (&fsm{machine: donor}).Snapshot()
				if err != nil {
					t.Fatal(err)
				}
				sink, err := n.group.snaps.Create(1, index, term, conf, 1, nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(snap.Persist(sink), sink.Close()); err != nil {
					t.Fatal(err)
				}
				if strings.Contains(name, "in place") {
					n.group.restart(slog.LevelInfo, "test")
				} else {
					c.stop(n)
					c.start(n)
				}
				if at := c.propose("new"); uint64(at) <= index {
					t.Errorf("the next entry got index %d, want more than %d", at, index)
				}
				if got := strings.Join(n.machine.list(), ","); got != "from the leader,new" {
					t.Errorf("the machine holds %q", got)
				}
			})
		}
	}
}

func TestSnapshotIsReleasedOnce(t *testing.T) {
	c := startedCluster(t, 1, nil)
	n := c.nodes[0]
	c.propose("x")
	for range 3 {
		if err := n.group.Snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	// One that cannot be written.
	if err := os.RemoveAll(n.snapshotDir()); err != nil {
		t.Fatal(err)
	}
	c.propose("y")
	if err := n.group.Snapshot(); err == nil {
		t.Error("a snapshot into a missing directory succeeded")
	}
	testutil.Eventually(t, "all snapshots are released", func() bool {
		n.machine.mu.Lock()
		defer n.machine.mu.Unlock()
		return n.machine.snapped == 4 && n.machine.released == 4
	})
}

// The worst case of a damaged snapshot: the log was cleared when it was installed, an older snapshot is good, and only
// the name of the directory shows the hole.
func TestDamagedSnapshotWithEmptyLog(t *testing.T) {
	c := startedCluster(t, 1, nil)
	n := c.nodes[0]
	for range 2 {
		c.propose("x")
		if err := n.group.Snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	list, err := n.group.snaps.List()
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	path := filepath.Join(n.snapshotDir(), list[0].ID, "data")
	c.stop(n)
	c.open(n)
	w, err := raftlog.Open(vfs.OS, raftlog.Row, filepath.Join(n.dir, "raft", "groups", "shard-0", "log"),
		raftlog.Owner{Cluster: testCluID, Node: n.id, Group: "shard-0", Replica: replicaOf(n.id)}, n.store.rows,
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	first, _ := w.FirstIndex()
	last, _ := w.LastIndex()
	if err := errors.Join(w.DeleteRange(first, last), w.Close()); err != nil {
		t.Fatal(err)
	}
	flipLastByte(t, path)
	c.stop(n)
	if err := c.tryStart(n); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("start: %v, want CodeCorrupt", err)
	}
}

// testSnapshots is an empty store of snapshots.
func testSnapshots(t testing.TB) *snapstore.Store {
	t.Helper()
	s, err := snapstore.Open(vfs.OS, t.TempDir(), testOwner.String(), slog.New(slog.DiscardHandler),
		func(string, error) {})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// saveSnapshot stores a snapshot with this payload and returns its ID.
func saveSnapshot(t testing.TB, s *snapstore.Store, index, term uint64, payload []byte) string {
	t.Helper()
	sink, err := s.Create(1, index, term, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sink.Write(payload); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	return sink.ID()
}

// flipLastByte flips a bit of the last byte of a file.
func flipLastByte(t testing.TB, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
