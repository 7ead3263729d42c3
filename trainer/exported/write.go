package exported

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/tablefile"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/state"
	"github.com/rowraft/rowraft/wire"
)

// Export is a model that Write writes.
type Export struct {
	Model  *trainer.Model
	Source Source // without the time
	// Scan calls rows with every row of the tables, a batch at a time, in any order of the tables; table is an index in
	// tables.
	Scan func(ctx context.Context, tables []rowraft.Schema, rows func(table int, keys []rowraft.Key,
		weights []float32) error) error
	// Saved is the state of a trainer in the checkpoint that the tables are from, or nil. Write reads dense weights after
	// Scan.
	Saved *state.State
	// Progress is called after each batch with the rows written so far; nil: not.
	Progress func(rows uint64)

	fileBytes int64 // largest file of rows; 0: 4 GiB
}

// fileBytes is how many bytes of rows a file has before the next one begins.
const fileBytes = 4 << 30

// Write writes the model to the new directory dir, whose parent exists, and returns its description.
//
// Errors: CodeAlreadyExists if there is a file or a directory called dir; those of the tables, the disk and ctx. After
// an error there is no dir.
func (e *Export) Write(ctx context.Context, dir string) (*Description, error) {
	dir = filepath.Clean(dir)
	disk := vfs.OrOS(nil)
	if err := refuse(disk, dir); err != nil {
		return nil, err
	}
	temp := dir + "." + rand.Text() + ".partial"
	if err := disk.Mkdir(temp); err != nil {
		return nil, err
	}
	d, err := e.write(ctx, disk, temp)
	if err == nil {
		err = errors.Join(ctx.Err(), disk.SyncDir(temp))
	}
	if err == nil {
		err = refuse(disk, dir)
	}
	if err == nil {
		err = disk.Rename(temp, dir)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(temp))
	}
	return d, disk.SyncDir(filepath.Dir(dir))
}

// refuse returns an error if there is something called dir.
func refuse(disk vfs.FS, dir string) error {
	_, err := disk.Stat(dir)
	switch {
	case err == nil:
		return rowraft.Errorf(rowraft.CodeAlreadyExists, "%s exists: give the name of a new directory", dir)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

func (e *Export) write(ctx context.Context, disk vfs.FS, dir string) (*Description, error) {
	d := &Description{Version: Version, Source: e.Source, Tables: []Table{}}
	d.Source.Time = time.Now().UTC().Format(time.RFC3339)
	cfg, schemas := e.Model.Config(), e.Model.Embeddings()
	dtype, err := rowraft.ParseDType(cfg.DType)
	if err != nil {
		return nil, err
	}
	out := &rowFiles{disk: disk, dir: dir, source: e.Source.From, dtype: dtype, most: e.fileBytes}
	defer out.abort()
	if out.most == 0 {
		out.most = fileBytes
	}
	for i := range schemas {
		rounded := dtype
		if schemas[i].StorageType() == rowraft.BFloat16 {
			rounded = rowraft.BFloat16
		}
		d.Tables = append(d.Tables, Table{Name: schemas[i].Name, Dim: schemas[i].Dim,
			Initializer: initializerOf(schemas[i].Initializer), Rounded: rounded.String()})
		if err := out.open(&schemas[i]); err != nil { // a table without rows has a file, too
			return nil, err
		}
	}
	d.describe(cfg)
	rows := uint64(0)
	err = e.Scan(ctx, schemas, func(table int, keys []rowraft.Key, weights []float32) error {
		rows += uint64(len(keys))
		if e.Progress != nil {
			e.Progress(rows)
		}
		return errors.Join(ctx.Err(), out.append(table, keys, weights))
	})
	if err != nil {
		return nil, err
	}
	if err := out.commit(ctx, d.Tables); err != nil {
		return nil, err
	}
	params, flat, err := e.Model.Weights(ctx, e.Saved)
	if err != nil {
		return nil, err
	}
	var tensors []tablefile.Tensor
	for _, p := range params {
		n := p.Size()
		tensors = append(tensors, tablefile.Tensor{Name: p.Name, Shape: p.Shape, Values: flat[:n]})
		d.Tensors.Names = append(d.Tensors.Names, p.Name)
		flat = flat[n:]
	}
	d.Tensors.Names = some(d.Tensors.Names)
	path := filepath.Join(dir, tensorsFile)
	err = tablefile.WriteTensors(path, tensors, map[string]string{"rowraft.version": "1", "rowraft.job": cfg.Job,
		"rowraft.source": e.Source.From}, tablefile.WriteOptions{Disk: disk})
	if err != nil {
		return nil, err
	}
	if d.Tensors.File, err = describeFile(ctx, disk, path); err != nil {
		return nil, err
	}
	return d, writeDescription(disk, filepath.Join(dir, descriptionFile), d)
}

func writeDescription(disk vfs.FS, path string, d *Description) (err error) {
	text, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return invalidf("the schema has numbers that JSON has not: %w", err)
	}
	f, err := disk.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}

func describeFile(ctx context.Context, disk vfs.FS, path string) (File, error) {
	info, err := disk.Stat(path)
	if err != nil {
		return File{}, err
	}
	sum, err := sumOf(ctx, disk, path)
	return File{File: filepath.Base(path), Bytes: info.Size(), SHA256: sum}, err
}

// rowFiles are the files of all tables that are being written.
type rowFiles struct {
	disk   vfs.FS
	dir    string
	source string
	dtype  rowraft.DType // to which weights are rounded
	most   int64         // bytes of rows in a file
	tables []rowFile
}

// rowFile is the last file of one table.
type rowFile struct {
	schema *rowraft.Schema
	w      *tablefile.Writer
	name   string
	done   []File // the files before, without size and checksum
}

// open adds a table.
func (r *rowFiles) open(s *rowraft.Schema) error {
	r.tables = append(r.tables, rowFile{schema: s})
	return r.next(&r.tables[len(r.tables)-1])
}

// next begins a file of t: NAME.safetensors, NAME+2.safetensors and so on. No table has a + in its name.
func (r *rowFiles) next(t *rowFile) (err error) {
	t.name = t.schema.Name
	if n := len(t.done); n > 0 {
		t.name += fmt.Sprintf("+%d", n+1)
	}
	t.name += "." + string(tablefile.SafeTensors)
	t.w, err = tablefile.Create(filepath.Join(r.dir, t.name), tablefile.SafeTensors,
		tablefile.MetaOf(*t.schema, r.source), tablefile.WriteOptions{Disk: r.disk})
	return err
}

func (r *rowFiles) append(table int, keys []rowraft.Key, weights []float32) error {
	t := &r.tables[table]
	wire.RoundTo(r.dtype, weights)
	rowBytes := 8 + 4*t.schema.Dim
	if int64(t.w.Rows())*int64(rowBytes) >= r.most {
		if err := t.end(); err != nil {
			return err
		}
		if err := r.next(t); err != nil {
			return err
		}
	}
	return t.w.Append(keys, weights)
}

// end completes the file.
func (t *rowFile) end() error {
	t.done = append(t.done, File{File: t.name, Rows: t.w.Rows()})
	return t.w.Commit()
}

// commit completes all files and describes them.
func (r *rowFiles) commit(ctx context.Context, to []Table) error {
	for i := range r.tables {
		t := &r.tables[i]
		if err := t.end(); err != nil {
			return err
		}
		for _, f := range t.done {
			one, err := describeFile(ctx, r.disk, filepath.Join(r.dir, f.File))
			if err != nil {
				return err
			}
			one.Rows = f.Rows
			to[i].Rows += f.Rows
			to[i].Files = append(to[i].Files, one)
		}
	}
	return nil
}

// abort removes what was not completed.
func (r *rowFiles) abort() {
	for i := range r.tables {
		if w := r.tables[i].w; w != nil {
			_ = w.Abort() // the directory is removed after an error
		}
	}
}
