package raftlog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	bolt "go.etcd.io/bbolt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

const (
	boltName = "raft.db"
	boltTemp = "raft.db.new"
)

// boltOwner is the key of the log's owner in the file.
var boltOwner = []byte("Owner")

// boltLog stores a group's log in a file of raft-boltdb, and raft's term and vote in META.
//
// The file may contain pages that a failed fsync left only in memory. The kernel counts these as clean, so a later
// fsync does not write them, and bbolt does not know which pages they are. Therefore a file whose last process did not
// stop cleanly is copied at start. META has the mark of a clean stop; opening META durably removes the mark.
type boltLog struct {
	*metaStore
	db     *raftboltdb.BoltStore
	failed atomic.Bool // a write failed
	closed atomic.Bool
}

var _ Log = (*boltLog)(nil)

// openBoltLog opens or creates the log in dir. bbolt itself uses the operating system's disk; disk is used for the
// rest.
//
// Errors: CodeCorrupt, CodeIdentity, CodeVersionTooNew.
func openBoltLog(disk vfs.FS, dir string, owner Owner, log *slog.Logger) (_ *boltLog, err error) {
	l := &boltLog{metaStore: newMetaStore(disk, owner, log)}
	last, err := l.metaStore.Load(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			if l.db != nil {
				err = errors.Join(err, l.db.Close())
			}
			err = fmt.Errorf("log in %s: %w", dir, errors.Join(err, l.metaStore.Close()))
		}
	}()
	name := filepath.Join(dir, boltName)
	_, statErr := disk.Stat(name)
	fresh := errors.Is(statErr, fs.ErrNotExist)
	switch {
	case statErr != nil && !fresh:
		return nil, statErr
	case !fresh && !last.clean:
		if err := copyBolt(disk, dir, log); err != nil {
			return nil, fmt.Errorf("copy %s, whose last process did not stop cleanly: %w", boltName, err)
		}
	}
	l.db, err = raftboltdb.New(raftboltdb.Options{
		Path: name,
		// The store has locked the directory, so another process that holds this file is a bug: do not wait for it.
		BoltOptions: &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType, NoFreelistSync: true},
	})
	if err != nil {
		return nil, fmt.Errorf("open raft-boltdb: %w", err)
	}
	if fresh {
		if err := l.db.Set(boltOwner, owner.encode()); err != nil {
			return nil, err
		}
		return l, disk.SyncDir(dir)
	}
	return l, l.checkOwner(name)
}

func (l *boltLog) checkOwner(name string) error {
	b, err := l.db.Get(boltOwner)
	found, rest, ok := parseOwner(b)
	if err != nil || !ok || len(rest) > 0 {
		return errors.Join(rowraft.Errorf(rowraft.CodeCorrupt, "%s does not say whose log it is", name), err)
	}
	return l.owner.check(name, found)
}

// copyBolt durably replaces the file with a copy of itself. After that the disk has what the process reads.
func copyBolt(disk vfs.FS, dir string, log *slog.Logger) (err error) {
	begin := time.Now()
	from, err := disk.OpenFile(filepath.Join(dir, boltName), os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	temp := filepath.Join(dir, boltTemp)
	to, err := disk.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY)
	if err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 1<<20))
	if err == nil {
		err = to.Sync()
	}
	if err := errors.Join(err, to.Close()); err != nil {
		return errors.Join(err, disk.Remove(temp))
	}
	if err := disk.Rename(temp, filepath.Join(dir, boltName)); err != nil {
		return err
	}
	log.Info("the last stop was not clean: the log was copied into a new file", "dir", dir, "bytes", n, "took",
		time.Since(begin))
	return disk.SyncDir(dir)
}

// IsMonotonic returns true, so that raft clears the log after it installed a snapshot. raft-boltdb returns false; raft
// then keeps a conflicting entry at the snapshot's index and receives the snapshot forever (hashicorp/raft #697).
func (*boltLog) IsMonotonic() bool { return true }

func (l *boltLog) FirstIndex() (uint64, error)              { return l.db.FirstIndex() }
func (l *boltLog) LastIndex() (uint64, error)               { return l.db.LastIndex() }
func (l *boltLog) GetLog(index uint64, out *raft.Log) error { return l.db.GetLog(index, out) }
func (l *boltLog) StoreLog(e *raft.Log) error               { return l.StoreLogs([]*raft.Log{e}) }
func (l *boltLog) StoreLogs(logs []*raft.Log) error         { return l.wrote(l.db.StoreLogs(logs)) }

// Reclaim does nothing: the file of bbolt keeps its size, and later entries take the place of those that were cut.
func (l *boltLog) Reclaim() error { return nil }

func (l *boltLog) DeleteRange(from, to uint64) error { return l.wrote(l.db.DeleteRange(from, to)) }

// wrote records a failed write: Close then does not mark a clean stop.
func (l *boltLog) wrote(err error) error {
	if err != nil {
		l.failed.Store(true)
	}
	return err
}

// Close closes the log and marks a clean stop in META if all writes succeeded.
func (l *boltLog) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	err := l.db.Close()
	if err == nil && !l.failed.Load() {
		err = l.metaStore.noteCleanStop()
	}
	return errors.Join(err, l.metaStore.Close())
}
