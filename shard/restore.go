package shard

import (
	"errors"
	"fmt"
	"io"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/shard/rowstore"
)

// Restore replaces the state by the snapshot in r. It builds the new state separately
// and verifies checksums, order, counts and the digest of the rows before it
// replaces the old one. Until then, and after an error, the Machine is unchanged. Restore clears a
// fatal error.
//
// Errors: CodeCorrupt; CodeVersionTooNew; CodeIdentity if r is a snapshot of another shard;
// CodeWrongShard if a row is in a slot that this shard does not hold; CodeClosing; errors of r.
func (m *Machine) Restore(r io.Reader) error {
	rd, err := checkpoint.NewReader(r)
	if err != nil {
		return err
	}
	h := rd.Header()
	if h.Shard != m.shard {
		return rowraft.Errorf(rowraft.CodeIdentity, "restore shard %d: the snapshot belongs to shard %d", m.shard, h.Shard)
	}
	if h.Delta {
		return rowraft.Errorf(rowraft.CodeCorrupt, "restore shard %d: the stream is a delta, which does not have all rows",
			m.shard)
	}
	if canary.Is(canary.RestoreInPlace) {
		return m.restoreInPlace(rd)
	}
	st, err := m.build(rd)
	if err != nil {
		return fmt.Errorf("restore shard %d: %w", m.shard, errors.Join(err, st.close()))
	}

	m.applyMu.Lock()
	defer m.applyMu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return errors.Join(rowraft.Errorf(rowraft.CodeClosing, "shard %d is closed", m.shard), st.close())
	}
	if m.mu.fenced != nil {
		return errors.Join(m.mu.fenced, st.close()) // its disk and rows are kept as evidence
	}
	_ = m.dropStageLocked() // the snapshot contains no stage: none is taken during a restore
	m.resetDigestsLocked()
	m.mu.snapshots, m.mu.failed = nil, nil
	// An error only means that the system did not take back memory. The new state is valid.
	_ = m.replaceLocked(st, func() {
		m.logTime.Store(h.LogTime)
		m.epoch.Store(uint64(h.Epoch))
		m.applied.Store(uint64(h.Applied))
	})
	return nil
}

// restoreInPlace implements the sabotage canary.RestoreInPlace: after an error, readers and later
// entries use the part of the snapshot that was read before it.
func (m *Machine) restoreInPlace(rd *checkpoint.Reader) error {
	m.applyMu.Lock()
	defer m.applyMu.Unlock()
	m.mu.Lock()
	m.mu.snapshots = nil
	closed := m.replaceLocked(&state{}, func() {})
	m.mu.Unlock()
	st, err := m.build(rd)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.mu.failed = nil
	}
	h := rd.Header()
	_ = m.replaceLocked(st, func() {
		if err == nil {
			m.logTime.Store(h.LogTime)
			m.epoch.Store(uint64(h.Epoch))
			m.applied.Store(uint64(h.Applied))
		}
	})
	if err != nil {
		return fmt.Errorf("restore shard %d: %w", m.shard, errors.Join(err, closed))
	}
	return closed
}

// build reads all of rd into a new state. The state is not nil even if there is
// an error, so that the caller can free it.
func (m *Machine) build(rd *checkpoint.Reader) (*state, error) {
	st := &state{}
	names := map[string]bool{}
	for _, s := range rd.Tables() {
		if s.ID == 0 || names[s.Name] || len(st.tables) >= MaxTables {
			return st, rowraft.Errorf(rowraft.CodeCorrupt,
				"the snapshot has an impossible table %q: its id is 0, its name is not unique, or it is beyond the limit of "+
					"%d tables", s.Name, MaxTables)
		}
		names[s.Name] = true
		if _, err := st.addTable(s, m.owned); err != nil {
			return st, err
		}
	}
	if n := len(rd.Sessions()); n > MaxSessions {
		return st, rowraft.Errorf(rowraft.CodeCorrupt, "the snapshot has %d sessions: want at most %d", n, MaxSessions)
	}
	for _, s := range rd.Sessions() {
		st.sessions = append(st.sessions, &s) // rd has checked the order
	}
	st.ended.restore(rd.Ended())
	for _, j := range rd.Jobs() {
		st.jobs = append(st.jobs, &j) // rd has checked the order
	}
	for {
		b, err := rd.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return st, err
		}
		if err := st.addRows(&b); err != nil {
			return st, err
		}
		if err := st.table(b.Table).rows.RestoreSlotVersion(b.Slot.Slot, b.Counter, b.Removed); err != nil {
			return st, err
		}
	}
	want := rowstore.DigestOf(rd.Trailer().Digest)
	if sum, _ := st.digest(); sum != want {
		return st, rowraft.Errorf(rowraft.CodeCorrupt, "the rows have digest %s, but the snapshot states %s", sum, want)
	}
	return st, nil
}

// addRows adds the rows or the candidates of one block. The caller then sets the counter of the slot.
func (st *state) addRows(b *checkpoint.Block) error {
	t := st.table(b.Table)
	if t != nil && b.Candidates != nil {
		return t.rows.RestoreCandidates(b.Slot.Slot, b.Candidates)
	}
	if t == nil || b.RecordBytes != t.rows.RecordBytes() {
		return rowraft.Errorf(rowraft.CodeCorrupt,
			"slot %d has records of %d bytes for table %#x, which does not match the tables of the snapshot",
			b.Slot.Slot, b.RecordBytes, uint64(b.Table))
	}
	before := t.rows.SlotRows(b.Slot.Slot)
	for rec := b.Records; len(rec) > 0; rec = rec[b.RecordBytes:] {
		if err := t.rows.RestoreRow(rec[:b.RecordBytes]); err != nil {
			return err
		}
	}
	if got := t.rows.SlotRows(b.Slot.Slot) - before; got != b.Rows {
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: only %d of the %d rows of slot %d belong to it",
			t.schema.Name, got, b.Rows, b.Slot.Slot)
	}
	return nil
}
