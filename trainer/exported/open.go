package exported

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/tablefile"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/tables"
)

// Model is a model that Open has read: its job, its dense weights and its tables, which are read only. Immutable, safe
// for concurrent use.
type Model struct {
	description Description
	config      trainer.Config
	tensors     []tablefile.Tensor
	tables      []*table // in the order of description.Tables; a table's ID is 1 + its index
}

var (
	_ tables.Tables  = (*Model)(nil)
	_ tables.Weights = (*Model)(nil)
)

// Open reads the directory of a model into memory and checks all of it. It needs the memory of the rows, and up to 24
// bytes a row for their ids and places.
//
// Errors: CodeNotFound if there is none; CodeCorrupt if a file is damaged or another one; CodeVersionTooNew;
// CodeInvalidArgument if it is a model without features of files; those of the disk and of ctx.
func Open(ctx context.Context, dir string) (*Model, error) {
	return open(ctx, vfs.OrOS(nil), dir, true)
}

func open(ctx context.Context, disk vfs.FS, dir string, sums bool) (_ *Model, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("model %s: %w", dir, err)
		}
	}()
	text, err := readAll(disk, filepath.Join(dir, descriptionFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "there is no %s: want a directory that rowraft-trainer export wrote",
			descriptionFile)
	} else if err != nil {
		return nil, err
	}
	m := &Model{}
	if err := parse(text, &m.description); err != nil {
		return nil, err
	}
	d := &m.description
	if m.config, err = d.config(); err != nil {
		return nil, fmt.Errorf("%s: %w", descriptionFile, err)
	}
	files := []File{d.Tensors.File}
	for i := range d.Tables {
		files = append(files, d.Tables[i].Files...)
	}
	for i := range files {
		f := &files[i]
		if f.File != filepath.Base(f.File) || slices.ContainsFunc(files[:i], func(o File) bool { return o.File == f.File }) {
			return nil, corruptf("%s names the file %q: want names in the directory, each once", descriptionFile, f.File)
		}
		if err := f.check(ctx, disk, filepath.Join(dir, f.File), sums); err != nil {
			return nil, err
		}
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	if m.tensors, _, err = tablefile.ReadTensors(disk, path(d.Tensors.File.File)); err != nil {
		return nil, err
	}
	for i := range d.Tables {
		t, err := newTable(&d.Tables[i])
		if err == nil {
			err = t.load(disk, path, &d.Tables[i])
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return nil, err
		}
		m.tables = append(m.tables, t)
	}
	return m, nil
}

// maxDescription limits the memory for model.json.
const maxDescription = 64 << 20

func readAll(disk vfs.FS, path string) (_ []byte, err error) {
	f, err := disk.OpenFile(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	text, err := io.ReadAll(io.LimitReader(f, maxDescription+1))
	if len(text) > maxDescription {
		return nil, corruptf("%s has more than %d bytes", path, maxDescription)
	}
	return text, err
}

// parse decodes model.json. It ignores fields that it does not know: a program that must know them has a newer version.
func parse(text []byte, d *Description) error {
	var version struct {
		Version *int `json:"rowraft_model"`
	}
	if err := json.Unmarshal(text, &version); err != nil {
		return corruptf("%s: %w", descriptionFile, err)
	}
	switch v := version.Version; {
	case v == nil || *v < 1:
		return corruptf("%s has no version rowraft_model", descriptionFile)
	case *v > Version:
		return rowraft.Errorf(rowraft.CodeVersionTooNew, "%s: format %d, this binary knows %d", descriptionFile, *v, Version)
	}
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(d); err != nil {
		return corruptf("%s: %w", descriptionFile, err)
	}
	return nil
}

// check compares a file with its size and, with sums, its checksum.
func (f *File) check(ctx context.Context, disk vfs.FS, path string, sums bool) error {
	info, err := disk.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return corruptf("file %s is missing", f.File)
	case err != nil:
		return err
	case info.Size() != f.Bytes:
		return corruptf("file %s has %d bytes: want %d", f.File, info.Size(), f.Bytes)
	case !sums:
		return nil
	}
	sum, err := sumOf(ctx, disk, path)
	if err == nil && sum != f.SHA256 {
		return corruptf("file %s has the SHA-256 %s: want %s", f.File, sum, f.SHA256)
	}
	return err
}

// sumOf returns the SHA-256 of a file, in hexadecimal digits.
func sumOf(ctx context.Context, disk vfs.FS, path string) (_ string, err error) {
	f, err := disk.OpenFile(path, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		n, err := f.Read(buf)
		h.Write(buf[:n])
		switch {
		case err == io.EOF:
			return hex.EncodeToString(h.Sum(nil)), nil
		case err != nil:
			return "", err
		case ctx.Err() != nil:
			return "", ctx.Err()
		}
	}
}

// Config returns the model's job. The caller adds the data, as to that of trainer.LoadModel, and passes m as tables.
func (m *Model) Config() trainer.Config { return m.config }

// Description returns the content of model.json. The caller must not change it.
func (m *Model) Description() *Description { return &m.description }

// Weights implements [tables.Weights].
func (m *Model) Weights(name string, shape []int) ([]float32, error) {
	i := slices.IndexFunc(m.tensors, func(t tablefile.Tensor) bool { return t.Name == name })
	switch {
	case i < 0:
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "model %s has no dense weights called %s", m.description.Job, name)
	case !slices.Equal(m.tensors[i].Shape, shape):
		return nil, invalidf("model %s: the dense weights %s have the shape %v: want %v", m.description.Job, name,
			m.tensors[i].Shape, shape)
	}
	return m.tensors[i].Values, nil
}

// EnsureTable implements [tables.Tables]: it finds a table by its name.
//
// Errors: CodeTableNotFound; CodeTableExists if its rows have another width.
func (m *Model) EnsureTable(_ context.Context, s rowraft.Schema) (rowraft.Schema, error) {
	for i, t := range m.tables {
		switch {
		case t.name != s.Name:
		case t.dim != s.Dim:
			return s, rowraft.Errorf(rowraft.CodeTableExists, "table %s has rows of %d numbers: want %d", s.Name, t.dim, s.Dim)
		default:
			s.ID, s.Initializer = rowraft.TableID(i+1), t.init
			return s, nil
		}
	}
	return s, rowraft.Errorf(rowraft.CodeTableNotFound, "the model has no table %s", s.Name)
}

// Pull implements [tables.Tables]. Keys may repeat and come in any order.
func (m *Model) Pull(_ context.Context, segs []tables.Segment) error {
	for i := range segs {
		s := &segs[i]
		if s.Table < 1 || int(s.Table) > len(m.tables) {
			return rowraft.Errorf(rowraft.CodeTableNotFound, "table %d does not exist", s.Table)
		}
		t := m.tables[s.Table-1]
		if s.Dim != t.dim || len(s.Values) != len(s.Keys)*s.Dim {
			return invalidf("table %s: %d keys, dim %d, %d values: the table has dim %d", t.name, len(s.Keys), s.Dim,
				len(s.Values), t.dim)
		}
		for k, key := range s.Keys {
			t.row(key, s.Values[k*s.Dim:(k+1)*s.Dim])
		}
	}
	return nil
}

// Push implements [tables.Tables]: it returns CodePrecondition.
func (m *Model) Push(context.Context, []tables.Segment) error { return errReadOnly }

// Copies implements [tables.Tables]: there are none.
func (m *Model) Copies() client.Copies { return client.Copies{} }

// KeyPerShard implements [tables.Tables]: it returns CodePrecondition.
func (m *Model) KeyPerShard(context.Context, rowraft.TableID) ([]rowraft.Key, error) {
	return nil, errReadOnly
}

var errReadOnly = rowraft.Errorf(rowraft.CodePrecondition, "an exported model is read only: it cannot be trained")
