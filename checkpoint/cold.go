package checkpoint

import (
	"encoding/binary"

	"github.com/rowraft/rowraft"
)

// A local stream refers to rows in files of the replica that wrote it (docs/formats/cold-rows.md). Only that replica
// can read it: NewLocalReader.

const (
	chunkColdFiles chunkKind = 8 // after the jobs, in a local stream
	chunkColdRows  chunkKind = 9 // after the rows of a slot, in a local stream

	coldFileFixed  = 84
	coldRowsHeader = 32
	coldEntrySize  = 8
)

// ColdFile is a file with rows of one table that a local stream refers to.
type ColdFile struct {
	Table       rowraft.TableID
	ID          [16]byte
	RecordBytes int
	PerExtent   int
	Cut         uint64
	Secret      [4]uint64
	Seeds       []uint64 // of the file's checksums, by extent
}

// ColdFiles writes the files that the stream refers to, ascending by table, before the first slot.
func (w *Writer) ColdFiles(files []ColdFile) error {
	for i := range files {
		f := &files[i]
		for first := 0; first == 0 || first < len(f.Seeds); {
			n := min(len(f.Seeds)-first, targetChunk/8)
			w.begin(chunkColdFiles)
			w.buf = le.AppendUint64(w.buf, uint64(f.Table))
			w.buf = append(w.buf, f.ID[:]...)
			w.buf = le.AppendUint32(w.buf, uint32(f.RecordBytes))
			w.buf = le.AppendUint32(w.buf, uint32(f.PerExtent))
			w.buf = le.AppendUint64(w.buf, f.Cut)
			for _, s := range f.Secret {
				w.buf = le.AppendUint64(w.buf, s)
			}
			w.buf = le.AppendUint32(w.buf, uint32(len(f.Seeds)))
			w.buf = le.AppendUint32(w.buf, uint32(first))
			last := uint32(0)
			if i == len(files)-1 && first+n == len(f.Seeds) {
				last = 1
			}
			w.buf = le.AppendUint32(w.buf, last)
			for _, s := range f.Seeds[first : first+n] {
				w.buf = le.AppendUint64(w.buf, s)
			}
			if err := w.end(); err != nil {
				return err
			}
			if first += n; n == 0 {
				break
			}
		}
	}
	return nil
}

// readColdFiles reads the files of a local stream.
func (r *Reader) readColdFiles() error {
	for last := false; !last; {
		b, err := r.section(chunkColdFiles, true)
		if err != nil {
			return err
		}
		if len(b) < coldFileFixed || (len(b)-coldFileFixed)%8 != 0 {
			return r.corrupt("a chunk of files has %d bytes", len(b))
		}
		f := ColdFile{
			Table: rowraft.TableID(le.Uint64(b)), ID: [16]byte(b[8:24]),
			RecordBytes: int(le.Uint32(b[24:])), PerExtent: int(le.Uint32(b[28:])), Cut: le.Uint64(b[32:]),
		}
		for i := range f.Secret {
			f.Secret[i] = le.Uint64(b[40+8*i:])
		}
		total, first := int(le.Uint32(b[72:])), int(le.Uint32(b[76:]))
		last = le.Uint32(b[80:]) == 1
		k := len(r.coldFiles) - 1
		switch {
		case first == 0 && (k < 0 || r.coldFiles[k].Table < f.Table && len(r.coldFiles[k].Seeds) == r.seeds):
			r.coldFiles, r.seeds = append(r.coldFiles, f), total
			k++
		case first == 0 || k < 0 || r.coldFiles[k].Table != f.Table || r.coldFiles[k].ID != f.ID ||
			first != len(r.coldFiles[k].Seeds) || total != r.seeds:
			return r.corrupt("files of table %#x are out of order", uint64(f.Table))
		}
		at := &r.coldFiles[k]
		for b = b[coldFileFixed:]; len(b) > 0; b = b[8:] {
			at.Seeds = append(at.Seeds, le.Uint64(b))
		}
		if n := len(at.Seeds); n > r.seeds || last && n != r.seeds {
			return r.corrupt("the file of table %#x has %d extents, and %d are listed", uint64(f.Table), r.seeds, n)
		}
	}
	return nil
}

// ColdFiles are the files that a local stream refers to, ascending by table.
func (r *Reader) ColdFiles() []ColdFile { return r.coldFiles }

// Cold ends the records of the open slot and adds its rows in the file: an entry of 8 bytes for each of them. rows is
// the digest of all rows of the slot, in the stream and in the file.
func (w *Writer) Cold(entries []uint64, rows Digest) error {
	if !w.open || w.cold {
		return rowraft.Errorf(rowraft.CodeInternal, "snapshot: %d rows in a file follow no slot", len(entries))
	}
	if len(entries) == 0 {
		return nil
	}
	if err := w.endRows(); err != nil {
		return err
	}
	w.cold = true
	w.slotRows += uint64(len(entries))
	w.total.Rows += uint64(len(entries))
	for len(entries) > 0 {
		n := min(len(entries), targetChunk/coldEntrySize)
		w.begin(chunkColdRows)
		w.buf = le.AppendUint64(w.buf, uint64(w.slot.Table))
		w.buf = le.AppendUint16(w.buf, uint16(w.slot.Slot))
		w.buf = le.AppendUint16(w.buf, 0)
		w.buf = le.AppendUint32(w.buf, uint32(n))
		w.buf = append(w.buf, rows[:]...)
		for _, e := range entries[:n] {
			w.buf = binary.LittleEndian.AppendUint64(w.buf, e)
		}
		if err := w.end(); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

// coldRows reads rows of the slot whose rows came last.
func (r *Reader) coldRows() (Block, error) {
	b := r.buf
	if !r.header.Local || len(b) <= coldRowsHeader {
		return Block{}, r.corrupt("a chunk of rows in a file has %d bytes", len(b))
	}
	blk := Block{Slot: r.last, Rows: int(le.Uint32(b[12:])), ColdDigest: Digest(b[16:32]), Cold: b[coldRowsHeader:]}
	if !r.waiting || rowraft.TableID(le.Uint64(b)) != blk.Table || rowraft.Slot(le.Uint16(b[8:])) != blk.Slot.Slot ||
		le.Uint16(b[10:]) != 0 || uint64(blk.Rows)*coldEntrySize != uint64(len(blk.Cold)) {
		return Block{}, r.corrupt("rows in a file of table %#x slot %d stand where they do not belong", le.Uint64(b),
			le.Uint16(b[8:]))
	}
	r.cold = true
	r.total.Rows += uint64(blk.Rows)
	return blk, nil
}

// FullBytes returns how long the stream is if all rows stand in it. A local stream refers to some of them instead.
func (w *Writer) FullBytes() int64 { return w.full }

// rowsBytes is the length of the chunks of rows of a slot.
func rowsBytes(s *Slot, rows uint64) int64 {
	head := chunkHeaderSize + rowsHeaderSize
	if s.Removed > 0 {
		head += 8
	}
	size := uint64(s.RecordBytes)
	perChunk := uint64(max(1, (targetChunk-head)/s.RecordBytes))
	chunks := max(1, (rows+perChunk-1)/perChunk)
	return int64(chunks*uint64(head) + rows*size)
}
