package vfs

import (
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrCrashed is the error of every operation on a disk after its machine crashed: a process that still runs
// belongs to the time before the crash.
var ErrCrashed = errors.New("the machine of this disk crashed")

// Mem is a disk in memory that records what was synced. Crash returns the disk after a power loss, Kill the
// disk after the death of the process. Safe for concurrent use; it starts no goroutine, and no operation
// waits.
//
// Paths start at one root, with or without a leading slash. A rename must stay in its directory.
type Mem struct {
	mu struct {
		sync.Mutex
		root    *memNode
		down    bool
		locks   map[*memNode]bool
		limit   int64 // 0: none
		used    int64 // bytes of linked or open files
		refused int   // writes that failed because of limit
		handles int
	}
}

// memNode is a file or a directory. Guarded by the mutex of its Mem.
type memNode struct {
	dir bool

	// The state that the process sees. A file has zeros from len(data) to size.
	entries map[string]*memNode
	data    []byte
	size    int64

	// The state at the last sync, and the changes since, in order.
	syncedEntries map[string]*memNode
	synced        []byte
	syncedSize    int64
	changes       []memChange

	linked bool
	opens  int
}

// memChange is one change of a node since its last sync.
type memChange struct {
	// For a directory: name is now node, nil if it was removed; removed was removed too.
	name, removed string
	node          *memNode
	// For a file: the bytes that were written at offset, or, if resized is set, a change of its length.
	// size is the length afterwards.
	data    []byte
	offset  int64
	size    int64
	resized bool
	// A sync failed after this change: the process can read it, but no later sync writes it.
	lost bool
}

// NewMem returns an empty disk.
func NewMem() *Mem {
	m := &Mem{}
	m.mu.root = newMemDir()
	m.mu.root.linked = true
	m.mu.locks = map[*memNode]bool{}
	return m
}

func newMemDir() *memNode {
	return &memNode{dir: true, entries: map[string]*memNode{}, syncedEntries: map[string]*memNode{}}
}

// Limit limits the bytes of all files on the disk; 0 means no limit. Existing bytes stay.
func (m *Mem) Limit(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.limit = bytes
}

// Refused returns how many writes have failed because of the limit.
func (m *Mem) Refused() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.refused
}

// Used returns how many bytes the files of the disk have.
func (m *Mem) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.used
}

// Stop crashes the machine: from now on every operation fails with ErrCrashed.
func (m *Mem) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.down = true
}

// Open returns the number of open files, including locks.
func (m *Mem) Open() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.handles
}

func pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// split splits name into the names below the root.
func split(name string) []string {
	clean := strings.TrimPrefix(filepath.ToSlash(filepath.Clean(name)), "/")
	if clean == "." || clean == "" {
		return nil
	}
	return strings.Split(clean, "/")
}

// findLocked returns the node called name.
func (m *Mem) findLocked(name string) (*memNode, error) {
	if m.mu.down {
		return nil, ErrCrashed
	}
	n := m.mu.root
	for _, part := range split(name) {
		if !n.dir {
			return nil, syscall.ENOTDIR
		}
		if n = n.entries[part]; n == nil {
			return nil, syscall.ENOENT
		}
	}
	return n, nil
}

// parentLocked returns the directory of name.
func (m *Mem) parentLocked(name string) (dir *memNode, base string, err error) {
	parts := split(name)
	if len(parts) == 0 {
		return nil, "", syscall.EINVAL
	}
	dir, err = m.findLocked(strings.Join(parts[:len(parts)-1], "/"))
	if err == nil && !dir.dir {
		err = syscall.ENOTDIR
	}
	return dir, parts[len(parts)-1], err
}

// change applies c to the entries of the directory n.
func (n *memNode) change(c memChange) {
	n.changes = append(n.changes, c)
	applyEntry(n.entries, c)
}

func applyEntry(entries map[string]*memNode, c memChange) {
	if c.removed != "" {
		delete(entries, c.removed)
	}
	if c.node != nil {
		entries[c.name] = c.node
	}
}

// Mkdir implements FS.
func (m *Mem) Mkdir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	up, base, err := m.parentLocked(dir)
	if err == nil && up.entries[base] != nil {
		err = syscall.EEXIST
	}
	if err != nil {
		return pathError("mkdir", dir, err)
	}
	n := newMemDir()
	n.linked = true
	up.change(memChange{name: base, node: n})
	return nil
}

// OpenFile implements FS.
func (m *Mem) OpenFile(name string, flag int) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.openLocked(name, flag)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return f, nil
}

func (m *Mem) openLocked(name string, flag int) (*memFile, error) {
	up, base, err := m.parentLocked(name)
	if err != nil {
		return nil, err
	}
	n := up.entries[base]
	switch {
	case n == nil && flag&os.O_CREATE == 0:
		return nil, syscall.ENOENT
	case n == nil:
		n = &memNode{linked: true}
		up.change(memChange{name: base, node: n})
	case flag&os.O_CREATE != 0 && flag&os.O_EXCL != 0:
		return nil, syscall.EEXIST
	case n.dir:
		return nil, syscall.EISDIR
	case flag&os.O_TRUNC != 0 && n.size > 0:
		m.resizeLocked(n, 0)
	}
	n.opens++
	m.mu.handles++
	return &memFile{disk: m, node: n, name: name, flag: flag}, nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	up, base, err := m.parentLocked(name)
	if err != nil {
		return pathError("remove", name, err)
	}
	n := up.entries[base]
	switch {
	case n == nil:
		return pathError("remove", name, syscall.ENOENT)
	case n.dir && len(n.entries) > 0:
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	up.change(memChange{removed: base})
	m.unlinkLocked(n)
	return nil
}

func (m *Mem) unlinkLocked(n *memNode) {
	n.linked = false
	if n.opens == 0 {
		m.mu.used -= n.size
	}
}

// Rename implements FS.
func (m *Mem) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	up, base, err := m.parentLocked(from)
	if err != nil {
		return pathError("rename", from, err)
	}
	target, name, err := m.parentLocked(to)
	if err != nil {
		return pathError("rename", to, err)
	}
	n, old := up.entries[base], target.entries[name]
	switch {
	case n == nil:
		err = syscall.ENOENT
	case up != target:
		err = syscall.EXDEV
	case old == n:
		return nil
	case old != nil && old.dir != n.dir:
		err = syscall.EISDIR
	case old != nil && old.dir && len(old.entries) > 0:
		err = syscall.ENOTEMPTY
	}
	if err != nil {
		return pathError("rename", from, err)
	}
	up.change(memChange{removed: base, name: name, node: n})
	if old != nil {
		m.unlinkLocked(old)
	}
	return nil
}

// ReadDir implements FS.
func (m *Mem) ReadDir(dir string) ([]fs.DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.findLocked(dir)
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, pathError("readdir", dir, err)
	}
	out := make([]fs.DirEntry, 0, len(n.entries))
	for name, e := range n.entries {
		out = append(out, fs.FileInfoToDirEntry(e.info(name)))
	}
	slices.SortFunc(out, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return out, nil
}

// Stat implements FS.
func (m *Mem) Stat(name string) (fs.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.findLocked(name)
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return n.info(filepath.Base(name)), nil
}

// SyncDir implements FS.
func (m *Mem) SyncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.findLocked(dir)
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return pathError("sync", dir, err)
	}
	for _, c := range n.changes {
		applyEntry(n.syncedEntries, c)
	}
	n.changes = nil
	return nil
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.openLocked(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, pathError("lock", name, err)
	}
	if m.mu.locks[f.node] {
		m.closeLocked(f)
		return nil, &LockedError{Name: name}
	}
	m.mu.locks[f.node] = true
	return &memLock{f}, nil
}

// memLock holds the lock on its file.
type memLock struct{ *memFile }

func (l *memLock) Close() error {
	l.disk.mu.Lock()
	if !l.closed {
		delete(l.disk.mu.locks, l.node)
	}
	l.disk.mu.Unlock()
	return l.memFile.Close()
}

// Free implements FS. A disk without a limit has an exabyte of free space.
func (m *Mem) Free(dir string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.findLocked(dir); err != nil {
		return 0, pathError("statfs", dir, err)
	}
	if m.mu.limit == 0 {
		return math.MaxInt64 >> 3, nil
	}
	return max(0, m.mu.limit-m.mu.used), nil
}

// info describes n under name.
func (n *memNode) info(name string) fs.FileInfo { return memInfo{name, n.size, n.dir} }

type memInfo struct {
	name string
	size int64
	dir  bool
}

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) ModTime() time.Time { return time.Time{} }
func (i memInfo) IsDir() bool        { return i.dir }
func (i memInfo) Sys() any           { return nil }
func (i memInfo) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o700
	}
	return 0o600
}
