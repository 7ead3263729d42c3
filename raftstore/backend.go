package raftstore

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	bolt "go.etcd.io/bbolt"
)

// logBackend is one group's durable log with its stable store (term and vote).
// When a method returns, what it stored survives a power cut.
type logBackend interface {
	raft.LogStore
	raft.StableStore
	IsMonotonic() bool
	Close() error
}

// files that a backend leaves in its directory from the first moment; that they
// are missing later means that the log was lost.
var backendFiles = map[string]string{BackendBolt: "raft.db", BackendRow: metaName}

func openBackend(disk vfs.FS, kind, dir string, segmentSizeBytes int, logger *slog.Logger) (logBackend, error) {
	switch kind {
	case BackendRow:
		return openRowLog(disk, dir, segmentSizeBytes, logger)
	case BackendBolt:
		if disk != vfs.OS {
			return nil, errBoltDisk
		}
		b, err := raftboltdb.New(raftboltdb.Options{
			Path: filepath.Join(dir, backendFiles[BackendBolt]),
			// The directory is locked by Open; a second owner is a bug, not a wait.
			BoltOptions: &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType, NoFreelistSync: true},
		})
		if err != nil {
			return nil, fmt.Errorf("open raft-boltdb in %s: %w", dir, err)
		}
		return boltBackend{b}, nil
	}
	return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "log backend %q: want %s", kind, backendNames)
}

// errBoltDisk: bbolt maps its file into memory, which no interface can stand for.
var errBoltDisk = rowraft.Errorf(rowraft.CodeInvalidArgument, "log backend %q needs the operating system's disk: use %q", BackendBolt, BackendRow)

// boltBackend makes raft-boltdb answer as a monotonic store, so that raft clears
// the log after it installed a snapshot instead of keeping a conflicting entry at
// its last index and being sent the snapshot for ever (hashicorp/raft #697).
type boltBackend struct{ *raftboltdb.BoltStore }

func (boltBackend) IsMonotonic() bool { return true }
