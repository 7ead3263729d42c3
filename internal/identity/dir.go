package identity

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

const lockName = "LOCK"

// Dir is an open data directory. Safe for concurrent use.
type Dir struct {
	disk vfs.FS
	path string
	lock io.Closer

	mu struct {
		sync.Mutex
		id Identity
	}
}

// Open locks the data directory at dir of disk and reads its identity. It creates the directory if it does
// not exist, and gives an empty directory a new identity.
//
// Errors: CodeIdentity if another process has it open, or if it contains data without an identity;
// CodeCorrupt; CodeVersionTooNew.
func Open(disk vfs.FS, dir string) (*Dir, error) {
	if dir == "" {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "the path of the data directory is empty: set it")
	}
	if err := vfs.MkdirAll(disk, dir); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	lock, err := takeLock(disk, dir)
	if err != nil {
		return nil, err
	}
	d := &Dir{disk: disk, path: dir, lock: lock}
	id, err := load(disk, dir)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.mu.id = id
	return d, nil
}

// Close releases the directory.
func (d *Dir) Close() error { return d.lock.Close() }

// Path returns the directory's path as given to Open.
func (d *Dir) Path() string { return d.path }

// Identity returns the present identity of the directory.
func (d *Dir) Identity() Identity {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := d.mu.id
	id.Founders = slices.Clone(id.Founders)
	return id
}

// Join makes the directory a member of cluster, durably. It returns nil if it already is one, and
// CodeIdentity if it belongs to another cluster.
func (d *Dir) Join(cluster rowraft.ClusterID, founders []Member) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if cluster == "" || len(founders) == 0 {
		return rowraft.Errorf(rowraft.CodeInternal, "join cluster %q with %d founders", cluster, len(founders))
	}
	if d.mu.id.Cluster == cluster {
		return nil
	}
	if err := CheckCluster(d.mu.id.Cluster, cluster); err != nil {
		return fmt.Errorf("data directory %s: %w", d.path, err)
	}
	id := d.mu.id
	id.Cluster = cluster
	id.Founders = slices.SortedFunc(slices.Values(founders),
		func(a, b Member) int { return strings.Compare(string(a.Node), string(b.Node)) })
	if err := store(d.disk, d.path, id); err != nil {
		return err
	}
	d.mu.id = id
	return nil
}

// SetName stores the name that the server has in the cluster, durably.
func (d *Dir) SetName(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.id.Name == name {
		return nil
	}
	id := d.mu.id
	id.Name = name
	if err := store(d.disk, d.path, id); err != nil {
		return err
	}
	d.mu.id = id
	return nil
}

// CheckCluster returns an error if the two clusters differ. Empty means that a server has no cluster yet.
func CheckCluster(mine, theirs rowraft.ClusterID) error {
	if mine == "" || theirs == "" || mine == theirs {
		return nil
	}
	return rowraft.Errorf(rowraft.CodeIdentity, "this server belongs to cluster %s, but the other side to cluster %s",
		mine, theirs)
}

func takeLock(disk vfs.FS, dir string) (io.Closer, error) {
	lock, err := disk.Lock(filepath.Join(dir, lockName))
	if err == nil {
		return lock, nil
	}
	taken, ok := errors.AsType[*vfs.LockedError](err)
	if !ok {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	who := "another process"
	if taken.Owner != "" {
		who = "the process with pid " + taken.Owner
	}
	return nil, &InUseError{rowraft.Errorf(rowraft.CodeIdentity, "data directory %s is in use by %s", dir, who)}
}

// InUseError reports that another process has the data directory. That process may be about to end.
type InUseError struct{ error }

func (e *InUseError) Unwrap() error { return e.error }

// load reads the identity of dir, or creates it if dir contains nothing else.
func load(disk vfs.FS, dir string) (Identity, error) {
	raw, err := vfs.ReadFile(disk, path(dir))
	if err == nil {
		id, err := decode(raw, path(dir))
		if err != nil {
			return Identity{}, err
		}
		return id, keep(disk, dir)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return Identity{}, fmt.Errorf("read the identity: %w", err)
	}
	entries, err := disk.ReadDir(dir)
	if err != nil {
		return Identity{}, fmt.Errorf("data directory: %w", err)
	}
	for _, e := range entries {
		// A temporary file that was never renamed is an identity that was never used.
		if e.Name() != lockName && e.Name() != tempName && e.Name() != "lost+found" {
			return Identity{}, rowraft.Errorf(rowraft.CodeIdentity,
				"data directory %s holds %q but no %s file: it is no directory of rowraft, or it lost its identity; choose an "+
					"empty directory", dir, e.Name(), fileName)
		}
	}
	node := rowraft.NodeID(uuid.NewString())
	id := Identity{Node: node, MetaReplica: MetaReplicaOf(node)}
	return id, store(disk, dir, id)
}

const tempName = fileName + ".new"

// store replaces the identity file of dir atomically and durably.
func store(disk vfs.FS, dir string, id Identity) error {
	raw, err := encode(id)
	if err != nil {
		return err
	}
	err = vfs.WriteFile(disk, filepath.Join(dir, tempName), raw)
	if err == nil {
		err = disk.Rename(filepath.Join(dir, tempName), path(dir))
	}
	if err != nil {
		return fmt.Errorf("write the identity: %w", err)
	}
	return keep(disk, dir)
}

// keep makes the name of the identity file durable. It also runs for an existing file: the process that
// renamed it may have died before it synced the directory.
func keep(disk vfs.FS, dir string) error {
	if err := disk.SyncDir(dir); err != nil {
		return fmt.Errorf("sync the identity: %w", err)
	}
	return nil
}
