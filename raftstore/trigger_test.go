package raftstore

import (
	"testing"

	"github.com/rowraft/rowraft"
)

// TestSnapshotsFollowTheStateInSize: with a large state, a snapshot every 512 MiB would write many times as much as the
// log.
func TestSnapshotsFollowTheStateInSize(t *testing.T) {
	for _, tc := range []struct {
		name            string
		every, max, has int64
		want            int64
	}{
		{"no snapshot yet", 0, 4 << 30, 0, 512 << 20},
		{"a small state", 0, 4 << 30, 100 << 20, 512 << 20},
		{"as much log as state", 0, 4 << 30, 3 << 30, 3 << 30},
		{"the log stays bounded", 0, 4 << 30, 50 << 30, 4 << 30},
		{"a bound below 512 MiB", 0, 64 << 20, 100 << 20, 64 << 20},
		{"a number that was given", 1 << 20, 4 << 30, 3 << 30, 1 << 20},
		{"a large number that was given", 8 << 30, 4 << 30, 3 << 30, 8 << 30},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := &Group{store: &Store{opts: Options{SnapshotEveryBytes: tc.every, SnapshotMaxBytes: tc.max}}}
			g.snapshots.g = g
			g.snapshots.bytes.Store(tc.has)
			if got := g.snapshots.every(); got != tc.want {
				t.Errorf("a snapshot every %d bytes of log, want %d", got, tc.want)
			}
		})
	}
}

// TestSnapshotSizeIsKnown: after a snapshot, after a restart, and on a follower that received one.
func TestSnapshotSizeIsKnown(t *testing.T) {
	c := startedCluster(t, 3, func(o *Options) {
		o.SegmentSizeBytes, o.TrailingLogBytes = 64<<10, 1
	})
	size := func(n *testNode) int64 {
		list, err := n.group.snaps.List()
		if err != nil || len(list) == 0 {
			t.Fatalf("snapshots of %s: %d, %v", n.id, len(list), err)
		}
		return list[0].Size
	}
	slow := c.followers()[0]
	c.stop(slow)
	pad := string(make([]byte, 4<<10))
	var last rowraft.Index
	for range 64 {
		last = c.propose(pad)
	}
	c.converged(last) // otherwise a snapshot has fewer entries
	l := c.leader()
	for _, n := range c.nodes { // so that no leader has the log for the slow one
		if n == slow {
			continue
		}
		if err := n.group.Snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	c.start(slow)
	c.converged(c.propose("last"))
	for _, n := range []*testNode{l, slow} {
		if got, want := n.group.snapshots.bytes.Load(), size(n); got != want || want < 64*4<<10 {
			t.Errorf("the snapshot of %s is thought to have %d bytes, and has %d", n.id, got, want)
		}
		c.stop(n)
		c.start(n)
		if got, want := n.group.snapshots.bytes.Load(), size(n); got != want {
			t.Errorf("after a restart the snapshot of %s is thought to have %d bytes, and has %d", n.id, got, want)
		}
	}
}
