package wire

import "github.com/rowraft/rowraft"

// The entries of a restore (docs/formats/entry.md). Begin opens a stage next to
// the tables, rows fill it, close replaces the tables by it, drop discards it.
const (
	EntryRestoreBegin EntryKind = 5
	EntryRestoreRows  EntryKind = 6
	EntryRestoreClose EntryKind = 7
	EntryRestoreDrop  EntryKind = 8
)

// lastEntryKind is the highest kind that this binary understands.
const lastEntryKind = EntryCloseSession

// RestoreID names one restore.
type RestoreID [16]byte

// RestoreBegin opens a stage for the tables of a new epoch.
type RestoreBegin struct {
	ID     RestoreID
	Epoch  rowraft.TableEpoch
	Tables []rowraft.Schema // strictly ascending by ID
	// Base is the highest tick of the sources, 0 if no table is tracked
	// (docs/formats/streaming.md).
	Base uint32
}

// RestoreBlock is records of one slot.
type RestoreBlock struct {
	Table       rowraft.TableID
	Slot        rowraft.Slot
	Counter     uint64 // version counter of the slot, at least; other blocks of the slot may have another one
	Rows        int
	RecordBytes int
	Records     []byte // Rows × RecordBytes

	// Tick is that of the source, which the recencies of Records are relative to; with 0
	// they are taken as they are. If Candidates is set, Records holds candidates of 16 bytes
	// each instead of rows.
	Tick       uint32
	Candidates bool
}

// candidateSize is the length of a candidate: key, count, tick.
const candidateSize = 16

// RestoreClose states what the stage must contain.
type RestoreClose struct {
	ID     RestoreID
	Epoch  rowraft.TableEpoch
	Chunks uint64
	Rows   uint64
	Digest [16]byte // Σ over all rows, little-endian
}

const (
	restoreBeginFixed = 32
	restoreRowsFixed  = 24
	restoreBlockFixed = 32
	restoreCloseSize  = 56
	restoreDropSize   = 16
)

func restoreEntry(h EntryHeader, kind EntryKind, size int) []byte {
	h.Kind, h.Parts = kind, 0
	b := make([]byte, EntryHeaderSize, EntryHeaderSize+size)
	PutEntryHeader(b, h)
	return b
}

// RestoreBeginEntry returns the entry that opens a stage.
func RestoreBeginEntry(h EntryHeader, r *RestoreBegin) []byte {
	b := restoreEntry(h, EntryRestoreBegin, restoreBeginFixed)
	b = append(b, r.ID[:]...)
	b = le.AppendUint64(b, uint64(r.Epoch))
	b = le.AppendUint32(b, uint32(len(r.Tables)))
	b = le.AppendUint32(b, r.Base)
	for i := range r.Tables {
		b = AppendSchema(b, &r.Tables[i])
	}
	return b
}

// ParseRestoreBegin reads the body of such an entry. Errors: CodeCorrupt.
func ParseRestoreBegin(b []byte) (r RestoreBegin, err error) {
	if len(b) < restoreBeginFixed {
		return r, rowraft.Errorf(rowraft.CodeCorrupt, "restore begin has %d bytes, want at least %d",
			len(b), restoreBeginFixed)
	}
	r.ID, r.Epoch = RestoreID(b[:16]), rowraft.TableEpoch(le.Uint64(b[16:]))
	n := le.Uint32(b[24:])
	r.Base = le.Uint32(b[28:])
	for b = b[restoreBeginFixed:]; len(b) > 0; {
		var s rowraft.Schema
		if s, b, err = ParseSchema(b); err != nil {
			return r, err
		}
		if k := len(r.Tables); s.ID == 0 || k > 0 && s.ID <= r.Tables[k-1].ID {
			return r, rowraft.Errorf(rowraft.CodeCorrupt, "restore begin: table %s has id %#x, out of order",
				s.Name, uint64(s.ID))
		}
		r.Tables = append(r.Tables, s)
	}
	if uint64(n) != uint64(len(r.Tables)) {
		return r, rowraft.Errorf(rowraft.CodeCorrupt, "restore begin states %d tables but has %d", n, len(r.Tables))
	}
	return r, nil
}

// RestoreRowsEntry returns the entry with chunk number seq, from 1. AppendRestoreBlock
// made blocks.
func RestoreRowsEntry(h EntryHeader, id RestoreID, seq uint64, blocks []byte) []byte {
	b := restoreEntry(h, EntryRestoreRows, restoreRowsFixed+len(blocks))
	b = append(b, id[:]...)
	b = le.AppendUint64(b, seq)
	return append(b, blocks...)
}

// AppendRestoreBlock appends one block to a chunk under construction.
func AppendRestoreBlock(dst []byte, r *RestoreBlock) []byte {
	dst = le.AppendUint64(dst, uint64(r.Table))
	dst = le.AppendUint16(dst, uint16(r.Slot))
	if r.Candidates {
		dst = le.AppendUint16(dst, 1)
	} else {
		dst = le.AppendUint16(dst, 0)
	}
	dst = le.AppendUint32(dst, uint32(r.Rows))
	dst = le.AppendUint64(dst, r.Counter)
	dst = le.AppendUint32(dst, uint32(r.RecordBytes))
	dst = le.AppendUint32(dst, r.Tick)
	dst = append(dst, r.Records...)
	for range align8(len(r.Records)) - len(r.Records) {
		dst = append(dst, 0)
	}
	return dst
}

// ParseRestoreRows reads the body of such an entry up to its blocks.
// Errors: CodeCorrupt.
func ParseRestoreRows(b []byte) (id RestoreID, seq uint64, blocks []byte, err error) {
	if len(b) < restoreRowsFixed {
		return id, 0, nil, rowraft.Errorf(rowraft.CodeCorrupt, "restore rows have %d bytes, want at least %d",
			len(b), restoreRowsFixed)
	}
	return RestoreID(b[:16]), le.Uint64(b[16:]), b[restoreRowsFixed:], nil
}

// ParseRestoreBlock reads the first block of b; r.Records aliases b.
// Errors: CodeCorrupt.
func ParseRestoreBlock(b []byte, r *RestoreBlock) (rest []byte, err error) {
	if len(b) < restoreBlockFixed {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "restore rows end within a block: %d bytes left", len(b))
	}
	*r = RestoreBlock{
		Table: rowraft.TableID(le.Uint64(b)), Slot: rowraft.Slot(le.Uint16(b[8:])), Rows: int(le.Uint32(b[12:])),
		Counter: le.Uint64(b[16:]), RecordBytes: int(le.Uint32(b[24:])),
		Tick: le.Uint32(b[28:]), Candidates: le.Uint16(b[10:]) == 1,
	}
	if r.Candidates && r.RecordBytes != candidateSize {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "restore rows have a block with candidates of %d bytes, want %d",
			r.RecordBytes, candidateSize)
	}
	size := uint64(r.Rows) * uint64(r.RecordBytes)
	if le.Uint16(b[10:]) > 1 || r.RecordBytes < 24 && !r.Candidates ||
		size > uint64(len(b)-restoreBlockFixed) {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt,
			"restore rows have an impossible block: slot %d, %d rows of %d bytes in %d bytes",
			r.Slot, r.Rows, r.RecordBytes, len(b)-restoreBlockFixed)
	}
	end := restoreBlockFixed + align8(int(size))
	if end > len(b) {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "restore rows end inside a block")
	}
	r.Records = b[restoreBlockFixed : restoreBlockFixed+int(size)]
	for _, pad := range b[restoreBlockFixed+int(size) : end] {
		if pad != 0 {
			return nil, rowraft.Errorf(rowraft.CodeCorrupt, "restore rows have padding that is not 0")
		}
	}
	return b[end:], nil
}

// RestoreCloseEntry returns the entry that replaces the tables by the stage.
func RestoreCloseEntry(h EntryHeader, r *RestoreClose) []byte {
	b := restoreEntry(h, EntryRestoreClose, restoreCloseSize)
	b = append(b, r.ID[:]...)
	b = le.AppendUint64(b, uint64(r.Epoch))
	b = le.AppendUint64(b, r.Chunks)
	b = le.AppendUint64(b, r.Rows)
	return append(b, r.Digest[:]...)
}

// ParseRestoreClose reads the body of a close entry. Errors: CodeCorrupt.
func ParseRestoreClose(b []byte) (r RestoreClose, err error) {
	if len(b) != restoreCloseSize {
		return r, rowraft.Errorf(rowraft.CodeCorrupt, "restore close has %d bytes, want %d", len(b), restoreCloseSize)
	}
	return RestoreClose{
		ID: RestoreID(b[:16]), Epoch: rowraft.TableEpoch(le.Uint64(b[16:])), Chunks: le.Uint64(b[24:]),
		Rows: le.Uint64(b[32:]), Digest: [16]byte(b[40:56]),
	}, nil
}

// RestoreDropEntry returns the entry that discards a stage.
func RestoreDropEntry(h EntryHeader, id RestoreID) []byte {
	return append(restoreEntry(h, EntryRestoreDrop, restoreDropSize), id[:]...)
}

// ParseRestoreDrop reads the body of a drop entry. Errors: CodeCorrupt.
func ParseRestoreDrop(b []byte) (id RestoreID, err error) {
	if len(b) != restoreDropSize {
		return id, rowraft.Errorf(rowraft.CodeCorrupt, "restore drop has %d bytes, want %d", len(b), restoreDropSize)
	}
	return RestoreID(b), nil
}
