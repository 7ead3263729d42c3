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

// process is one run of a server on its data directory. start counts the runs, from 1, and is
// durable before the first message. nonce is random: two processes that run on copies of one
// directory have the same start and different nonces. The zero process is none.
type process struct{ start, nonce uint64 }

// mark is what a server remembers of a replica, its own included. A replica whose disk is older
// than its mark was rolled back (DESIGN.md, "Rolled back disks").
type mark struct {
	index uint64 // highest entry that the replica confirmed and that was committed
	term  uint64 // last term that the replica voted in
}

func (m mark) raised(by mark) mark { return mark{max(m.index, by.index), max(m.term, by.term)} }

// marks are what this server remembers of other servers and of the replicas of its groups, in
// memory and in one file (docs/formats/marks.md). The file trails by marksEvery, and a file that
// is lost or damaged costs protection only. Safe for concurrent use.
type marks struct {
	disk vfs.FS
	path string

	mu sync.Mutex
	marksFile
	changed bool // since the last flush began
}

// marksFile is the content of the file.
type marksFile struct {
	nodes  map[rowraft.NodeID]process // last one seen of each
	groups map[string]map[rowraft.ReplicaID]mark
}

const (
	marksName = "MARKS"
	// marksEvery is how far the file may trail behind. One file for all groups keeps the price
	// at one small write a second, whatever the number of pushes and of groups.
	marksEvery = time.Second
)

// openMarks reads the file of dir. One that is damaged is reported and replaced by the next flush.
// Errors: CodeVersionTooNew; what the disk says.
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

// see notes a process of node. Of two with the same start the first one counts.
func (m *marks) see(node rowraft.NodeID, p process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.start > m.nodes[node].start {
		m.nodes[node], m.changed = p, true
	}
}

// process returns the last process that was seen of node.
func (m *marks) process(node rowraft.NodeID) process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodes[node]
}

// raise notes what a replica of group confirmed or voted in.
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

// keep drops the marks of the replicas of group that are no members any more.
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

// drop forgets a group that has left this server.
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

// keepMarks writes the file until the store closes, and once more then.
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

// pruneMarks forgets replicas that have left their groups.
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
