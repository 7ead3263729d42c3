package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
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
var backendFiles = map[string]string{BackendWAL: metaName, BackendBolt: "raft.db", BackendRow: metaName}

func openBackend(disk vfs.FS, kind, dir string, segmentSizeBytes int, logger *slog.Logger) (logBackend, error) {
	switch kind {
	case BackendWAL:
		filer := segment.NewFiler(dir, walFS{disk})
		w, err := wal.Open(dir,
			wal.WithSegmentSize(segmentSizeBytes),
			wal.WithSegmentFiler(filer),
			wal.WithMetaStore(&rotatingMeta{newMetaStore(disk, logger), filer, segmentSizeBytes}),
			wal.WithCodec(&codec{}),
			wal.WithLogger(&hclogger{log: logger, name: "raft-wal"}))
		if err != nil {
			if errors.Is(err, types.ErrCorrupt) {
				err = rowraft.Errorf(rowraft.CodeCorrupt, "%w", err)
			}
			return nil, fmt.Errorf("open raft-wal in %s: %w", dir, err)
		}
		return w, nil
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
var errBoltDisk = rowraft.Errorf(rowraft.CodeInvalidArgument, "log backend %q needs the operating system's disk: use %q", BackendBolt, BackendWAL)

// codec writes raft-wal's own encoding into a buffer that is large enough from
// the start: raft-wal gives an empty one to each entry, and growing it to half a
// MiB copied the entry twice more.
type codec struct {
	wal.BinaryCodec
	accepted bool
}

// ID is that of the encoding, except for the first caller: raft-wal v0.4.2 wants
// an ID of our own in its options, but writes wal.CodecBinaryV1 into every segment
// whatever the codec says, and refuses to open a segment that differs from ID.
func (c *codec) ID() uint64 {
	if !c.accepted {
		c.accepted = true
		return wal.FirstExternalCodecID
	}
	return wal.CodecBinaryV1
}

func (c *codec) Encode(l *raft.Log, w io.Writer) error {
	const fixed = 64 // at most, of the numbers beside the two byte strings
	if b, ok := w.(*bytes.Buffer); ok {
		b.Grow(len(l.Data) + len(l.Extensions) + fixed)
	}
	return c.BinaryCodec.Encode(l, w)
}

// Decode reads what Encode wrote. raft-wal's own decoder panics on a number that
// does not end, and raft-wal hands it whatever the disk returns.
func (c *codec) Decode(b []byte, l *raft.Log) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = rowraft.Errorf(rowraft.CodeCorrupt, "a record of the log cannot be read: %v", p)
		}
	}()
	if err := c.BinaryCodec.Decode(b, l); err != nil {
		return rowraft.Errorf(rowraft.CodeCorrupt, "a record of the log cannot be read: %w", err)
	}
	return nil
}

// boltBackend makes raft-boltdb answer as a monotonic store, so that raft clears
// the log after it installed a snapshot instead of keeping a conflicting entry at
// its last index and being sent the snapshot for ever (hashicorp/raft #697).
type boltBackend struct{ *raftboltdb.BoltStore }

func (boltBackend) IsMonotonic() bool { return true }
