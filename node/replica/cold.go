package replica

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
)

// coldDir is the directory with the cold rows of one replica: DIR/cold/shard-N. Its files are scratch. A replica that
// starts removes what the last run left there, and so does the deletion of a replica.
type coldDir struct {
	fs  vfs.FS
	dir string

	mu sync.Mutex
	n  int // files named so far
}

func (h *Host) openColdDir(shard rowraft.ShardID) (*coldDir, error) {
	return &coldDir{fs: vfs.OrOS(h.opts.FS), dir: h.coldDir(shard)}, h.removeColdDir(shard)
}

func (h *Host) coldDir(shard rowraft.ShardID) string {
	return filepath.Join(h.opts.DataDir, "cold", groupName(shard))
}

// removeColdDir removes what a killed server left. REQUIRES: no replica of the shard runs here.
func (h *Host) removeColdDir(shard rowraft.ShardID) error {
	if err := vfs.RemoveAll(vfs.OrOS(h.opts.FS), h.coldDir(shard)); err != nil {
		return fmt.Errorf("shard %d: remove the cold rows of the last run: %w", shard, err)
	}
	return nil
}

// file returns an empty file for the rows of a table. A restore makes a second one while the first is in use.
func (d *coldDir) file(table rowraft.TableID) coldfile.Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n++
	return &coldFile{dir: d, name: filepath.Join(d.dir, fmt.Sprintf("%016x.%d", uint64(table), d.n))}
}

// coldFile is a file that the first write creates, so that a disk without room for it fails as one without room for
// rows does. Close removes it.
type coldFile struct {
	dir  *coldDir
	name string

	mu   sync.Mutex
	file vfs.File
}

func (f *coldFile) open() (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil {
		return f.file, nil
	}
	err := vfs.MkdirAll(f.dir.fs, f.dir.dir)
	if err == nil {
		f.file, err = f.dir.fs.OpenFile(f.name, os.O_CREATE|os.O_TRUNC|os.O_RDWR)
	}
	return f.file, err
}

func (f *coldFile) ReadAt(b []byte, at int64) (int, error) {
	file, err := f.open()
	if err != nil {
		return 0, err
	}
	return file.ReadAt(b, at)
}

func (f *coldFile) WriteAt(b []byte, at int64) (int, error) {
	file, err := f.open()
	if err != nil {
		return 0, err
	}
	return file.WriteAt(b, at)
}

// Close must not run concurrently with the other methods.
func (f *coldFile) Close() error {
	if f.file == nil {
		return nil
	}
	return errors.Join(f.file.Close(), f.dir.fs.Remove(f.name))
}
