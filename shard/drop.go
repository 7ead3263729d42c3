package shard

import (
	"cmp"
	"errors"
	"slices"

	"github.com/rowraft/rowraft"
)

// dropTable removes a table from the state, if it exists. A goroutine frees its memory: at once,
// or when the last running snapshot that reads the table ends.
// REQUIRES: m.applyMu is held, and m.mu for writing.
func (m *Machine) dropTable(id rowraft.TableID) {
	st := m.mu.state
	i := slices.IndexFunc(st.tables, func(t *table) bool { return t.schema.ID == id })
	if i < 0 {
		return
	}
	t := st.tables[i]
	st.tables = slices.Delete(slices.Clone(st.tables), i, i+1)
	st.dropped = append(st.dropped, t)
	m.freeDroppedLocked()
}

// replaceTables adds tables and drops the present tables with the same names.
// REQUIRES: m.applyMu is held, and m.mu for writing.
func (m *Machine) replaceTables(tables []*table) {
	st := m.mu.state
	next := slices.Clone(tables)
	for _, t := range st.tables {
		if slices.ContainsFunc(tables, func(n *table) bool { return n.schema.Name == t.schema.Name }) {
			st.dropped = append(st.dropped, t)
			continue
		}
		next = append(next, t)
	}
	slices.SortFunc(next, func(a, b *table) int { return cmp.Compare(a.schema.ID, b.schema.ID) })
	st.tables = next
	m.freeDroppedLocked()
}

// freeDroppedLocked frees the memory of the dropped tables that no running
// snapshot reads.
// REQUIRES: m.mu is held for writing.
func (m *Machine) freeDroppedLocked() {
	var free []*table
	m.mu.dropped = slices.DeleteFunc(m.mu.dropped, func(t *table) bool {
		for _, s := range m.mu.snapshots {
			if s.reads(t) {
				return false
			}
		}
		free = append(free, t)
		return true
	})
	if len(free) == 0 {
		return
	}
	m.publishLocked()
	m.freeing.Go(func() {
		// Pulls that found the table in an earlier view first end their chunk.
		m.readers.Lock()
		m.readers.Unlock() //lint:ignore SA2001 the lock waits for present readers
		for _, t := range free {
			// An error only means that the system did not take back memory. The table is no longer used.
			_ = t.rows.Close()
		}
	})
}

// reads reports whether s reads the rows of t.
func (s *Snapshot) reads(t *table) bool {
	return slices.ContainsFunc(s.tables, func(o tableSnapshot) bool { return o.rows == t.rows })
}

// closeTables frees the rows of tables.
func closeTables(tables []*table) error {
	var errs []error
	for _, t := range tables {
		errs = append(errs, t.rows.Close())
	}
	return errors.Join(errs...)
}
