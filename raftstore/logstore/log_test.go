package logstore

import (
	"errors"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/raftlog"
)

// holedLog lost an entry in its middle.
type holedLog struct{ raftlog.Log }

func (holedLog) FirstIndex() (uint64, error)          { return 5, nil }
func (holedLog) LastIndex() (uint64, error)           { return 9, nil }
func (holedLog) GetLog(i uint64, out *raft.Log) error { return raft.ErrLogNotFound }

// A hole in the log does not count as a compacted entry: raft would send a snapshot, or panic.
func TestHoleInTheLogIsCorrupt(t *testing.T) {
	g := New(Options{Inner: holedLog{}, Ledger: NewLedger(nil), Shared: NewShared(0), FS: vfs.OS})
	for i, hole := range map[uint64]bool{4: false, 5: true, 7: true, 9: true, 10: false} {
		err := g.GetLog(i, &raft.Log{})
		if hole && rowraft.CodeOf(err) != rowraft.CodeCorrupt || !hole && !errors.Is(err, raft.ErrLogNotFound) {
			t.Errorf("entry %d of a log from 5 to 9: %v", i, err)
		}
	}
}
