package expand

import (
	"bytes"
	"errors"
	"io"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/shard/rowstore"
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
)

// Files are what a Reader needs of a replica. Hold is called with each file that a snapshot refers to. It pins the
// cut of the file until release is called, and damaged is called with the error of a row that cannot be read. Both are
// nil if no table has the file open.
type Files struct {
	Dir  *coldfile.Dir
	Hold func(table rowraft.TableID, id coldfile.ID, cut uint64) (release func(), damaged func(error), err error)
}

// Reader returns the full form of a local form. One goroutine uses it.
type Reader struct {
	rd    *checkpoint.Reader
	w     *checkpoint.Writer // to buf
	buf   bytes.Buffer
	files []file

	block  checkpoint.Block // of which rows in a file are left
	err    error
	places []int
	rows   []byte
}

// file is a file that a snapshot refers to.
type file struct {
	table       rowraft.TableID
	disk        coldfile.Disk
	file        *coldfile.File
	recordBytes int
	release     func()
	damaged     func(error)
}

// New returns a reader of the full form of r, which may be that itself. The caller closes it.
//
// Errors, also of reads: CodeOverloaded if a newer snapshot has replaced the one in r; CodeCorrupt if a file is missing
// or a row damaged; errors of r.
func New(r io.Reader, files Files) (*Reader, error) {
	rd, err := checkpoint.NewLocalReader(r)
	if err != nil {
		return nil, err
	}
	x := &Reader{rd: rd}
	for _, f := range rd.ColdFiles() {
		if err := x.open(&f, files); err != nil {
			return nil, errors.Join(err, x.Close())
		}
	}
	h := rd.Header()
	h.Local = false
	x.w, err = checkpoint.NewWriter(&x.buf, h, rd.Tables(), rd.Sessions(), rd.Ended(), rd.Jobs())
	if err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return x, nil
}

func (x *Reader) open(f *checkpoint.ColdFile, files Files) error {
	e := file{table: f.Table, recordBytes: f.RecordBytes}
	var err error
	if files.Hold != nil {
		if e.release, e.damaged, err = files.Hold(f.Table, f.ID, f.Cut); err != nil {
			return err
		}
	}
	x.files = append(x.files, e)
	at := &x.files[len(x.files)-1]
	if at.disk, err = files.Dir.OpenForReading(f.Table, f.ID); err != nil {
		return err
	}
	if at.file, err = coldfile.Open(at.disk, RefOf(f)); err != nil {
		return err
	}
	return at.file.Check()
}

// RefOf returns what a snapshot stores of a file, in the form of coldfile.
func RefOf(f *checkpoint.ColdFile) coldfile.Ref {
	return coldfile.Ref{ID: f.ID, RecordBytes: f.RecordBytes, PerExtent: f.PerExtent, Cut: f.Cut, Seeds: f.Seeds}
}

// Close unpins the rows and closes the files.
func (x *Reader) Close() error {
	var errs []error
	for _, f := range x.files {
		if f.release != nil {
			f.release()
		}
		if f.disk != nil {
			errs = append(errs, f.disk.Close())
		}
	}
	x.files = nil
	return errors.Join(errs...)
}

func (x *Reader) Read(p []byte) (int, error) {
	for x.buf.Len() == 0 {
		if x.err == nil {
			x.err = x.next()
		}
		if x.err != nil && x.buf.Len() == 0 {
			return 0, x.err
		}
	}
	return x.buf.Read(p)
}

// rowsAtOnce is how many rows are read from a file at a time.
const rowsAtOnce = 8192

// next writes the next rows to buf.
func (x *Reader) next() error {
	if len(x.block.Cold) > 0 {
		return x.cold()
	}
	b, err := x.rd.Next()
	switch {
	case errors.Is(err, io.EOF):
		if err := x.w.Finish(x.rd.Trailer().Digest); err != nil {
			return err
		}
		return io.EOF
	case err != nil:
		return err
	case b.Candidates != nil:
		return x.w.Candidates(b.Candidates)
	case b.Cold != nil:
		x.block = b
		return nil
	}
	if b.First {
		if err := x.w.BeginSlot(b.Slot); err != nil {
			return err
		}
	}
	return x.w.Append(b.Records)
}

// cold writes rows of block.
func (x *Reader) cold() error {
	f, err := x.fileOf(x.block.Table)
	if err != nil {
		return err
	}
	if !rowstore.IsCold(f.recordBytes, x.block.RecordBytes) {
		return rowraft.Errorf(rowraft.CodeCorrupt, "slot %d has records of %d bytes, and %d in the file", x.block.Slot.Slot,
			x.block.RecordBytes, f.recordBytes)
	}
	x.places, x.rows = x.places[:0], x.rows[:0]
	for ; len(x.block.Cold) > 0 && len(x.places) < rowsAtOnce; x.block.Cold = x.block.Cold[8:] {
		place, ok := rowstore.ColdPlace(x.block.Cold)
		if !ok || place >= f.file.Places() {
			return rowraft.Errorf(rowraft.CodeCorrupt, "the snapshot refers to an impossible cold row of slot %d",
				x.block.Slot.Slot)
		}
		x.places = append(x.places, place)
	}
	slices.Sort(x.places)
	if err := f.file.Read(len(x.places), func(i int) int { return x.places[i] }, func(_ int, b []byte) {
		x.rows = rowstore.AppendCold(x.rows, b, x.block.RecordBytes)
	}); err != nil {
		if f.damaged != nil {
			f.damaged(err)
		}
		return err
	}
	return x.w.Append(x.rows)
}

func (x *Reader) fileOf(table rowraft.TableID) (*file, error) {
	for i := range x.files {
		if f := &x.files[i]; f.table == table && f.file != nil {
			return f, nil
		}
	}
	return nil, rowraft.Errorf(rowraft.CodeCorrupt, "the snapshot refers to rows of table %#x in no file", uint64(table))
}
