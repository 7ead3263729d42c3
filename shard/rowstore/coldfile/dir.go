package coldfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// Dir is the directory with the files of one replica. Dir removes a file when no table has it open, and neither the
// newest durable snapshot nor one that is being written refers to it. Safe for concurrent use.
type Dir struct {
	disk vfs.FS
	path string

	mu     sync.Mutex
	open   map[string]bool // names of the files of open tables
	kept   map[string]bool // names of the files of the newest durable snapshot
	held   map[string]int  // names of the files of snapshots that are being written
	closed map[string]bool // those of kept and held that no table has open
	stale  map[string]bool // files that were there at the start and that no table has opened
}

const fileSuffix = ".rows"

func fileName(table rowraft.TableID, id ID) string {
	return fmt.Sprintf("%016x-%x%s", uint64(table), id, fileSuffix)
}

// OpenDir opens the directory path, which need not exist.
func OpenDir(disk vfs.FS, path string) (*Dir, error) {
	d := &Dir{disk: disk, path: path, open: map[string]bool{}, kept: map[string]bool{}, held: map[string]int{},
		closed: map[string]bool{}, stale: map[string]bool{}}
	entries, err := disk.ReadDir(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), fileSuffix) {
			d.stale[e.Name()] = true
		}
	}
	return d, nil
}

// RemoveStale removes the files that were there when OpenDir was called and that no table has opened since: the tables
// that the state has now do not refer to them.
func (d *Dir) RemoveStale() error {
	d.mu.Lock()
	var names []string
	for name := range d.stale { //tidy:allow determinism files are removed in any order
		names = append(names, name)
	}
	clear(d.stale)
	d.mu.Unlock()
	var errs []error
	for _, name := range names {
		errs = append(errs, d.remove(name))
	}
	return errors.Join(errs...)
}

func (d *Dir) remove(name string) error { return d.disk.Remove(filepath.Join(d.path, name)) }

// Create returns a new file. The first write creates it, so that a disk without room for it fails as one without room
// for rows does.
func (d *Dir) Create(table rowraft.TableID, id ID) Disk {
	f := &dirFile{dir: d, name: fileName(table, id)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open[f.name] = true
	return f
}

// Open opens a file that a snapshot refers to.
//
// Errors: CodeCorrupt if it is missing; CodeInternal if it is open.
func (d *Dir) Open(table rowraft.TableID, id ID) (Disk, error) {
	f := &dirFile{dir: d, name: fileName(table, id), durable: true}
	var err error
	if f.file, err = d.find(f.name, os.O_RDWR); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open[f.name] {
		return nil, errors.Join(rowraft.Errorf(rowraft.CodeInternal, "%s is open already", f.name), f.file.Close())
	}
	d.open[f.name], d.kept[f.name] = true, true // also if the restore fails
	delete(d.stale, f.name)
	delete(d.closed, f.name)
	return f, nil
}

func (d *Dir) find(name string, flag int) (vfs.File, error) {
	f, err := d.disk.OpenFile(filepath.Join(d.path, name), flag)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt,
			"the snapshot refers to rows in %s, which is missing: remove the replica from its group and add a new one: %w",
			filepath.Join(d.path, name), err)
	}
	return f, err
}

// OpenForReading opens a file whose table may be open. The result must not be written.
//
// Errors: CodeCorrupt if it is missing.
func (d *Dir) OpenForReading(table rowraft.TableID, id ID) (Disk, error) {
	return d.find(fileName(table, id), os.O_RDONLY)
}

// Refs are the files that a snapshot refers to.
type Refs map[rowraft.TableID]ID

// Hold keeps files of open tables until Release, because a snapshot that refers to them is being written.
func (d *Dir) Hold(refs Refs) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for table, id := range refs { //tidy:allow determinism a set
		d.held[fileName(table, id)]++
	}
}

// Release ends a Hold.
func (d *Dir) Release(refs Refs) error {
	return d.removeUnused(func() {
		for table, id := range refs { //tidy:allow determinism a set
			name := fileName(table, id)
			if d.held[name]--; d.held[name] <= 0 {
				delete(d.held, name)
			}
		}
	})
}

// Keep names the files of a durable snapshot: they stay when their tables are closed. With sure, files that only
// earlier snapshots had are removed when no table has them open; without, they stay too.
func (d *Dir) Keep(refs Refs, sure bool) error {
	return d.removeUnused(func() {
		if sure {
			clear(d.kept)
		}
		for table, id := range refs { //tidy:allow determinism a set
			d.kept[fileName(table, id)] = true
		}
	})
}

// removeUnused calls change with the lock, and then removes the closed files that nothing needs.
func (d *Dir) removeUnused(change func()) error {
	d.mu.Lock()
	change()
	var gone []string
	for name := range d.closed { //tidy:allow determinism files are removed in any order
		if !d.kept[name] && d.held[name] == 0 {
			gone = append(gone, name)
			delete(d.closed, name)
		}
	}
	d.mu.Unlock()
	var errs []error
	for _, name := range gone {
		errs = append(errs, d.remove(name))
	}
	return errors.Join(errs...)
}

// dirFile is the file of one table.
type dirFile struct {
	dir  *Dir
	name string

	mu      sync.Mutex
	file    vfs.File // nil until the first write
	durable bool     // its name is
}

var errNotWritten = errors.New("the file was never written")

func (f *dirFile) get(create bool) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil {
		return f.file, nil
	}
	if !create {
		return nil, errNotWritten
	}
	err := vfs.MkdirAll(f.dir.disk, f.dir.path)
	if err == nil {
		f.file, err = f.dir.disk.OpenFile(filepath.Join(f.dir.path, f.name), os.O_CREATE|os.O_EXCL|os.O_RDWR)
	}
	return f.file, err
}

func (f *dirFile) ReadAt(b []byte, at int64) (int, error) {
	file, err := f.get(false)
	if err != nil {
		return 0, err
	}
	return file.ReadAt(b, at)
}

func (f *dirFile) WriteAt(b []byte, at int64) (int, error) {
	file, err := f.get(true)
	if err != nil {
		return 0, err
	}
	return file.WriteAt(b, at)
}

func (f *dirFile) Sync() error {
	file, err := f.get(true)
	if err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	f.mu.Lock()
	durable := f.durable
	f.mu.Unlock()
	if durable {
		return nil
	}
	if err := f.dir.disk.SyncDir(f.dir.path); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.durable = true
	return nil
}

// Close closes the file, and removes it if no snapshot refers to it. It must not run concurrently with the
// other methods.
func (f *dirFile) Close() error {
	d := f.dir
	d.mu.Lock()
	kept := d.kept[f.name] || d.held[f.name] > 0
	delete(d.open, f.name)
	if kept && f.file != nil {
		d.closed[f.name] = true
	}
	d.mu.Unlock()
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	if !kept {
		err = errors.Join(err, d.remove(f.name))
	}
	return err
}
