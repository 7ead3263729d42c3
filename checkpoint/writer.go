package checkpoint

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// Writer writes one stream: NewWriter, then for each (table, slot) in ascending
// order BeginSlot and any number of Append, then Finish.
type Writer struct {
	w     io.Writer
	bytes int64

	buf     []byte // the chunk under construction, its header included
	slot    Slot
	open    bool
	part    uint32 // chunks of the open slot written so far
	rows    uint32 // in buf
	started bool   // a slot has been written, so slot orders the next one
	total   Trailer

	cold     bool   // the records of the open slot have ended, and references follow
	slotRows uint64 // of the open slot
	full     int64  // see FullBytes
}

// NewWriter writes everything that stands before the rows. tables and jobs must be
// ascending by ID and sessions by Client.
func NewWriter(w io.Writer, h Header, tables []rowraft.Schema, sessions []Session, ended Ended,
	jobs []Job) (*Writer, error) {
	wr := &Writer{w: w, buf: make([]byte, 0, targetChunk+(64<<10))}
	wr.buf = h.append(wr.buf, counts{len(tables), len(sessions), len(ended.List), len(jobs)})
	wr.full = int64(len(wr.buf))
	if err := wr.flush(); err != nil {
		return nil, err
	}
	wr.begin(chunkSchemas)
	for i := range tables {
		if i > 0 && tables[i].ID <= tables[i-1].ID {
			return nil, rowraft.Errorf(rowraft.CodeInternal, "snapshot: tables are not in ascending order")
		}
		if err := wr.split(chunkSchemas, wire.SchemaSize(&tables[i])); err != nil {
			return nil, err
		}
		wr.buf = wire.AppendSchema(wr.buf, &tables[i])
	}
	if err := wr.end(); err != nil {
		return nil, err
	}
	wr.begin(chunkSessions)
	for i := range sessions {
		s := &sessions[i]
		if i > 0 && bytes.Compare(s.Client[:], sessions[i-1].Client[:]) <= 0 {
			return nil, rowraft.Errorf(rowraft.CodeInternal, "snapshot: sessions are not in ascending order")
		}
		if err := wr.split(chunkSessions, sessionFixed+refusalSize*len(s.Refused)); err != nil {
			return nil, err
		}
		wr.buf = appendSession(wr.buf, s)
	}
	if err := wr.end(); err != nil {
		return nil, err
	}
	if err := wr.appendEnded(&ended); err != nil {
		return nil, err
	}
	return wr, wr.appendJobs(jobs)
}

// Bytes returns how many bytes have been written.
func (w *Writer) Bytes() int64 { return w.bytes }

// BeginSlot starts the rows of s, which must stand after the slot before.
func (w *Writer) BeginSlot(s Slot) error {
	if err := w.endSlot(); err != nil {
		return err
	}
	if w.started && !w.slot.before(s) {
		return rowraft.Errorf(rowraft.CodeInternal, "snapshot: table %#x slot %d follows table %#x slot %d", uint64(s.Table),
			s.Slot, uint64(w.slot.Table), w.slot.Slot)
	}
	if s.Removed > s.Counter {
		return rowraft.Errorf(rowraft.CodeInternal, "snapshot: table %#x slot %d: rows were removed at %d of %d",
			uint64(s.Table), s.Slot, s.Removed, s.Counter)
	}
	w.slot, w.open, w.started, w.part, w.cold, w.slotRows = s, true, true, 0, false, 0
	w.beginRows()
	return nil
}

func (s Slot) before(o Slot) bool {
	return s.Table < o.Table || s.Table == o.Table && s.Slot < o.Slot
}

// Append adds whole records to the open slot. It does not keep records.
func (w *Writer) Append(records []byte) error {
	size := w.slot.RecordBytes
	if !w.open || w.cold || size <= 0 || len(records)%size != 0 {
		return rowraft.Errorf(rowraft.CodeInternal, "snapshot: %d bytes of records of %d bytes each", len(records), size)
	}
	for len(records) > 0 {
		if w.rows > 0 && len(w.buf)+size > targetChunk {
			if err := w.endRows(); err != nil {
				return err
			}
			w.beginRows()
		}
		n := max(1, min(len(records), targetChunk-len(w.buf))/size)
		w.buf = append(w.buf, records[:n*size]...)
		w.rows += uint32(n)
		records = records[n*size:]
	}
	return nil
}

// Candidates adds the keys of the open slot that wait for a row: key, count and
// tick, ascending by key. It is called at most once for a slot, after its rows,
// and ends the slot. Without candidates it only does that.
func (w *Writer) Candidates(b []byte) error {
	if !w.open || len(b)%candidateSize != 0 || len(b) > maxChunk/2 {
		return rowraft.Errorf(rowraft.CodeInternal, "snapshot: %d bytes of candidates of table %#x slot %d", len(b),
			uint64(w.slot.Table), w.slot.Slot)
	}
	if err := w.endSlot(); err != nil || len(b) == 0 {
		return err
	}
	w.begin(chunkCandidates)
	w.buf = le.AppendUint64(w.buf, uint64(w.slot.Table))
	w.buf = le.AppendUint16(w.buf, uint16(w.slot.Slot))
	w.buf = le.AppendUint16(w.buf, 0)
	w.buf = le.AppendUint32(w.buf, uint32(len(b)/candidateSize))
	w.buf = append(w.buf, b...)
	w.total.Candidates += uint64(len(b) / candidateSize)
	return w.end()
}

// Finish writes the trailer. digest is the sum over all records.
func (w *Writer) Finish(digest Digest) error {
	if err := w.endSlot(); err != nil {
		return err
	}
	w.total.Digest = digest
	w.begin(chunkTrailer)
	w.buf = le.AppendUint64(w.buf, w.total.Rows)
	w.buf = le.AppendUint64(w.buf, w.total.Chunks)
	w.buf = le.AppendUint64(w.buf, uint64(w.bytes))
	w.buf = le.AppendUint64(w.buf, w.total.Candidates)
	w.buf = append(w.buf, digest[:]...)
	return w.end()
}

func (w *Writer) beginRows() {
	w.begin(chunkRows)
	s := &w.slot
	w.buf = le.AppendUint64(w.buf, uint64(s.Table))
	w.buf = le.AppendUint16(w.buf, uint16(s.Slot))
	flags := uint16(0)
	if s.Whole {
		flags |= flagWhole
	}
	if s.Removed > 0 {
		flags |= flagRemoved
	}
	w.buf = le.AppendUint16(w.buf, flags)
	w.buf = le.AppendUint32(w.buf, w.part)
	w.buf = le.AppendUint64(w.buf, s.Counter)
	w.buf = le.AppendUint32(w.buf, 0) // rows, set by endRows
	w.buf = le.AppendUint32(w.buf, uint32(s.RecordBytes))
	if s.Removed > 0 {
		w.buf = le.AppendUint64(w.buf, s.Removed)
	}
}

func (w *Writer) endRows() error {
	le.PutUint32(w.buf[chunkHeaderSize+24:], w.rows)
	w.total.Rows += uint64(w.rows)
	w.slotRows += uint64(w.rows)
	w.total.Chunks++
	w.part++
	w.rows = 0
	return w.end()
}

func (w *Writer) endSlot() error {
	if !w.open {
		return nil
	}
	w.open = false
	if !w.cold {
		if err := w.endRows(); err != nil {
			return err
		}
	}
	w.full += rowsBytes(&w.slot, w.slotRows)
	return nil
}

// split ends the open chunk and begins another if next more bytes would make it long.
func (w *Writer) split(kind chunkKind, next int) error {
	if len(w.buf)+next <= targetChunk {
		return nil
	}
	if err := w.end(); err != nil {
		return err
	}
	w.begin(kind)
	return nil
}

func (w *Writer) begin(kind chunkKind) {
	w.buf = append(w.buf[:0], byte(kind), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

// end fills in length and checksum and writes the chunk.
func (w *Writer) end() error {
	le.PutUint64(w.buf[8:], uint64(len(w.buf)-chunkHeaderSize))
	// The length is inside the sum, so that a damaged length cannot move the end of a chunk unnoticed.
	le.PutUint32(w.buf[4:], chunkSum(w.buf[:chunkHeaderSize], w.buf[chunkHeaderSize:]))
	switch chunkKind(w.buf[0]) {
	case chunkRows, chunkColdRows, chunkColdFiles: // endSlot counts the rows
	default:
		w.full += int64(len(w.buf))
	}
	return w.flush()
}

// chunkSum covers the header without the checksum itself, then the body.
func chunkSum(header, body []byte) uint32 {
	sum := crc32.Checksum(header[:4], castagnoli)
	sum = crc32.Update(sum, castagnoli, header[8:chunkHeaderSize])
	return crc32.Update(sum, castagnoli, body)
}

func (w *Writer) flush() error {
	n, err := w.w.Write(w.buf)
	w.bytes += int64(n)
	if err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	w.buf = w.buf[:0]
	return nil
}
