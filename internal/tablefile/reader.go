package tablefile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// Info is the description of a file, known before its rows are read.
type Info struct {
	Rows    uint64
	Dim     int    // 0 if the file has no rows and no metadata
	Numbers string // number type in the file: float32, bfloat16, float16 or float64
	Meta    Meta
}

// decoder reads the rows of one format.
type decoder interface {
	info() Info
	next(keys []rowraft.Key, values []float32) (int, error)
	nextKeys(keys []rowraft.Key) (int, error)
	rewind() error
}

// ReadOptions select the table in a file. The zero value selects the names that this package writes, on the
// operating system's disk.
type ReadOptions struct {
	IDs     string // name of the tensor or column of ids; empty: "ids", in Parquet "id"
	Vectors string // name of the tensor or column of vectors; empty: "vectors", in Parquet "embedding"
	Disk    vfs.FS // nil: the operating system's
}

// Reader reads one file, any number of times.
type Reader struct {
	path  string
	files []vfs.File
	dec   decoder
	ahead bool // rows or ids were read since the last rewind
}

// Open opens a file and reads its description. If format is empty, the extension of path decides.
//
// Errors: CodeNotFound; CodeInvalidArgument if the file is not a table, CodeCorrupt if it is damaged,
// CodeVersionTooNew; those of the disk.
func Open(path string, format Format, o ReadOptions) (*Reader, error) {
	format, err := FormatOf(path, format)
	if err != nil {
		return nil, err
	}
	r := &Reader{path: path}
	if err := r.open(vfs.OrOS(o.Disk), format, o); err != nil {
		return nil, fmt.Errorf("file %s: %w", path, errors.Join(err, r.Close()))
	}
	return r, nil
}

func (r *Reader) open(disk vfs.FS, format Format, o ReadOptions) error {
	size, err := r.openFile(disk, r.path)
	if err != nil {
		return err
	}
	dec, err := r.newDecoder(disk, format, size, o)
	if err != nil {
		return err // dec is a nil pointer in an interface
	}
	r.dec = dec
	return nil
}

func (r *Reader) newDecoder(disk vfs.FS, format Format, size int64, o ReadOptions) (decoder, error) {
	switch format {
	case SafeTensors:
		return openSafetensors(r.files[0], size, cmp.Or(o.IDs, idsTensor), cmp.Or(o.Vectors, vectorsTensor))
	case NPY:
		idsSize, err := r.openFile(disk, idsPath(r.path))
		if err != nil {
			return nil, fmt.Errorf("the file of its ids: %w", err)
		}
		return openNPYPair(r.files[1], r.files[0], idsSize, size)
	}
	return openParquet(r.files[0], size, cmp.Or(o.IDs, idColumn), cmp.Or(o.Vectors, vectorColumn))
}

func (r *Reader) openFile(disk vfs.FS, name string) (size int64, err error) {
	info, err := disk.Stat(name)
	if errors.Is(err, os.ErrNotExist) {
		return 0, rowraft.Errorf(rowraft.CodeNotFound, "there is no file %s", name)
	}
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, invalidf("%s is not a regular file: it is read more than once", name)
	}
	f, err := disk.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return 0, err
	}
	r.files = append(r.files, f)
	return info.Size(), nil
}

// Info returns the description of the file.
func (r *Reader) Info() Info { return r.dec.info() }

// Next fills keys and values with the next rows and returns how many there were,
// or io.EOF. values is len(keys) × dim, row-major.
//
// Errors: CodeInvalidArgument, CodeCorrupt; those of the disk.
func (r *Reader) Next(keys []rowraft.Key, values []float32) (int, error) {
	if want := len(keys) * r.dec.info().Dim; len(keys) == 0 || len(values) != want {
		return 0, invalidf("%d values for %d rows: want %d", len(values), len(keys), want)
	}
	r.ahead = true
	return r.wrap(r.dec.next(keys, values))
}

// NextKeys is Next for the ids only. Next and NextKeys must not be mixed without Rewind.
func (r *Reader) NextKeys(keys []rowraft.Key) (int, error) {
	r.ahead = true
	return r.wrap(r.dec.nextKeys(keys))
}

func (r *Reader) wrap(n int, err error) (int, error) {
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	return 0, fmt.Errorf("file %s: %w", r.path, err)
}

// Rewind returns to the first row.
func (r *Reader) Rewind() error {
	if !r.ahead {
		return nil
	}
	r.ahead = false
	_, err := r.wrap(0, r.dec.rewind())
	return err
}

// Close closes the file.
func (r *Reader) Close() error {
	var errs []error
	if c, ok := r.dec.(io.Closer); ok {
		errs = append(errs, c.Close())
	}
	for _, f := range r.files {
		errs = append(errs, f.Close())
	}
	r.files = nil
	return errors.Join(errs...)
}
