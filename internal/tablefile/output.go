package tablefile

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

const bufferBytes = 1 << 20

// output is a file that is being written under a temporary name next to its final name.
type output struct {
	disk vfs.FS
	name string
	temp string
	f    vfs.File
	w    *bufio.Writer
}

func newOutput(disk vfs.FS, name string) (*output, error) {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	o := &output{disk: disk, name: name, temp: name + "." + hex.EncodeToString(random[:]) + ".partial"}
	f, err := disk.OpenFile(o.temp, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	o.f, o.w = f, bufio.NewWriterSize(f, bufferBytes)
	return o, nil
}

func (o *output) Write(b []byte) (int, error) { return o.w.Write(b) }

// patch overwrites the file at offset 0 with b.
func (o *output) patch(b []byte) error {
	if err := o.w.Flush(); err != nil {
		return err
	}
	_, err := o.f.WriteAt(b, 0)
	return err
}

// close syncs the content, still under the temporary name.
func (o *output) close() error {
	err := o.w.Flush()
	if err == nil {
		err = o.f.Sync()
	}
	err = errors.Join(err, o.f.Close())
	o.f = nil
	return err
}

// remove removes the temporary file; after rename it does nothing.
func (o *output) remove() error {
	if o.temp == "" {
		return nil
	}
	var errs []error
	if o.f != nil {
		errs = append(errs, o.f.Close())
		o.f = nil
	}
	if err := o.disk.Remove(o.temp); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	o.temp = ""
	return errors.Join(errs...)
}

func (o *output) rename() error {
	if err := o.disk.Rename(o.temp, o.name); err != nil {
		return err
	}
	o.temp = ""
	return nil
}

// encoder writes the rows of one format to its outputs.
type encoder interface {
	append(keys []rowraft.Key, values []float32) error
	// finish completes the content after the last row.
	finish(rows uint64) error
}

// WriteOptions are the options of Create. The zero value means float32, the operating system's disk, and no
// overwriting of existing files.
type WriteOptions struct {
	DType     rowraft.DType // type of the vectors; zero: Float32. BFloat16: only safetensors
	Overwrite bool          // replace an existing file
	Disk      vfs.FS        // nil: the operating system's disk

	group int // row group size of Parquet; zero: groupBytes
}

// Writer writes one file, or two for .npy.
type Writer struct {
	disk    vfs.FS
	outputs []*output // in the order of their renames: the file with the name of the table is last
	enc     encoder
	dim     int
	rows    uint64
	over    bool
	err     error // the first error; nothing is written after it
	done    bool
}

// Create begins a file for the rows of meta's table. If format is empty, the extension of path decides. The
// name does not exist before Commit.
//
// Errors: CodeInvalidArgument; CodeAlreadyExists if the file exists and Overwrite is not set; those of the disk.
func Create(path string, format Format, meta Meta, o WriteOptions) (*Writer, error) {
	format, err := FormatOf(path, format)
	if err != nil {
		return nil, err
	}
	if _, err := checkDim(uint64(max(meta.Dim, 0))); err != nil {
		return nil, err
	}
	if o.DType == 0 {
		o.DType = rowraft.Float32
	}
	if o.DType != rowraft.Float32 && (o.DType != rowraft.BFloat16 || format != SafeTensors) {
		return nil, invalidf("%s has no %s: want float32, or safetensors for bfloat16", format, o.DType)
	}
	w := &Writer{disk: vfs.OrOS(o.Disk), dim: meta.Dim, over: o.Overwrite}
	names := []string{path}
	if format == NPY {
		names = []string{idsPath(path), path}
	}
	if err := w.open(names); err != nil {
		return nil, fmt.Errorf("write %s: %w", path, errors.Join(err, w.Abort()))
	}
	enc, err := w.newEncoder(format, meta, o)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", path, errors.Join(err, w.Abort()))
	}
	w.enc = enc
	return w, nil
}

func (w *Writer) newEncoder(format Format, meta Meta, o WriteOptions) (encoder, error) {
	switch format {
	case SafeTensors:
		return newSafetensorsWriter(w.outputs[0], meta, o.DType)
	case NPY:
		return newNPYWriter(w.outputs[0], w.outputs[1], meta.Dim)
	}
	return newParquetWriter(w.outputs[0], meta, cmp.Or(o.group, groupBytes)), nil
}

func (w *Writer) open(names []string) error {
	for _, name := range names {
		if err := w.mayTake(name); err != nil {
			return err
		}
		o, err := newOutput(w.disk, name)
		if err != nil {
			return err
		}
		w.outputs = append(w.outputs, o)
	}
	return nil
}

// mayTake returns an error for a file that must not be replaced.
func (w *Writer) mayTake(name string) error {
	info, err := w.disk.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return invalidf("%s is not a regular file", name)
	case !w.over:
		return rowraft.Errorf(rowraft.CodeAlreadyExists, "%s exists: remove it, or allow overwriting", name)
	}
	return nil
}

// Append adds rows: len(keys) × dim values, row-major. It keeps neither slice.
//
// Errors: CodeInvalidArgument if the lengths do not fit; those of the disk. After an error only Abort may
// be called.
func (w *Writer) Append(keys []rowraft.Key, values []float32) error {
	if w.err == nil && len(values) != len(keys)*w.dim {
		w.err = invalidf("%d values for %d rows of %d", len(values), len(keys), w.dim)
	}
	if w.err == nil && len(keys) > 0 {
		w.err = w.enc.append(keys, values)
	}
	w.rows += uint64(len(keys))
	return w.err
}

// Rows returns how many rows were appended.
func (w *Writer) Rows() uint64 { return w.rows }

// Commit completes the file and renames it to its name, durably. After an error the directory is unchanged,
// except with two files: in that case the file with the name of the table may be missing.
func (w *Writer) Commit() error {
	err := w.commit()
	return errors.Join(err, w.Abort())
}

func (w *Writer) commit() error {
	if w.err != nil {
		return w.err
	}
	if w.done {
		return rowraft.Errorf(rowraft.CodeInternal, "Commit or Abort was called before")
	}
	if err := w.enc.finish(w.rows); err != nil {
		return err
	}
	for _, o := range w.outputs {
		if err := o.close(); err != nil {
			return err
		}
		if err := w.mayTake(o.name); err != nil {
			return err
		}
	}
	last := w.outputs[len(w.outputs)-1]
	if len(w.outputs) > 1 {
		// A pair of files must not consist of an old and a new one.
		if err := w.disk.Remove(last.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, o := range w.outputs {
		if err := o.rename(); err != nil {
			return err
		}
	}
	return w.disk.SyncDir(filepath.Dir(last.name))
}

// Abort removes what Commit has not renamed. It may be called again. After Commit it does nothing.
func (w *Writer) Abort() error {
	w.done = true
	var errs []error
	if c, ok := w.enc.(interface{ abort() error }); ok {
		errs = append(errs, c.abort())
	}
	for _, o := range w.outputs {
		errs = append(errs, o.remove())
	}
	return errors.Join(errs...)
}
