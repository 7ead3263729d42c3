package marks

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// Process is one run of a server on its data directory. The zero value means none.
type Process struct {
	Start uint64 // number of the run, from 1; durable before the first message
	Nonce uint64 // random: differs between processes on copies of one directory, which have the same Start
}

// Mark is what a server remembers of a replica, its own replicas included. A replica with less than its mark was
// rolled back.
type Mark struct {
	Index uint64 // highest entry that the replica confirmed and that was committed
	Term  uint64 // highest term in which the replica voted
}

func (m Mark) raised(by Mark) Mark { return Mark{max(m.Index, by.Index), max(m.Term, by.Term)} }

// Store holds what this server remembers of other servers and of the replicas of its groups, in memory and in one file.
// The owner calls Flush every WriteEvery. No push waits for the file: a lost or damaged file only reduces the
// protection. Safe for concurrent use.
//
// Invariant: a mark and the start of a process never decrease while the replica or server is known.
type Store struct {
	disk vfs.FS
	path string

	mu      sync.Mutex // not held across I/O
	content            // guarded by mu
	changed bool       // guarded by mu: since the last Flush began
	version uint64     // guarded by mu: the number of changes
}

// content is the content of the file.
type content struct {
	nodes  map[rowraft.NodeID]Process // last process seen, by node
	groups map[string]map[rowraft.ReplicaID]Mark
}

const (
	// FileName is the name of the file in the directory of the store.
	FileName = "MARKS"
	// WriteEvery bounds how far the file is behind. One file for all groups costs one small write a second, independent
	// of the number of pushes and groups.
	WriteEvery = time.Second
)

// Open reads the file in dir. It logs a damaged file, which the next Flush replaces.
//
// Errors: CodeVersionTooNew; errors of the disk.
func Open(disk vfs.FS, dir string, log *slog.Logger) (*Store, error) {
	m := &Store{disk: disk, path: filepath.Join(dir, FileName)}
	raw, err := vfs.ReadFile(disk, m.path)
	if err == nil {
		m.content, err = decode(raw)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	case rowraft.CodeOf(err) == rowraft.CodeCorrupt:
		log.Warn(
			"the marks of other replicas are damaged and start empty: a disk that was rolled back before now is not found",
			"file", m.path, "err", err)
		err = nil
	case err != nil:
		err = fmt.Errorf("%s: %w", m.path, err)
	}
	if m.nodes == nil {
		m.content = content{map[rowraft.NodeID]Process{}, map[string]map[rowraft.ReplicaID]Mark{}}
	}
	return m, err
}

// RecordProcess records a process of node. Of two with the same start it keeps the first one.
func (m *Store) RecordProcess(node rowraft.NodeID, p Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.Start > m.nodes[node].Start {
		m.nodes[node] = p
		m.noteLocked()
	}
}

// noteLocked records a change.
// REQUIRES: m.mu is held.
func (m *Store) noteLocked() {
	m.changed = true
	m.version++
}

// Version returns a number that increases with every change.
func (m *Store) Version() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.version
}

// Process returns the last process seen of node; zero if none.
func (m *Store) Process(node rowraft.NodeID) Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodes[node]
}

// Raise records what a replica of group confirmed, or the term that it voted in. It lowers nothing.
func (m *Store) Raise(group string, id rowraft.ReplicaID, by Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.groups[group][id]
	now := old.raised(by)
	if now == old {
		return
	}
	if m.groups[group] == nil {
		m.groups[group] = map[rowraft.ReplicaID]Mark{}
	}
	m.groups[group][id] = now
	m.noteLocked()
}

// Of returns the mark of a replica; zero if there is none.
func (m *Store) Of(group string, id rowraft.ReplicaID) Mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.groups[group][id]
}

// Retain deletes the marks of replicas that are no longer members of group.
func (m *Store) Retain(group string, member func(rowraft.ReplicaID) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.groups[group] {
		if !member(id) {
			delete(m.groups[group], id)
			m.noteLocked()
		}
	}
}

// Drop deletes the marks of a group that has left this server.
func (m *Store) Drop(group string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.groups[group] != nil {
		delete(m.groups, group)
		m.noteLocked()
	}
}

// Flush writes the file if anything changed. One goroutine calls it.
func (m *Store) Flush() error {
	m.mu.Lock()
	if !m.changed {
		m.mu.Unlock()
		return nil
	}
	raw := m.content.encode()
	m.changed = false
	m.mu.Unlock()
	err := vfs.ReplaceFile(m.disk, m.path+".tmp", m.path, raw)
	if err != nil {
		m.mu.Lock()
		m.changed = true
		m.mu.Unlock()
	}
	return err
}
