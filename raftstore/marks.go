package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// process is one run of a server on its data directory. start counts the runs, from 1, and is durable before the first
// message. nonce is random: two processes on copies of one directory have the same start and different nonces. The zero
// value means none.
type process struct{ start, nonce uint64 }

// mark is what a server remembers of a replica, including its own ones. A replica with less than its mark was rolled
// back (DESIGN.md, "Rolled back disks").
type mark struct {
	index uint64 // highest entry that the replica confirmed and that was committed
	term  uint64 // highest term in which the replica voted
}

func (m mark) raised(by mark) mark { return mark{max(m.index, by.index), max(m.term, by.term)} }

// marks holds what this server remembers of other servers and of the replicas of its groups, in memory and in one file
// (docs/formats/marks.md). The file is at most marksEvery behind. A lost or damaged file only reduces the protection.
// Safe for concurrent use.
type marks struct {
	disk vfs.FS
	path string

	mu sync.Mutex
	marksFile
	changed bool // since the last flush began
}

// marksFile is the content of the file.
type marksFile struct {
	nodes  map[rowraft.NodeID]process // last process seen, by node
	groups map[string]map[rowraft.ReplicaID]mark
}

const (
	marksName = "MARKS"
	// marksEvery bounds how far the file is behind. One file for all groups costs one small write a second, independent
	// of the number of pushes and groups.
	marksEvery = time.Second
)

// openMarks reads the file in dir. It logs a damaged file, which the next flush replaces.
// Errors: CodeVersionTooNew; errors of the disk.
func openMarks(disk vfs.FS, dir string, log *slog.Logger) (*marks, error) {
	m := &marks{disk: disk, path: filepath.Join(dir, marksName)}
	raw, err := vfs.ReadFile(disk, m.path)
	if err == nil {
		m.marksFile, err = decodeMarks(raw)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	case rowraft.CodeOf(err) == rowraft.CodeCorrupt:
		log.Warn("the marks of other replicas are damaged and start empty: a disk that was rolled back before now is not found", "file", m.path, "err", err)
		err = nil
	case err != nil:
		err = fmt.Errorf("%s: %w", m.path, err)
	}
	if m.nodes == nil {
		m.marksFile = marksFile{map[rowraft.NodeID]process{}, map[string]map[rowraft.ReplicaID]mark{}}
	}
	return m, err
}

// see records a process of node. Of two with the same start it keeps the first one.
func (m *marks) see(node rowraft.NodeID, p process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.start > m.nodes[node].start {
		m.nodes[node], m.changed = p, true
	}
}

// process returns the last process seen of node.
func (m *marks) process(node rowraft.NodeID) process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodes[node]
}

// raise records what a replica of group confirmed or voted in.
func (m *marks) raise(group string, id rowraft.ReplicaID, by mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.groups[group][id]
	now := old.raised(by)
	if now == old {
		return
	}
	if m.groups[group] == nil {
		m.groups[group] = map[rowraft.ReplicaID]mark{}
	}
	m.groups[group][id], m.changed = now, true
}

// of returns the mark of a replica.
func (m *marks) of(group string, id rowraft.ReplicaID) mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.groups[group][id]
}

// keep deletes the marks of replicas that are no longer members of group.
func (m *marks) keep(group string, member func(rowraft.ReplicaID) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.groups[group] {
		if !member(id) {
			delete(m.groups[group], id)
			m.changed = true
		}
	}
}

// drop deletes the marks of a group that has left this server.
func (m *marks) drop(group string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.groups[group] != nil {
		delete(m.groups, group)
		m.changed = true
	}
}

// flush writes the file if anything changed.
func (m *marks) flush() error {
	m.mu.Lock()
	if !m.changed {
		m.mu.Unlock()
		return nil
	}
	raw := m.marksFile.encode()
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

// keepMarks writes the file every marksEvery until the store closes, and once more at the end.
func (s *Store) keepMarks() {
	defer close(s.marksKept)
	t := time.NewTicker(marksEvery)
	defer t.Stop()
	for failing := false; ; {
		ended := false
		select {
		case <-t.C:
		case <-s.stop:
			ended = true
		}
		s.pruneMarks()
		err := s.marks.flush()
		if err != nil && !failing {
			s.opts.Logger.Warn("the marks of other replicas cannot be written: after a restart this server may not find a disk that was rolled back", "err", err)
		}
		if failing = err != nil; ended {
			return
		}
	}
}

// pruneMarks deletes the marks of replicas that have left their groups.
func (s *Store) pruneMarks() {
	s.mu.Lock()
	groups := maps.Clone(s.mu.groups)
	s.mu.Unlock()
	for id, g := range groups {
		if g == nil {
			continue
		}
		n, c := g.run.Load(), g.fsm.members.Load()
		if n == nil || c == nil {
			continue
		}
		member := map[rowraft.ReplicaID]bool{g.cfg.Replica: true}
		for _, srv := range c.servers {
			member[rowraft.ReplicaID(srv.ID)] = true
		}
		for _, srv := range n.raft.GetConfiguration().Configuration().Servers {
			member[rowraft.ReplicaID(srv.ID)] = true
		}
		s.marks.keep(id, func(r rowraft.ReplicaID) bool { return member[r] })
	}
}
