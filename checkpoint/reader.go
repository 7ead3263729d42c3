package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// Block is a run of records of one slot, or the candidates that follow them.
// Records and Candidates are valid until the next call of Next.
type Block struct {
	Slot
	First   bool // the slot's first block
	Rows    int
	Records []byte // Rows × RecordBytes
	// Candidates is nil, or all candidates of the slot: key, count and tick,
	// strictly ascending by key. Such a block has no rows.
	Candidates []byte
	// Cold is nil, or an entry of 8 bytes for each of Rows rows in the file of the table. Such a block has no records.
	// ColdDigest is the digest of all rows of the slot.
	Cold       []byte
	ColdDigest Digest
}

// Reader reads one stream and checks all of it: NewReader, then Next until
// io.EOF. A caller that stops earlier has verified nothing.
//
// Errors: CodeCorrupt for anything that a writer would not have written, an
// early end included; CodeVersionTooNew; or that of the source.
type Reader struct {
	r     io.Reader
	bytes int64

	header   Header
	tables   []rowraft.Schema
	sessions []Session
	ended    Ended
	jobs     []Job

	buf     []byte // body of the last chunk
	kind    chunkKind
	last    Slot
	part    uint32
	started bool
	waiting bool    // the candidates of last may still come
	total   Trailer // counted so far; after io.EOF the stream's own
	done    bool

	coldFiles []ColdFile
	seeds     int  // of the last of coldFiles
	cold      bool // rows of last in a file came
}

// NewReader reads up to the rows.
//
// Errors: CodeInvalidArgument if the stream is local.
func NewReader(r io.Reader) (*Reader, error) {
	rd, err := NewLocalReader(r)
	if err == nil && rd.header.Local {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "snapshot: it refers to rows in files in DIR/cold of the "+
			"server that wrote it, so it cannot be read without them")
	}
	return rd, err
}

// NewLocalReader is NewReader for a stream that may refer to files of this replica.
func NewLocalReader(r io.Reader) (*Reader, error) {
	rd := &Reader{r: r}
	var head [headerSize]byte
	if err := rd.full(head[:]); err != nil {
		return nil, err
	}
	h, n, err := parseHeader(head[:])
	if err != nil {
		return nil, err
	}
	rd.header = h
	if err := rd.readSchemas(n.tables); err != nil {
		return nil, err
	}
	if err := rd.readSessions(n.sessions); err != nil {
		return nil, err
	}
	if err := rd.readEnded(n.ended); err != nil {
		return nil, err
	}
	if err := rd.readJobs(n.jobs); err != nil {
		return nil, err
	}
	if h.Local {
		if err := rd.readColdFiles(); err != nil {
			return nil, err
		}
	}
	return rd, nil
}

// Header, Tables (ascending by ID) and Sessions (ascending by Client) are what
// stands before the rows; Trailer is complete after Next returned io.EOF.
func (r *Reader) Header() Header           { return r.header }
func (r *Reader) Tables() []rowraft.Schema { return r.tables }
func (r *Reader) Sessions() []Session      { return r.sessions }
func (r *Reader) Trailer() Trailer         { return r.total }

// Next returns the next block, or io.EOF once the trailer stands against what
// was read and nothing follows it.
func (r *Reader) Next() (Block, error) {
	if r.done {
		return Block{}, io.EOF
	}
	at := r.bytes
	if err := r.chunk(); err != nil {
		return Block{}, err
	}
	switch r.kind {
	case chunkRows:
		return r.block()
	case chunkCandidates:
		return r.candidates()
	case chunkColdRows:
		return r.coldRows()
	case chunkTrailer:
		if err := r.finish(at); err != nil {
			return Block{}, err
		}
		r.done = true
		return Block{}, io.EOF
	}
	return Block{}, r.corrupt("a chunk of kind %d stands among the rows", r.kind)
}

func (r *Reader) block() (Block, error) {
	b, head, flags := r.buf, rowsHeaderSize, uint16(0)
	if len(b) >= head {
		flags = le.Uint16(b[10:])
	}
	if flags&flagRemoved != 0 {
		head += 8
	}
	if len(b) < head {
		return Block{}, r.corrupt("a chunk of rows has %d bytes", len(b))
	}
	blk := Block{
		Slot: Slot{
			Table:       rowraft.TableID(le.Uint64(b)),
			Slot:        rowraft.Slot(le.Uint16(b[8:])),
			Counter:     le.Uint64(b[16:]),
			RecordBytes: int(le.Uint32(b[28:])),
			Whole:       flags&flagWhole != 0,
		},
		Rows:    int(le.Uint32(b[24:])),
		Records: b[head:],
	}
	if flags&flagRemoved != 0 {
		blk.Removed = le.Uint64(b[rowsHeaderSize:])
	}
	part := le.Uint32(b[12:])
	blk.First = part == 0
	switch {
	case flags&^(flagWhole|flagRemoved) != 0, blk.Whole && !r.header.Delta, blk.RecordBytes < 8, blk.Removed > blk.Counter,
		flags&flagRemoved != 0 && blk.Removed == 0,
		uint64(blk.Rows)*uint64(blk.RecordBytes) != uint64(len(blk.Records)):
		return Block{}, r.corrupt("table %#x slot %d: %d records of %d bytes in %d bytes", uint64(blk.Table), blk.Slot.Slot,
			blk.Rows, blk.RecordBytes, len(blk.Records))
	// Ascending order shows a slot that occurs twice.
	case part == 0 && r.started && !r.last.before(blk.Slot),
		part > 0 && (!r.waiting || r.cold || r.last != blk.Slot || part != r.part+1 || blk.Rows == 0):
		return Block{}, r.corrupt("table %#x slot %d part %d is out of order", uint64(blk.Table), blk.Slot.Slot, part)
	}
	r.last, r.part, r.started, r.waiting, r.cold = blk.Slot, part, true, true, false
	r.total.Rows += uint64(blk.Rows)
	r.total.Chunks++
	return blk, nil
}

// candidates reads those of the slot whose rows came last.
func (r *Reader) candidates() (Block, error) {
	b := r.buf
	if len(b) <= candidatesHeaderSize {
		return Block{}, r.corrupt("a chunk of candidates has %d bytes", len(b))
	}
	blk := Block{Slot: r.last, Candidates: b[candidatesHeaderSize:]}
	n := uint64(le.Uint32(b[12:]))
	if !r.waiting || rowraft.TableID(le.Uint64(b)) != blk.Table || rowraft.Slot(le.Uint16(b[8:])) != blk.Slot.Slot ||
		le.Uint16(b[10:]) != 0 || n*candidateSize != uint64(len(blk.Candidates)) {
		return Block{}, r.corrupt("candidates of table %#x slot %d stand where they do not belong", le.Uint64(b),
			le.Uint16(b[8:]))
	}
	for c := blk.Candidates; len(c) > candidateSize; c = c[candidateSize:] {
		if le.Uint64(c) >= le.Uint64(c[candidateSize:]) {
			return Block{}, r.corrupt("candidates of table %#x slot %d are not in ascending order", uint64(blk.Table),
				blk.Slot.Slot)
		}
	}
	r.waiting = false
	r.total.Candidates += n
	return blk, nil
}

// finish checks the trailer, which began at byte at.
func (r *Reader) finish(at int64) error {
	b := r.buf
	if len(b) != trailerSize {
		return r.corrupt("the trailer has %d bytes, want %d", len(b), trailerSize)
	}
	rows, chunks, size := le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:])
	if rows != r.total.Rows || chunks != r.total.Chunks || size != uint64(at) || le.Uint64(b[24:]) != r.total.Candidates {
		return r.corrupt("the trailer names %d rows in %d chunks and %d bytes, there are %d in %d and %d", rows, chunks, size,
			r.total.Rows, r.total.Chunks, at)
	}
	copy(r.total.Digest[:], b[32:])
	var one [1]byte
	// A stream that continues was written by something else, or two were joined.
	n, err := io.ReadFull(r.r, one[:])
	if n != 0 {
		return r.corrupt("bytes follow the trailer")
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("read snapshot: %w", err)
	}
	return nil
}

func (r *Reader) readSchemas(n int) error {
	for first := true; first || len(r.tables) < n; first = false {
		rest, err := r.section(chunkSchemas, first)
		if err != nil {
			return err
		}
		for len(rest) > 0 {
			var s rowraft.Schema
			if s, rest, err = wire.ParseSchema(rest); err != nil {
				return fmt.Errorf("snapshot: %w", err)
			}
			if k := len(r.tables); k > 0 && s.ID <= r.tables[k-1].ID {
				return r.corrupt("tables are not in ascending order")
			}
			r.tables = append(r.tables, s)
		}
	}
	if len(r.tables) != n {
		return r.corrupt("the header names %d tables, there are %d", n, len(r.tables))
	}
	return nil
}

func (r *Reader) readSessions(n int) error {
	for first := true; first || len(r.sessions) < n; first = false {
		rest, err := r.section(chunkSessions, first)
		if err != nil {
			return err
		}
		for len(rest) > 0 {
			var s Session
			if s, rest, err = parseSession(rest); err != nil {
				return err
			}
			if k := len(r.sessions); k > 0 && bytes.Compare(s.Client[:], r.sessions[k-1].Client[:]) <= 0 {
				return r.corrupt("sessions are not in ascending order")
			}
			r.sessions = append(r.sessions, s)
		}
	}
	if len(r.sessions) != n {
		return r.corrupt("the header names %d sessions, there are %d", n, len(r.sessions))
	}
	return nil
}

// section reads a chunk of kind; only the first of its kind may be empty.
func (r *Reader) section(kind chunkKind, first bool) ([]byte, error) {
	if err := r.chunk(); err != nil {
		return nil, err
	}
	if r.kind != kind || !first && len(r.buf) == 0 {
		return nil, r.corrupt("a chunk of kind %d and %d bytes stands where kind %d belongs", r.kind, len(r.buf), kind)
	}
	return r.buf, nil
}

// chunk reads the next chunk into kind and buf and checks its sum.
func (r *Reader) chunk() error {
	var head [chunkHeaderSize]byte
	if err := r.full(head[:]); err != nil {
		return err
	}
	size := le.Uint64(head[8:])
	// Checked before the sum, which needs the body: a damaged length must not allocate any amount of memory.
	if size > maxChunk {
		return r.corrupt("a chunk of %d bytes, at most %d are possible", size, maxChunk)
	}
	if uint64(cap(r.buf)) < size {
		r.buf = make([]byte, size)
	}
	r.buf = r.buf[:size]
	if err := r.full(r.buf); err != nil {
		return err
	}
	if chunkSum(head[:], r.buf) != le.Uint32(head[4:]) || head[1]|head[2]|head[3] != 0 {
		return r.corrupt("the checksum of a chunk does not match")
	}
	r.kind = chunkKind(head[0])
	return nil
}

func (r *Reader) full(b []byte) error {
	n, err := io.ReadFull(r.r, b)
	r.bytes += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return r.corrupt("it ends early")
	}
	if err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	return nil
}

func (r *Reader) corrupt(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeCorrupt, "snapshot, before byte %d: %s", r.bytes, fmt.Sprintf(format, args...))
}
