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

// walkEntries bounds how much of a slot is read under one hold of the lock.
const walkEntries = 2048

// Snapshot is the state at one applied index. One goroutine calls WriteTo, at
// most once; Release must be called, from any goroutine once WriteTo has
// returned. Until then the Machine keeps the old image of each row that changes.
type Snapshot struct {
	m        *Machine
	st       *state // what it is a snapshot of
	header   checkpoint.Header
	sessions []checkpoint.Session
	tables   []tableSnapshot // ascending by ID
	digest   rowstore.Digest
	written  bool
	released bool // guarded by m.mu
}

type tableSnapshot struct {
	schema rowraft.Schema
	rows   *rowstore.Table
	snap   *rowstore.Snapshot
}

// Snapshot fixes the present state for WriteTo. It takes microseconds; Apply
// goes on while the rows are written.
//
// Errors: CodeOverloaded if the snapshot before was not released, or a mark is
// expected; *FatalError; CodeClosing.
func (m *Machine) Snapshot() (*Snapshot, error) {
	m.entry.Lock()
	defer m.entry.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.snapshotLocked()
}

// snapshotBusyLocked reports why no snapshot can begin.
// REQUIRES: m.mu is held.
func (m *Machine) snapshotBusyLocked() error {
	switch {
	case m.mu.snapshot != nil:
		return rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: a snapshot is being written", m.shard)
	case m.mu.expected != nil:
		return rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: a checkpoint is about to be taken", m.shard)
	case m.mu.stage != nil:
		return rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: a restore is under way, and no snapshot holds half of one", m.shard)
	}
	return nil
}

// snapshotLocked is Snapshot.
// REQUIRES: m.entry is held, and m.mu for writing.
func (m *Machine) snapshotLocked() (*Snapshot, error) {
	if err := m.usableLocked(); err != nil {
		return nil, err
	}
	if err := m.snapshotBusyLocked(); err != nil {
		return nil, err
	}
	s := &Snapshot{m: m, st: m.mu.state, header: m.header(), sessions: m.mu.sessions.copies()}
	for _, t := range m.mu.tables {
		snap, err := t.rows.BeginSnapshot()
		if err != nil {
			return nil, errors.Join(err, s.endLocked())
		}
		s.tables = append(s.tables, tableSnapshot{t.schema, t.rows, snap})
		s.digest = s.digest.Add(snap.Digest())
	}
	if canary.Is(canary.ForgetSessions) {
		s.sessions = nil
	}
	m.mu.snapshot = s
	return s, nil
}

// Index returns the applied index of the snapshot.
func (s *Snapshot) Index() rowraft.Index { return s.header.Applied }

// Digest is the sum over all rows of the snapshot; Bytes about what WriteRows
// will write.
func (s *Snapshot) Digest() checkpoint.Digest { return s.digest.Bytes() }

func (s *Snapshot) Bytes() int64 {
	n := int64(0)
	for _, t := range s.tables {
		n += int64(t.snap.Rows()) * int64(t.rows.RecordBytes())
	}
	return n
}

// TableSnapshot is what a snapshot holds of one table.
type TableSnapshot struct {
	Schema rowraft.Schema
	Rows   uint64
	Digest checkpoint.Digest
}

// Tables lists them ascending by ID.
func (s *Snapshot) Tables() []TableSnapshot {
	out := make([]TableSnapshot, len(s.tables))
	for i, t := range s.tables {
		out[i] = TableSnapshot{Schema: t.schema, Rows: uint64(t.snap.Rows()), Digest: t.snap.Digest().Bytes()}
	}
	return out
}

// Sums is what each slot holds, as it was counted while entries were applied;
// ascending by (table, slot). It must be called before Release.
func (s *Snapshot) Sums() []checkpoint.SlotSum {
	var out []checkpoint.SlotSum
	for _, t := range s.tables {
		for slot := range rowraft.Slot(rowraft.NumSlots) {
			if counter := t.snap.SlotVersion(slot); counter > 0 {
				out = append(out, checkpoint.SlotSum{
					Table: t.schema.ID, Slot: slot, Rows: uint32(t.snap.SlotRows(slot)), Counter: counter, Digest: t.snap.SlotDigest(slot).Bytes(),
				})
			}
		}
	}
	return out
}

// Release ends the snapshot, written or not. Calling it again does nothing.
func (s *Snapshot) Release() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	// An error can only mean that memory was not given back; the rows are whole.
	_ = s.endLocked()
}

// endLocked drops the images that rowstore keeps for s.
// REQUIRES: m.mu is held for writing.
func (s *Snapshot) endLocked() error {
	if s.released {
		return nil
	}
	s.released = true
	if s.m.mu.state != s.st || s.m.mu.closed {
		return nil // the rows are gone, and the images with them
	}
	s.m.mu.snapshot = nil
	var errs []error
	for _, t := range s.tables {
		errs = append(errs, t.rows.EndSnapshot())
	}
	return errors.Join(errs...)
}

// WriteTo writes the snapshot in the format of docs/formats/snapshot.md.
//
// Errors: that of w; CodeClosing; CodeStarting if a newer snapshot was restored
// meanwhile. What was written is then no snapshot.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) { return s.write(w, s.sessions) }

// WriteRows is WriteTo without sessions: the part of a checkpoint, which they do
// not outlive.
func (s *Snapshot) WriteRows(w io.Writer) (int64, error) { return s.write(w, nil) }

func (s *Snapshot) write(w io.Writer, sessions []checkpoint.Session) (int64, error) {
	if s.written {
		return 0, rowraft.Errorf(rowraft.CodeInternal, "shard %d: a snapshot was written twice", s.m.shard)
	}
	s.written = true
	schemas := make([]rowraft.Schema, len(s.tables))
	for i := range s.tables {
		schemas[i] = s.tables[i].schema
	}
	out, err := checkpoint.NewWriter(w, s.header, schemas, sessions)
	if err != nil {
		return 0, err
	}
	var buf []byte
	for i := range s.tables {
		if buf, err = s.writeTable(out, &s.tables[i], buf); err != nil {
			return out.Bytes(), fmt.Errorf("snapshot table %s: %w", schemas[i].Name, err)
		}
	}
	err = out.Finish(s.digest.Bytes())
	return out.Bytes(), err
}

func (s *Snapshot) writeTable(out *checkpoint.Writer, t *tableSnapshot, buf []byte) ([]byte, error) {
	recordBytes := t.rows.RecordBytes()
	for slot := range rowraft.Slot(rowraft.NumSlots) {
		rows, counter := t.snap.SlotRows(slot), t.snap.SlotVersion(slot)
		if rows == 0 && counter == 0 {
			continue
		}
		err := out.BeginSlot(checkpoint.Slot{Table: t.schema.ID, Slot: slot, Counter: counter, RecordBytes: recordBytes})
		for done := false; err == nil && !done; {
			if buf, done, err = s.walk(t, slot, buf[:0]); err == nil {
				rows -= len(buf) / recordBytes
				err = out.Append(buf)
			}
		}
		if err == nil && rows != 0 {
			err = rowraft.Errorf(rowraft.CodeInternal, "slot %d: %d rows of the snapshot are missing", slot, rows)
		}
		if err != nil {
			return buf, err
		}
	}
	return buf, nil
}

// walk appends the next records of slot to buf.
func (s *Snapshot) walk(t *tableSnapshot, slot rowraft.Slot, buf []byte) (out []byte, done bool, err error) {
	s.m.mu.RLock()
	defer s.m.mu.RUnlock()
	if err := s.m.usableLocked(); err != nil {
		return buf, false, err
	}
	if s.m.mu.state != s.st || s.released {
		return buf, false, rowraft.Errorf(rowraft.CodeStarting, "shard %d restored a newer state", s.m.shard)
	}
	out, done = t.snap.AppendSlot(buf, slot, walkEntries)
	return out, done, nil
}
