package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// rotatingMeta finishes what a crash interrupted in raft-wal v0.4.2: an append that
// fills a segment seals the file, and only afterwards, in the background, does the
// metadata say so and name the next one. raft-wal opens what lies between as a log
// that answers every append with "segment is sealed", for ever. What follows the last
// whole batch is cut off before raft-wal looks at it (cutTail).
type rotatingMeta struct {
	*metaStore
	filer        types.SegmentFiler
	segmentBytes int
}

func (m *rotatingMeta) Load(dir string) (types.PersistentState, error) {
	p, err := m.metaStore.Load(dir)
	if err != nil || len(p.Segments) == 0 {
		return p, err
	}
	tail := p.Segments[len(p.Segments)-1]
	if !tail.SealTime.IsZero() {
		return p, nil
	}
	if err := cutTail(m.disk, filepath.Join(dir, segment.FileName(tail))); errors.Is(err, fs.ErrNotExist) {
		return p, nil
	} else if err != nil {
		return p, err
	}
	last, indexStart, err := m.sealed(tail)
	if err != nil || indexStart == 0 {
		return p, err
	}
	now := time.Now()
	tail.MaxIndex, tail.IndexStart, tail.SealTime = last, indexStart, now
	p.Segments = append(p.Segments[:len(p.Segments)-1:len(p.Segments)-1], tail, types.SegmentInfo{
		ID: p.NextSegmentID, BaseIndex: last + 1, MinIndex: last + 1,
		Codec: wal.CodecBinaryV1, CreateTime: now, SizeLimit: uint32(m.segmentBytes),
	})
	p.NextSegmentID++
	m.log.Warn("the log had a full segment that the metadata did not know of; its rotation is finished", "dir", dir, "last_index", last)
	return p, m.CommitState(p)
}

// sealed returns where the index of a full segment begins, 0 if it is not full, and
// its last entry.
func (m *rotatingMeta) sealed(tail types.SegmentInfo) (last, indexStart uint64, err error) {
	w, err := m.filer.RecoverTail(tail)
	if err != nil {
		return 0, 0, fmt.Errorf("recover the tail of the log: %w", err)
	}
	_, indexStart, err = w.Sealed()
	return w.LastIndex(), indexStart, errors.Join(err, w.Close())
}
