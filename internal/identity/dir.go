package identity

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/rowraft/rowraft"
)

const lockName = "LOCK"

// Dir is an open data directory. Safe for concurrent use.
type Dir struct {
	path string
	lock *os.File

	mu struct {
		sync.Mutex
		id Identity
	}
}

// Open locks the data directory at dir, which is created if it does not exist,
// and reads its identity; an empty directory is given a new one.
//
// Errors: CodeIdentity if another process has it open or if it holds data
// without an identity; CodeCorrupt; CodeVersionTooNew.
func Open(dir string) (*Dir, error) {
	if dir == "" {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "no data directory given")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	lock, err := takeLock(dir)
	if err != nil {
		return nil, err
	}
	d := &Dir{path: dir, lock: lock}
	id, err := load(dir)
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

// Identity returns who the directory is now.
func (d *Dir) Identity() Identity {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := d.mu.id
	id.Founders = slices.Clone(id.Founders)
	return id
}

// Join makes the directory a member of cluster, durably. It returns nil if it
// is one already, and CodeIdentity if it belongs to another.
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
	id.Founders = slices.SortedFunc(slices.Values(founders), func(a, b Member) int { return strings.Compare(string(a.Node), string(b.Node)) })
	if err := store(d.path, id); err != nil {
		return err
	}
	d.mu.id = id
	return nil
}

// CheckCluster refuses to mix two clusters; "" is a server that has none yet.
func CheckCluster(mine, theirs rowraft.ClusterID) error {
	if mine == "" || theirs == "" || mine == theirs {
		return nil
	}
	return rowraft.Errorf(rowraft.CodeIdentity, "it belongs to cluster %s, the other side to cluster %s", mine, theirs)
}

func takeLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		owner, _ := io.ReadAll(io.LimitReader(f, 32))
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the data directory %s: %w", dir, err)
		}
		who := "another process"
		if pid := strings.TrimSpace(string(owner)); pid != "" {
			who = "the process with pid " + pid
		}
		return nil, rowraft.Errorf(rowraft.CodeIdentity, "data directory %s is in use by %s", dir, who)
	}
	// The pid is for people; the lock itself lives in the kernel.
	if err := errors.Join(f.Truncate(0), writePID(f)); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the data directory %s: %w", dir, err)
	}
	return f, nil
}

func writePID(f *os.File) error {
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// load reads the identity of dir, or creates it if dir holds nothing else.
func load(dir string) (Identity, error) {
	raw, err := os.ReadFile(path(dir))
	if err == nil {
		return decode(raw, path(dir))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return Identity{}, fmt.Errorf("read the identity: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return Identity{}, fmt.Errorf("data directory: %w", err)
	}
	for _, e := range entries {
		// A new file that was never renamed is a birth that did not happen.
		if e.Name() != lockName && e.Name() != tempName && e.Name() != "lost+found" {
			return Identity{}, rowraft.Errorf(rowraft.CodeIdentity,
				"data directory %s holds %q but no %s file: it is no directory of rowraft, or it lost its identity; choose an empty directory", dir, e.Name(), fileName)
		}
	}
	node := rowraft.NodeID(uuid.NewString())
	id := Identity{Node: node, MetaReplica: MetaReplicaOf(node)}
	return id, store(dir, id)
}

const tempName = fileName + ".new"

// store replaces the identity file of dir atomically and durably.
func store(dir string, id Identity) error {
	raw, err := encode(id)
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, tempName)
	if err := writeSynced(temp, raw); err != nil {
		return fmt.Errorf("write the identity: %w", err)
	}
	if err := os.Rename(temp, path(dir)); err != nil {
		return fmt.Errorf("write the identity: %w", err)
	}
	// The directory's own entry in its parent is new at the first start.
	for _, p := range []string{dir, filepath.Dir(dir)} {
		if err := syncDir(p); err != nil {
			return fmt.Errorf("write the identity: %w", err)
		}
	}
	return nil
}

func writeSynced(name string, raw []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
