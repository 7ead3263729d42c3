package shard

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// ExpectedMark waits for a mark entry, to take a snapshot at its index. It is no
// part of the state: of the replicas of a shard the one that leads has one.
type ExpectedMark struct {
	m  *Machine
	id wire.MarkID

	// guarded by m.mu
	snapshot *Snapshot
	err      error
}

// ExpectMark makes the machine take a snapshot when it applies the mark id. It may
// take those of the log before and beside it.
//
// Errors: CodeOverloaded if another part is being written, another mark is
// expected, or a restore is under way; *FatalError; CodeClosing.
func (m *Machine) ExpectMark(id wire.MarkID) (*ExpectedMark, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(); err != nil {
		return nil, err
	}
	if err := m.snapshotBusyLocked(forPart); err != nil {
		return nil, err
	}
	if m.mu.expected != nil {
		return nil, rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: a checkpoint is about to be taken", m.shard)
	}
	m.mu.expected = &ExpectedMark{m: m, id: id}
	return m.mu.expected, nil
}

// Snapshot returns the snapshot at the mark's index once the mark is applied
// here. The caller releases it.
//
// Errors: CodeLeadershipLost if the mark has not been applied; that of
// Machine.Snapshot.
func (e *ExpectedMark) Snapshot() (*Snapshot, error) {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	s, err := e.snapshot, e.err
	e.snapshot = nil
	if s == nil && err == nil {
		err = rowraft.Errorf(rowraft.CodeLeadershipLost, "shard %d: the mark has not been applied here", e.m.shard)
	}
	return s, err
}

// Cancel ends the expectation, and releases a snapshot that nobody has taken.
// Calling it again does nothing.
func (e *ExpectedMark) Cancel() {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	if e.m.mu.expected == e {
		e.m.mu.expected = nil
	}
	if e.snapshot != nil {
		_ = e.snapshot.endLocked()
		e.snapshot = nil
	}
}

// applyMark applies a mark entry. The snapshot is taken in Apply, when index is
// the applied one.
func (m *Machine) applyMark(h wire.EntryHeader, body []byte, a *Applied) error {
	id, err := wire.ParseMark(body)
	if err != nil {
		return err
	}
	a.mark = &id
	return m.change(h, a, func(*state, uint64) (error, error) {
		m.noteLocked(a.Index)
		return nil, nil
	})
}

// takeMark takes the snapshot that is expected at the mark id.
// REQUIRES: m.entry is held, and the mark is applied.
func (m *Machine) takeMark(id wire.MarkID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.mu.expected
	if e == nil || e.id != id {
		return
	}
	m.mu.expected = nil
	e.snapshot, e.err = m.snapshotLocked(forPart)
}
