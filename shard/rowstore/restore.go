package rowstore

import (
	"encoding/binary"
	"unsafe"

	"github.com/rowraft/rowraft"
)

// RestoreRow adds a row from its record, as Snapshot.AppendSlot wrote it, with
// its version and, in a tracked table, its recency and count. It updates the digest as any change does; the caller
// compares the digest with the expected one. RestoreRow keeps no part of rec.
//
// On an error nothing has changed: CodeCorrupt if the length of the record is not that of this
// table, its version is impossible, or its key already has a row;
// CodeWrongShard if the slot of its key is not owned; CodeOverloaded if the
// system has no memory. In a table with a tier the row may be there after CodeOverloaded, and after CodeFenced: rows on
// disk cannot be read.
func (t *Table) RestoreRow(rec []byte) error {
	if len(rec) != t.index.recordBytes() {
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: row record of %d bytes: want %d for dim %d with %s",
			t.schema.Name, len(rec), t.index.recordBytes(), t.index.dim, t.schema.Optimizer.Kind)
	}
	if pad := 2 * t.index.dim; t.index.storage == rowraft.BFloat16 && t.index.dim%2 == 1 &&
		rec[headerBytes+pad]|rec[headerBytes+pad+1] != 0 {
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: row record has padding that is not 0", t.schema.Name)
	}
	key := rowraft.Key(binary.LittleEndian.Uint64(rec[keyOffset:]))
	version := binary.LittleEndian.Uint64(rec[versionOffset:])
	slot, tag := t.index.locate(key)
	switch {
	case version == 0 || version&busy != 0:
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: row record of key %d has version %d",
			t.schema.Name, key, version)
	case !t.Owns(slot):
		return t.index.notOwned(key, slot)
	}
	if t.track.waits(slot, tag, key) {
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: key %d has a row and is a candidate", t.schema.Name, key)
	}
	if t.index.has(slot, tag, key) {
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: the snapshot has key %d twice", t.schema.Name, key)
	}
	r, err := t.insert(slot, tag, key)
	if err != nil {
		return err
	}
	copy(unsafe.Slice((*byte)(unsafe.Add(r.p, weightsAt)), len(rec)-headerBytes), rec[headerBytes:])
	r.setVersion(version)
	if t.track != nil {
		*r.recency() = t.track.restored(binary.LittleEndian.Uint32(rec))
		*r.count() = binary.LittleEndian.Uint32(rec[4:])
	}
	s := t.index.slot(slot)
	s.version = max(s.version, version)
	s.digest = s.digest.Add(t.index.rowHash(r))
	if t.index.tier != nil {
		t.index.tier.settle()
		return t.index.tier.usable()
	}
	return nil
}

// RestoreSlotVersion sets the version counter of slot to v and its removed counter to removed,
// after the rows of the slot were restored. v may be above the version of every row: the row that
// changed last may have been deleted.
//
// Errors: CodeCorrupt if a row of the slot or removed is above v, or v is impossible;
// CodeWrongShard if the slot is not owned.
func (t *Table) RestoreSlotVersion(slot rowraft.Slot, v, removed uint64) error {
	if err := t.index.checkSlot(slot); err != nil {
		return err
	}
	if s := t.index.slot(slot); v < s.version {
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: slot %d has version counter %d, below its row of version %d",
			t.schema.Name, slot, v, s.version)
	}
	if v&busy != 0 {
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: slot %d has the impossible version counter %d",
			t.schema.Name, slot, v)
	}
	if removed > v {
		return rowraft.Errorf(rowraft.CodeCorrupt,
			"table %s: slot %d has version counter %d, below its removal of version %d",
			t.schema.Name, slot, v, removed)
	}
	t.index.slot(slot).version, *t.index.removed(slot) = v, removed
	return nil
}

// RaiseSlotVersion raises the version counter of slot to v if it is lower, after a restore has added rows of a slot
// with this counter: several slots of a checkpoint may lie in slot.
//
// Errors: CodeCorrupt if v is impossible; CodeWrongShard if the slot is not owned.
func (t *Table) RaiseSlotVersion(slot rowraft.Slot, v uint64) error {
	if err := t.index.checkSlot(slot); err != nil {
		return err
	}
	return t.RestoreSlotVersion(slot, max(v, t.index.slot(slot).version), 0)
}
