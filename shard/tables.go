package shard

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/shard/rowstore"
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
)

// tableSet is the tables of a shard. Machine.mu guards it; a changed address means that a restore has replaced the
// state.
//
// Invariants: list ascends by ID, and neither an ID nor a name is there twice. A table of dropped is read by a running
// snapshot; it is not part of a new one.
type tableSet struct{ list, dropped []*table }

// table is a table of the shard. All fields are immutable and need no lock. Readers of rows
// must hold readers.
type table struct {
	schema rowraft.Schema
	seed   uint64 // clustermap.TableSeed
	rows   *rowstore.Table
}

// get returns the table, or nil if it does not exist.
func (ts *tableSet) get(id rowraft.TableID) *table { return findTable(ts.list, id) }

// findTable searches tables, which ascend by ID.
func findTable(tables []*table, id rowraft.TableID) *table {
	i, ok := slices.BinarySearchFunc(tables, id, func(t *table, id rowraft.TableID) int {
		switch {
		case t.schema.ID < id:
			return -1
		case t.schema.ID > id:
			return 1
		}
		return 0
	})
	if !ok {
		return nil
	}
	return tables[i]
}

func (ts *tableSet) schemas() []rowraft.Schema {
	out := make([]rowraft.Schema, len(ts.list))
	for i, t := range ts.list {
		out[i] = t.schema
	}
	return out
}

func (ts *tableSet) digest() (sum rowstore.Digest, rows uint64) {
	for _, t := range ts.list {
		sum = sum.Add(t.rows.Digest())
		rows += uint64(t.rows.Rows())
	}
	return sum, rows
}

// tableMaker makes the rows of tables. It is immutable.
type tableMaker struct {
	owned *slotSet
	tier  *coldfile.Dir // of Config
}

// rows makes the rows of a table. With ref, they continue those of a file.
func (m *tableMaker) rows(s rowraft.Schema, ref *rowstore.TierRef) (*rowstore.Table, error) {
	o := rowstore.Options{Schema: s, Slots: m.owned.count, Owned: m.owned.has, TierRef: ref}
	switch {
	case ref != nil && (s.Memory == 0 || m.tier == nil):
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "the snapshot refers to rows in a file, and the table has none")
	case ref != nil:
		disk, err := m.tier.Open(s.ID, ref.File.ID)
		if err != nil {
			return nil, err
		}
		o.Tier, o.TierID = disk, ref.File.ID
	case s.Memory > 0 && m.tier != nil:
		o.TierID = coldfile.NewID()
		o.Tier = m.tier.Create(s.ID, o.TierID)
	}
	rows, err := rowstore.New(o)
	if err != nil && o.Tier != nil {
		err = errors.Join(err, o.Tier.Close())
	}
	return rows, err
}

// add adds an empty table. REQUIRES: neither its ID nor its name is taken.
func (ts *tableSet) add(s rowraft.Schema, maker *tableMaker) (*table, error) {
	return ts.addFrom(s, maker, nil)
}

// addFrom is add for a table that continues the rows of a file, unless ref is nil.
func (ts *tableSet) addFrom(s rowraft.Schema, maker *tableMaker, ref *rowstore.TierRef) (*table, error) {
	rows, err := maker.rows(s, ref)
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", s.Name, err)
	}
	t := &table{schema: s, seed: clustermap.TableSeed(s.ID), rows: rows}
	at := 0
	for at < len(ts.list) && ts.list[at].schema.ID < s.ID {
		at++
	}
	ts.list = slices.Insert(ts.list, at, t)
	return t, nil
}

func (ts *tableSet) create(s rowraft.Schema, maker *tableMaker) (result, fatal error) {
	if s.ID == 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s has no id", s.Name), nil
	}
	for _, t := range ts.list {
		switch {
		case t.schema == s:
			return nil, nil
		case t.schema.ID == s.ID:
			return rowraft.Errorf(rowraft.CodeTableExists, "table id %#x exists as %q with another schema",
				uint64(s.ID), t.schema.Name), nil
		case t.schema.Name == s.Name:
			return rowraft.Errorf(rowraft.CodeTableExists, "table %q exists with id %#x", s.Name, uint64(t.schema.ID)), nil
		}
	}
	if len(ts.list) >= MaxTables {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "the shard has %d tables, the limit: drop one first", MaxTables),
			nil
	}
	_, fatal = ts.add(s, maker)
	return nil, fatal
}

// drop removes a table, if it exists. Machine.freeDroppedLocked frees it.
func (ts *tableSet) drop(id rowraft.TableID) {
	i := slices.IndexFunc(ts.list, func(t *table) bool { return t.schema.ID == id })
	if i < 0 {
		return
	}
	ts.dropped = append(ts.dropped, ts.list[i])
	ts.list = slices.Delete(slices.Clone(ts.list), i, i+1)
}

// replace adds tables and drops the present tables with the same names.
func (ts *tableSet) replace(tables []*table) {
	next := slices.Clone(tables)
	for _, t := range ts.list {
		if slices.ContainsFunc(tables, func(n *table) bool { return n.schema.Name == t.schema.Name }) {
			ts.dropped = append(ts.dropped, t)
			continue
		}
		next = append(next, t)
	}
	slices.SortFunc(next, func(a, b *table) int { return cmp.Compare(a.schema.ID, b.schema.ID) })
	ts.list = next
}

// from returns the first table whose id is at least id, or nil.
func (ts *tableSet) from(id rowraft.TableID) *table {
	for _, t := range ts.list {
		if t.schema.ID >= id {
			return t
		}
	}
	return nil
}

// addRows adds the rows or the candidates of one block. The caller then sets the counter of the slot.
func (ts *tableSet) addRows(b *checkpoint.Block) error {
	t := ts.get(b.Table)
	if t != nil && b.Candidates != nil {
		return t.rows.RestoreCandidates(b.Slot.Slot, b.Candidates)
	}
	if t != nil && b.Cold != nil {
		return t.rows.Tier().RestoreCold(b.Slot.Slot, b.Cold, rowstore.DigestOf(b.ColdDigest))
	}
	if t == nil || b.RecordBytes != t.rows.RecordBytes() {
		return rowraft.Errorf(rowraft.CodeCorrupt,
			"slot %d has records of %d bytes for table %#x, which does not match the tables of the snapshot",
			b.Slot.Slot, b.RecordBytes, uint64(b.Table))
	}
	before := t.rows.SlotCounts(b.Slot.Slot).Rows
	for rec := b.Records; len(rec) > 0; rec = rec[b.RecordBytes:] {
		if err := t.rows.RestoreRow(rec[:b.RecordBytes]); err != nil {
			return err
		}
	}
	if got := t.rows.SlotCounts(b.Slot.Slot).Rows - before; got != b.Rows {
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: only %d of the %d rows of slot %d belong to it",
			t.schema.Name, got, b.Rows, b.Slot.Slot)
	}
	return nil
}

// close frees the rows of all tables.
func (ts *tableSet) close() error {
	var errs []error
	for _, t := range slices.Concat(ts.list, ts.dropped) {
		errs = append(errs, t.rows.Close())
	}
	return errors.Join(errs...)
}

// freeDroppedLocked frees the memory of the dropped tables that no running
// snapshot reads.
// REQUIRES: m.mu is held for writing.
func (m *Machine) freeDroppedLocked() {
	var free []*table
	m.mu.tables.dropped = slices.DeleteFunc(m.mu.tables.dropped, func(t *table) bool {
		for _, s := range m.mu.cuts.running {
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
