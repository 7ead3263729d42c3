package rowstore

import (
	"encoding/binary"
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
)

// A snapshot on the disk of the tier refers to the cold rows: it has the index entry of each, 8 bytes. A record in the
// file is immutable, so the entry stays valid while the cut is pinned. A row that moved out after the cut may have a
// later version than its slot had, so the snapshot reads its record.

// TierRef is what a snapshot stores of a tier, besides the entries of its rows. The tags of entries depend on Secret.
type TierRef struct {
	Secret [4]uint64
	File   coldfile.Ref
}

// PinTier pins the rows that are in the tier's file now until End. The writer calls it right after BeginSnapshot. The
// result is nil without a tier.
func (s *Snapshot) PinTier() *coldfile.Cut {
	if r := s.t.index.tier; r != nil {
		s.cut = r.file.Cut()
	}
	return s.cut
}

// Cold returns the result of PinTier.
func (s *Snapshot) Cold() *coldfile.Cut { return s.cut }

// ReferToTier makes AppendSlot pass over the pinned rows, and return them by Refs. It returns what the snapshot refers
// to. REQUIRES: some rows are pinned.
func (s *Snapshot) ReferToTier() TierRef {
	s.refers = true
	return TierRef{Secret: s.t.index.secret, File: s.cut.Ref()}
}

// Refs returns the entries of the cold rows of the slots that AppendSlot has read since the last call of ClearRefs.
func (s *Snapshot) Refs() []uint64 { return s.refs }

// ClearRefs empties the result of Refs.
func (s *Snapshot) ClearRefs() { s.refs = s.refs[:0] }

// File returns the file of cold rows, nil without a tier.
func (r *Tier) File() *coldfile.File {
	if r == nil {
		return nil
	}
	return r.file
}

// Break notes why the rows in the file cannot be used any more. It may be called at any time.
func (r *Tier) Break(err error) error {
	err = rowraft.Errorf(rowraft.CodeFenced, "table %s: rows on disk cannot be read: %w", r.table.schema.Name, err)
	r.failed.read.CompareAndSwap(nil, &err)
	return err
}

// Restored ends the calls of RestoreCold.
//
// Errors: CodeCorrupt if the file is not the one of the snapshot, or too short.
func (r *Tier) Restored() error {
	if r == nil {
		return nil
	}
	if err := r.file.Restored(); err != nil {
		return fmt.Errorf("table %s: %w", r.table.schema.Name, err)
	}
	return nil
}

// RestoreCold adds the cold rows of a slot after its other rows, from entries of 8 bytes, without reading them. sum is
// the digest of all rows of the slot. A key that is there twice shows when the slot is checked (CheckSlot).
//
// Errors: CodeCorrupt if an entry is impossible; CodeWrongShard if the slot is not owned; CodeOverloaded if the system
// has no memory.
func (r *Tier) RestoreCold(slot rowraft.Slot, entries []byte, sum Digest) error {
	if r == nil {
		return rowraft.Errorf(rowraft.CodeCorrupt, "the snapshot refers to rows in a file, and the table has none")
	}
	t := r.table
	if err := t.index.checkSlot(slot); err != nil {
		return err
	}
	for ; len(entries) >= 8; entries = entries[8:] {
		e := binary.LittleEndian.Uint64(entries)
		if !isRow(e) || !isCold(e) || !r.file.Restore(coldPlace(e)) {
			return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: the snapshot refers to the impossible cold row %#x of slot %d",
				t.schema.Name, e, slot)
		}
		old, err := t.index.insertCold(slot, e)
		if len(old) > 0 {
			t.snaps.outgrow(slot, old)
		}
		if err != nil {
			return err
		}
	}
	t.index.slot(slot).digest = sum
	return nil
}

// insertCold adds the entry of a cold row. old is as in insert.
func (x *index) insertCold(slot rowraft.Slot, e uint64) (old segment, err error) {
	s, tag := x.slot(slot), uint32(e>>32)
	b := s.bucket(tag)
	if b.full() {
		if old, err = x.grow(slot, tag); err != nil {
			return nil, err
		}
		b = s.bucket(tag)
	}
	if b.root.load().put(e) == tombstone {
		b.tombstones--
	}
	b.rows++
	s.rows++
	x.count.Add(1)
	return old, nil
}

// IsCold reports whether inFile is the size in a tier's file of a stored record of recordBytes.
func IsCold(inFile, recordBytes int) bool {
	return inFile == alignedBytes(recordBytes) || inFile == alignedBytes(recordBytes-keyOffset)
}

// AppendCold appends the stored record of recordBytes of which a tier's file has b.
// REQUIRES: IsCold(len(b), recordBytes).
func AppendCold(dst, b []byte, recordBytes int) []byte {
	if len(b) < recordBytes { // the table is not tracked
		dst, recordBytes = append(dst, noRecency[:]...), recordBytes-keyOffset
	}
	return append(dst, b[:recordBytes]...)
}

// ColdPlace returns the place of the first of entries, which are those of RestoreCold.
func ColdPlace(entries []byte) (place int, ok bool) {
	e := binary.LittleEndian.Uint64(entries)
	return coldPlace(e), isRow(e) && isCold(e)
}
