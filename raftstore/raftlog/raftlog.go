package raftlog

import (
	"log/slog"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// Backends of a log.
const (
	Row  = "rowlog" // the log of this package (docs/formats/log.md): the default
	Bolt = "bolt"   // hashicorp/raft-boltdb, on the disk of the operating system only
)

// Backends lists all backends.
var Backends = []string{Row, Bolt}

// Log is one group's durable log and its stable store, which keeps term and vote. Callers check the seals of the
// entries that they read with entry.Check.
type Log interface {
	raft.LogStore
	raft.StableStore
	IsMonotonic() bool
	// Reclaim releases the disk space of entries that DeleteRange has cut. Appends continue meanwhile. The next Open
	// does it for a process that ended before. After an error, every later change of the log fails.
	Reclaim() error
	Close() error
}

// Segments of a Shared are between these sizes.
const (
	MinSegmentBytes = 64 << 10
	MaxSegmentBytes = 1 << 30
)

// Check returns an error with CodeInvalidArgument if a log cannot be kept on disk as the arguments say.
func Check(disk vfs.FS, backend string) error {
	switch {
	case backend == Bolt && disk != vfs.OS:
		// bbolt maps its file into memory, which a vfs.FS cannot provide.
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "log backend %q needs the operating system's disk: use %q", Bolt,
			Row)
	case backend != Row && backend != Bolt:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "log backend %q: want one of %s", backend,
			strings.Join(Backends, ", "))
	}
	return nil
}

// Files returns the names of the files that a log of backend always has in its directory. If one of them is missing,
// the log was lost.
func Files(backend string) []string {
	if backend == Bolt {
		return []string{metaName, boltName}
	}
	return []string{metaName}
}

// Open opens or creates the log of owner. Its META is in dir of disk; for backend Row, its entries are in shared. It
// refuses a log of another owner before it reads an entry.
//
// Errors: CodeInvalidArgument, CodeCorrupt, CodeIdentity, CodeVersionTooNew.
func Open(disk vfs.FS, backend, dir string, owner Owner, shared *Shared, logger *slog.Logger) (Log, error) {
	if err := Check(disk, backend); err != nil {
		return nil, err
	}
	if backend == Bolt {
		return openBoltLog(disk, dir, owner, logger)
	}
	l, err := shared.openGroup(disk, dir, owner, logger)
	if err != nil { // not a Log that is a nil pointer
		return nil, err
	}
	return l, nil
}
