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
// Errors: CodeOverloaded if the snapshot before was not released; *FatalError;
// CodeClosing.
func (m *Machine) Snapshot() (*Snapshot, error) {
	m.entry.Lock()
	defer m.entry.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(); err != nil {
		return nil, err
	}
	if m.mu.snapshot != nil {
		return nil, rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: a snapshot is being written", m.shard)
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
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	if s.written {
		return 0, rowraft.Errorf(rowraft.CodeInternal, "shard %d: a snapshot was written twice", s.m.shard)
	}
	s.written = true
	schemas := make([]rowraft.Schema, len(s.tables))
	for i := range s.tables {
		schemas[i] = s.tables[i].schema
	}
	out, err := checkpoint.NewWriter(w, s.header, schemas, s.sessions)
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
