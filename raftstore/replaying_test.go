package raftstore

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/raftstore/entry"
	"github.com/rowraft/rowraft/raftstore/logstore"
)

// During the replay after a restart in place raft would give a snapshot the index that it has replayed, but the machine
// is at a later index.
func TestNoSnapshotWhileRaftReplays(t *testing.T) {
	led := logstore.NewLedger(nil)
	f := newFSM(&listMachine{}, led, func(err error) { t.Error(err) }, func(uint64, uint64) {})
	var logs []*raft.Log
	for i := range uint64(100) {
		data := fmt.Appendf(nil, "entry %d", i+1)
		l := &raft.Log{Index: i + 1, Term: 1, Type: raft.LogCommand, Data: data, Extensions: entry.Seal(data)}
		if err := entry.Complete(l); err != nil {
			t.Fatal(err)
		}
		led.Observe(l)
		logs = append(logs, l)
	}
	f.ApplyBatch(logs)
	f.restarted()
	for _, to := range []int{0, 33, 99} {
		f.ApplyBatch(logs[:to])
		if s, err := f.Snapshot(); err == nil {
			s.Release()
			t.Errorf("a snapshot under index %d of a machine that is at 100", to)
		}
	}
	f.ApplyBatch(logs)
	s, err := f.Snapshot()
	if err != nil {
		t.Fatalf("after the replay: %v", err)
	}
	s.Release()
}

// A group that was restarted in place, and took snapshots during the replay, must be able to start again.
func TestSnapshotsDuringAReplayCanBeRestored(t *testing.T) {
	c := startedCluster(t, 1, func(o *Options) { o.EntryCacheBytes = 1 })
	var last rowraft.Index
	for i := range 2000 {
		last = c.propose(fmt.Sprintf("entry %d", i))
	}
	n := c.nodes[0]
	n.group.restart(slog.LevelError, "test")
	ctx := testutil.Context(t)
	for asked := 0; ; asked++ {
		err := n.group.Snapshot() // without a pause, to meet the replay
		if list, _ := n.group.snaps.List(); len(list) > 0 {
			t.Logf("snapshot %d is on disk", asked)
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	c.stop(n)
	c.open(n)
	c.startGroup(n)
	c.converged(last)
}
