package depot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/vfs"
)

// Dir is a directory that all servers see under the same path.
type Dir struct {
	fs   vfs.FS
	root string
}

// NewDir returns the depot in root, which need not exist yet.
func NewDir(fs vfs.FS, root string) *Dir { return &Dir{fs: fs, root: root} }

func (d *Dir) String() string { return d.root }

func (d *Dir) path(name string) string { return filepath.Join(d.root, filepath.FromSlash(name)) }

// Write implements Depot.
func (d *Dir) Write(ctx context.Context, name string, fill func(io.Writer) error) error {
	dir := filepath.Dir(d.path(name))
	if err := d.mkdir(dir); err != nil {
		return d.explain(name, err)
	}
	f, err := d.fs.OpenFile(d.path(name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY)
	if err != nil {
		return d.explain(name, err)
	}
	w := bufio.NewWriterSize(ctxWriter{ctx, f}, 1<<20)
	err = fill(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		// The content before the entry in the directory: a checkpoint that is found after a power cut must have its bytes.
		err = f.Sync()
		moved(ctx)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = d.fs.SyncDir(dir)
	}
	if err != nil {
		// A file that is not whole must not stay: the maker of a checkpoint looks for names and sizes only.
		return errors.Join(d.explain(name, err), d.remove(name))
	}
	return nil
}

// Put implements Depot.
func (d *Dir) Put(_ context.Context, name string, content []byte) error {
	file := d.path(name)
	if err := d.mkdir(filepath.Dir(file)); err != nil {
		return d.explain(name, err)
	}
	if err := vfs.ReplaceFile(d.fs, file+".tmp", file, content); err != nil {
		return errors.Join(d.explain(name, err), d.remove(name+".tmp"))
	}
	return nil
}

// PutNew implements Depot. A file of its own keeps a second one out meanwhile.
func (d *Dir) PutNew(ctx context.Context, name string, content []byte) error {
	taken := rowraft.Errorf(rowraft.CodeAlreadyExists, "%s exists in %s, or is being written", name, d.root)
	if err := d.mkdir(filepath.Dir(d.path(name))); err != nil {
		return d.explain(name, err)
	}
	// Of two servers that share the directory, one creates the claim. The file itself is not created with O_EXCL, because
	// it must appear with its whole content.
	claim, err := d.fs.OpenFile(d.path(name+".claim"), os.O_CREATE|os.O_EXCL|os.O_WRONLY)
	if errors.Is(err, fs.ErrExist) {
		return taken
	}
	if err != nil {
		return d.explain(name, err)
	}
	err = claim.Close()
	if err == nil {
		if _, err = d.fs.Stat(d.path(name)); err == nil {
			err = taken
		} else if errors.Is(err, fs.ErrNotExist) {
			err = d.Put(ctx, name, content)
		}
	}
	return errors.Join(err, d.remove(name+".claim"))
}

// mkdir makes dir, and its entry durable.
func (d *Dir) mkdir(dir string) error {
	if _, err := d.fs.Stat(dir); err == nil {
		return nil
	}
	if err := vfs.MkdirAll(d.fs, dir); err != nil {
		return err
	}
	return d.fs.SyncDir(filepath.Dir(dir))
}

// explain gives a full disk its name.
func (d *Dir) explain(name string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return rowraft.Errorf(rowraft.CodeOverloaded, "the disk of %s is full: %w", d.root, err)
	}
	if rowraft.CodeOf(err) != rowraft.CodeUnknown {
		return err
	}
	return fmt.Errorf("write %s in %s: %w", name, d.root, err)
}

// Open implements Depot.
func (d *Dir) Open(_ context.Context, name string) (io.ReadCloser, error) {
	f, err := d.fs.OpenFile(d.path(name), os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "there is no %s in %s", name, d.root)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// List implements Depot.
func (d *Dir) List(ctx context.Context, name string) ([]Entry, error) {
	if name != "" {
		return d.list(ctx, name)
	}
	entries, err := d.fs.ReadDir(d.root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Entry
	for _, e := range entries {
		if !e.IsDir() || CheckName(e.Name()) != nil { // lost+found, say
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		moved(ctx)
		found, err := d.list(ctx, e.Name())
		if errors.Is(err, fs.ErrPermission) {
			// Another's directory must not hide the checkpoints. It shows as one whose manifest cannot be read.
			found, err = []Entry{{Name: path.Join(e.Name(), checkpoint.ManifestFile)}}, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

func (d *Dir) list(ctx context.Context, name string) ([]Entry, error) {
	entries, err := d.fs.ReadDir(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	moved(ctx)
	var out []Entry
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		moved(ctx)
		out = append(out, Entry{path.Join(name, e.Name()), info.Size()})
	}
	return out, nil
}

// Remove implements Depot. What it removed stays removed when it returns: a manifest
// must not come back when its files are gone. A directory that became empty goes too.
func (d *Dir) Remove(ctx context.Context, names ...string) error {
	for _, n := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := d.remove(n); err != nil {
			return err
		}
		moved(ctx)
	}
	dirs := map[string]bool{}
	for _, n := range names {
		dir, _, ok := strings.Cut(n, "/")
		if !ok || dirs[dir] {
			continue
		}
		dirs[dir] = true
		left, err := d.fs.ReadDir(d.path(dir))
		moved(ctx)
		switch {
		case err != nil:
			continue // it is gone
		case len(left) > 0:
			err = d.fs.SyncDir(d.path(dir))
		default:
			if err = d.remove(dir); err == nil {
				err = d.fs.SyncDir(d.root)
			}
		}
		if err != nil {
			return err
		}
		moved(ctx)
	}
	return nil
}

func (d *Dir) remove(name string) error {
	err := d.fs.Remove(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ctxWriter stops writing when ctx ends.
type ctxWriter struct {
	ctx context.Context
	w   io.Writer
}

func (w ctxWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	defer moved(w.ctx)
	return w.w.Write(p)
}
