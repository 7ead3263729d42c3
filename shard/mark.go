package shard

import (
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// ExpectedMark waits for a mark entry. Apply takes a snapshot at its index. It is not
// part of the replicated state: only the leader of the shard has one.
type ExpectedMark struct {
	m  *Machine
	id wire.MarkID

	// guarded by m.mu
	snapshot *Snapshot
	err      error
}

// ExpectMark makes the machine take a snapshot when it applies the mark id. Snapshots for the
// Raft log remain possible before and after that.
//
// Errors: CodeOverloaded if MaxParts parts of checkpoints are being written or expected, or a
// restore is running; *FatalError; CodeClosing.
func (m *Machine) ExpectMark(id wire.MarkID) (*ExpectedMark, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.mu.usable(); err != nil {
		return nil, err
	}
	if err := m.mu.cuts.busy(forCheckpoint, m.shard, m.mu.stage); err != nil {
		return nil, err
	}
	if n := len(m.mu.cuts.expected); n > 0 && n+m.mu.cuts.count(forCheckpoint) >= MaxParts {
		return nil, rowraft.Errorf(rowraft.CodeOverloaded,
			"shard %d: %d checkpoints wait for their mark; the limit of checkpoints in progress is %d",
			m.shard, n, MaxParts)
	}
	e := &ExpectedMark{m: m, id: id}
	m.mu.cuts.expected = append(m.mu.cuts.expected, e)
	return e, nil
}

// Snapshot returns the snapshot at the mark's index once the mark is applied
// here. The caller must release it.
//
// Errors: CodeLeadershipLost if the mark has not been applied; the errors of
// Machine.Snapshot.
func (e *ExpectedMark) Snapshot() (*Snapshot, error) {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	s, err := e.snapshot, e.err
	e.snapshot = nil
	if s == nil && err == nil {
		err = rowraft.Errorf(rowraft.CodeLeadershipLost,
			"shard %d: this replica has not applied the mark of the checkpoint", e.m.shard)
	}
	return s, err
}

// Cancel stops waiting, and releases the snapshot if Snapshot was not called.
// A second call does nothing.
func (e *ExpectedMark) Cancel() {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	e.m.mu.cuts.expected = slices.DeleteFunc(e.m.mu.cuts.expected, func(o *ExpectedMark) bool { return o == e })
	if e.snapshot != nil {
		_ = e.snapshot.endLocked()
		e.snapshot = nil
	}
}

// applyMark applies a mark entry. Apply takes the snapshot afterwards, when index is
// the applied index.
func (m *Machine) applyMark(h wire.EntryHeader, body []byte, a *Applied) error {
	id, err := wire.ParseMark(body)
	if err != nil {
		return err
	}
	a.mark = &id
	return m.change(h, a, func(uint64) (error, error) {
		m.Rounds.record(a.Index, m.mu.tables)
		return nil, nil
	})
}

// takeMark takes the snapshot that is expected at the mark id, if there is one.
// REQUIRES: m.applyMu is held, and the mark is applied.
func (m *Machine) takeMark(id wire.MarkID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.mu.cuts.expected, func(e *ExpectedMark) bool { return e.id == id })
	if i < 0 {
		return
	}
	e := m.mu.cuts.expected[i]
	m.mu.cuts.expected = slices.Delete(m.mu.cuts.expected, i, i+1)
	e.snapshot, e.err = m.snapshotLocked(forCheckpoint)
}
