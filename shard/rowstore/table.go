package rowstore

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/optim"
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
	"github.com/rowraft/rowraft/shard/rowstore/order"
)

// Options are the arguments of New.
type Options struct {
	Schema rowraft.Schema
	Slots  rowraft.SlotCount // slots of the cluster; 0: rowraft.DefaultSlots
	// Owned reports which slots this shard holds; nil means all. Only New calls it.
	Owned func(rowraft.Slot) bool
	// Tier is for the rows of a table with a memory limit that do not fit; the table closes it. nil: all rows stay in
	// memory.
	Tier coldfile.Disk
	// TierID is the identity of that file.
	TierID coldfile.ID
	// TierRef continues with the rows that the file has, instead of with an empty file: the caller calls RestoreCold for
	// each slot with such rows, and then Tier.Restored.
	TierRef *TierRef
}

// Table holds the rows of one table on one shard. It checks arguments and routes a call to the parts that own the
// state; each part states its invariant at its type. The package comment has the concurrency rules. Table starts no
// goroutine. Close unmaps its memory.
type Table struct {
	schema rowraft.Schema
	rule   optim.Rule

	index index         // the rows by key, and the version and digest of each slot
	snaps snapshots     // the running snapshots
	track *track        // policy of a tracked table, nil for others
	lock  order.RowLock // does nothing where readers need no lock: see "Readers" in the package comment

	// Scratch of the writer: one unpacked gradient or value, and unpacked weights that are not stored as float32.
	scratch, wide []float32
}

// New returns an empty table.
//
// Errors: CodeInvalidArgument if the schema is not valid; CodeInternal on a
// big-endian machine, since records are stored in wire order.
func New(o Options) (*Table, error) {
	if err := o.Schema.Validate(); err != nil {
		return nil, err
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "row store: big-endian machines are not supported")
	}
	rule, err := optim.New(o.Schema.Optimizer)
	if err != nil {
		return nil, err
	}
	t := &Table{
		schema: o.Schema, rule: rule,
		scratch: make([]float32, o.Schema.Dim), wide: make([]float32, o.Schema.Dim),
	}
	if err := t.index.init(&t.schema, rule.StateLen(o.Schema.Dim), o); err != nil {
		return nil, fmt.Errorf("table %s: %w", o.Schema.Name, err)
	}
	t.snaps.index = &t.index
	t.snaps.chooseClaims()
	t.track = newTrack(t)
	if t.index.tier, err = newTier(t, &o); err != nil {
		return nil, errors.Join(err, t.index.slab.Close())
	}
	return t, nil
}

// Close unmaps the table's memory. The table must not be used afterwards.
func (t *Table) Close() error {
	err := t.index.slab.Close()
	if e := t.index.blocks.Close(); err == nil {
		err = e
	}
	if t.track != nil {
		if e := t.track.blocks.Close(); err == nil {
			err = e
		}
	}
	for _, s := range t.snaps.running {
		if e := s.kept.images.Close(); err == nil {
			err = e
		}
	}
	if r := t.index.tier; r != nil {
		if e := r.file.Close(); err == nil {
			err = e
		}
	}
	t.snaps.running, t.snaps.outgrown = nil, nil
	t.index.slots, t.index.retired = nil, [2]retired{}
	t.index.count.Store(0)
	return err
}

// Schema returns the schema the table was made with.
func (t *Table) Schema() rowraft.Schema { return t.schema }

// Owns reports whether the table holds slot s.
func (t *Table) Owns(s rowraft.Slot) bool { return t.index.owns(s) }

// RecordBytes returns the size of a row's record: what Snapshot appends per row and RestoreRow takes.
func (t *Table) RecordBytes() int { return t.index.recordBytes() }

// Rows returns the number of rows.
func (t *Table) Rows() int { return int(t.index.count.Load()) }

// SlotCounts returns the present counts of slot s, zero if it is not owned.
func (t *Table) SlotCounts(s rowraft.Slot) SlotCut {
	if !t.Owns(s) {
		return SlotCut{}
	}
	now := t.index.slot(s)
	return SlotCut{Rows: int(now.rows), Version: now.version, Removed: *t.index.removed(s), Digest: now.digest}
}

// Bytes returns the memory mapped for rows, candidates, index and running snapshots.
func (t *Table) Bytes() int64 {
	n := t.index.slab.Stats().MappedBytes + t.index.blocks.Stats().MappedBytes
	if t.track != nil {
		n += t.track.blocks.Stats().MappedBytes
	}
	for _, s := range t.snaps.running {
		s.kept.Lock()
		n += s.kept.images.Stats().MappedBytes + s.kept.candidates.bytes()
		s.kept.Unlock()
	}
	return n
}

// beginChange begins a call of the writer. Every call that changes rows begins with it and ends with endChange.
func (t *Table) beginChange() {
	t.lock.Lock()
	t.snaps.beginChange()
	t.index.reclaim()
}

func (t *Table) endChange() {
	if t.index.tier != nil {
		t.index.tier.settle()
	}
	t.snaps.done()
	t.lock.Unlock()
}
