package shard

import (
	"slices"

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
// Errors: CodeOverloaded if MaxParts parts are being written or their marks expected, or a restore is under way;
// *FatalError; CodeClosing.
func (m *Machine) ExpectMark(id wire.MarkID) (*ExpectedMark, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(); err != nil {
		return nil, err
	}
	if err := m.snapshotBusyLocked(forPart); err != nil {
		return nil, err
	}
	if n := len(m.mu.expected); n > 0 && n+m.snapshotsLocked(forPart) >= MaxParts {
		return nil, rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: %d checkpoints are about to be cut, and the limit of those with a part here is %d", m.shard, n, MaxParts)
	}
	e := &ExpectedMark{m: m, id: id}
	m.mu.expected = append(m.mu.expected, e)
	return e, nil
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
	e.m.mu.expected = slices.DeleteFunc(e.m.mu.expected, func(o *ExpectedMark) bool { return o == e })
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
	i := slices.IndexFunc(m.mu.expected, func(e *ExpectedMark) bool { return e.id == id })
	if i < 0 {
		return
	}
	e := m.mu.expected[i]
	m.mu.expected = slices.Delete(m.mu.expected, i, i+1)
	e.snapshot, e.err = m.snapshotLocked(forPart)
}
