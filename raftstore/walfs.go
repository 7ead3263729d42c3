package raftstore

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/hashicorp/raft-wal/types"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/internal/vfs"
)

// walFS gives raft-wal its files on a vfs.FS. It differs from raft-wal's own disk
// in two things. A tail that is opened again is synced first (its name was, when the
// metadata was loaded): the process that wrote it may have died before it was, and
// its successor reads and answers for what a power loss would still take. And a
// removal is not synced: raft-wal never uses a name twice, and removes what its
// metadata does not name at the next start.
type walFS struct{ disk vfs.FS }

var _ types.VFS = walFS{}

func (w walFS) ListDir(dir string) ([]string, error) {
	entries, err := w.disk.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (w walFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	if size > math.MaxInt32 {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "log segment of %d bytes: want at most %d", size, math.MaxInt32)
	}
	f, err := w.disk.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR)
	if err != nil {
		return nil, err
	}
	if size > 0 {
		if err := f.Allocate(int64(size)); err != nil {
			f.Close()
			return nil, err
		}
	}
	return &segmentFile{File: f, disk: w.disk, dir: dir}, nil
}

func (w walFS) Delete(dir, name string) error {
	return w.disk.Remove(filepath.Join(dir, name))
}

func (w walFS) OpenReader(dir, name string) (types.ReadableFile, error) {
	return w.disk.OpenFile(filepath.Join(dir, name), os.O_RDONLY)
}

func (w walFS) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := w.disk.OpenFile(filepath.Join(dir, name), os.O_RDWR)
	if err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if canary.Is(canary.SkipFsync) {
		return &segmentFile{File: f}, nil
	}
	return f, nil
}

// segmentFile is a new segment. Its first Sync syncs the directory too.
type segmentFile struct {
	vfs.File
	disk  vfs.FS
	dir   string
	named atomic.Bool // the directory was synced
}

func (f *segmentFile) Sync() error {
	if canary.Is(canary.SkipFsync) {
		return nil
	}
	if err := f.File.Sync(); err != nil {
		return err
	}
	if f.named.Load() {
		return nil
	}
	if err := f.disk.SyncDir(f.dir); err != nil {
		return err
	}
	f.named.Store(true)
	return nil
}
