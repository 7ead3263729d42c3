package raftstore

import (
	"log/slog"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
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
var backendFiles = map[string][]string{BackendRow: {metaName}, BackendBolt: {metaName, boltName}}

// openBackend opens the log of owner in dir, or makes it. It returns before anything
// is read from a log of another owner.
//
// Errors: CodeCorrupt, CodeIdentity, CodeVersionTooNew.
func openBackend(disk vfs.FS, kind, dir string, owner logOwner, segmentSizeBytes int, logger *slog.Logger) (logBackend, error) {
	switch kind {
	case BackendRow:
		return openRowLog(disk, dir, owner, segmentSizeBytes, logger)
	case BackendBolt:
		if disk != vfs.OS {
			return nil, errBoltDisk
		}
		return openBoltLog(disk, dir, owner, logger)
	}
	return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "log backend %q: want %s", kind, backendNames)
}

// errBoltDisk: bbolt maps its file into memory, which no interface can stand for.
var errBoltDisk = rowraft.Errorf(rowraft.CodeInvalidArgument, "log backend %q needs the operating system's disk: use %q", BackendBolt, BackendRow)
