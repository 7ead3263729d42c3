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

// boltLog keeps a group's log in a file of raft-boltdb, and raft's term and vote in
// META.
//
// The file may hold pages that a failed fsync left in memory only. The kernel counts
// them as clean, so that a later fsync does not write them. bbolt does not know which
// they are. Therefore a file whose last process did not stop cleanly is copied at
// start. META has the mark of a clean stop; opening META removes it durably.
type boltLog struct {
	*metaStore
	db     *raftboltdb.BoltStore
	failed atomic.Bool // a write failed
	closed atomic.Bool
}

var _ Log = (*boltLog)(nil)

// openBoltLog opens the log in dir, or makes it. bbolt itself uses the operating
// system's disk; disk is for the rest.
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
		// The directory is locked by Open; a second owner is a bug, not a wait.
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

// copyBolt puts a copy of the file in its place, durably. What the process reads
// becomes what the disk holds.
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
	log.Info("the last stop was not clean: the log was copied into a new file", "dir", dir, "bytes", n, "took", time.Since(begin))
	return disk.SyncDir(dir)
}

// IsMonotonic: raft clears the log after it installed a snapshot. raft-boltdb says
// that it is not monotonic; raft then keeps a conflicting entry at the snapshot's
// index and is sent the snapshot forever (hashicorp/raft #697).
func (*boltLog) IsMonotonic() bool { return true }

func (l *boltLog) FirstIndex() (uint64, error)              { return l.db.FirstIndex() }
func (l *boltLog) LastIndex() (uint64, error)               { return l.db.LastIndex() }
func (l *boltLog) GetLog(index uint64, out *raft.Log) error { return l.db.GetLog(index, out) }
func (l *boltLog) StoreLog(e *raft.Log) error               { return l.StoreLogs([]*raft.Log{e}) }
func (l *boltLog) StoreLogs(logs []*raft.Log) error         { return l.wrote(l.db.StoreLogs(logs)) }
func (l *boltLog) DeleteRange(from, to uint64) error        { return l.wrote(l.db.DeleteRange(from, to)) }

// wrote notes an error of a write: the stop is not clean then.
func (l *boltLog) wrote(err error) error {
	if err != nil {
		l.failed.Store(true)
	}
	return err
}

// Close ends the log, and notes in META that all writes succeeded.
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
