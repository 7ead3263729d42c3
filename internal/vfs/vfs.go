package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// FS is a disk. Safe for concurrent use. Errors match fs.ErrNotExist and
// fs.ErrExist where they mean that, and name the path.
type FS interface {
	// Mkdir makes one directory, whose parent exists.
	Mkdir(dir string) error
	// OpenFile opens name with the flags of package os.
	OpenFile(name string, flag int) (File, error)
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// Rename replaces to by from.
	Rename(from, to string) error
	// ReadDir lists dir in the order of the names.
	ReadDir(dir string) ([]fs.DirEntry, error)
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes the entries of dir durable.
	SyncDir(dir string) error
	// Lock makes the file name, if it is not there, and keeps every other owner out
	// of it until the Closer is closed or the process ends. It does not wait: if
	// somebody has it, the error is a *LockedError.
	Lock(name string) (io.Closer, error)
	// Free is the space below dir that an ordinary user may still use, in bytes.
	Free(dir string) (int64, error)
}

// File is an open file. ReadAt and WriteAt may be called beside each other;
// Read and Write share one position.
type File interface {
	io.Reader
	io.ReaderAt
	io.Writer
	io.WriterAt
	io.Closer
	// Name is the path that the file was opened with.
	Name() string
	// Sync makes the content durable.
	Sync() error
	Truncate(size int64) error
	// Allocate reserves disk space for the first size bytes and grows the file to
	// that length. Where the disk cannot reserve, the file only grows.
	Allocate(size int64) error
}

// LogWaiter is a disk that can be late before a write to a log begins, while the
// writer holds no lock. In virtual time (testing/synctest) a disk must not be late
// in the middle of it: time stands still while anybody waits for the log's lock.
type LogWaiter interface {
	WaitLog(dir string)
}

// LockedError reports that a lock is taken. Owner is the process id, "" if
// unknown.
type LockedError struct{ Name, Owner string }

func (e *LockedError) Error() string {
	if e.Owner == "" {
		return fmt.Sprintf("%s is locked by another process", e.Name)
	}
	return fmt.Sprintf("%s is locked by the process with pid %s", e.Name, e.Owner)
}

// OrOS returns f, or the operating system's disk if f is nil.
func OrOS(f FS) FS {
	if f == nil {
		return OS
	}
	return f
}

// MkdirAll makes dir and the parents that are missing, durably. It syncs the entry
// of a directory that is there already, too: the process that made it may have died
// before it was durable.
func MkdirAll(f FS, dir string) error {
	info, err := f.Stat(dir)
	switch {
	case err == nil && info.IsDir():
		return syncParent(f, dir)
	case err == nil:
		return &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if up := filepath.Dir(dir); up != dir {
		if err := MkdirAll(f, up); err != nil {
			return err
		}
	}
	if err := f.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncParent(f, dir)
}

// syncParent makes the entry of dir durable. Where the parent may not be read,
// somebody else made the entry.
func syncParent(f FS, dir string) error {
	err := f.SyncDir(filepath.Dir(dir))
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// RemoveAll removes name and everything below it, one by one: a crash may leave
// any part of it. That it is not there is no error.
func RemoveAll(f FS, name string) error {
	info, err := f.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		entries, err := f.ReadDir(name)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := RemoveAll(f, filepath.Join(name, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := f.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ReadFile returns the content of name.
func ReadFile(f FS, name string) ([]byte, error) {
	file, err := f.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(file)
	return b, errors.Join(err, file.Close())
}

// WriteFile makes or replaces the content of name and syncs it; the caller syncs
// the directory. A crash before it returns may leave any part of the content.
func WriteFile(f FS, name string, content []byte) error {
	file, err := f.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// ReplaceFile puts content under name, durably: after a crash the file has its
// old content or the new one. temp is a name in the same directory.
func ReplaceFile(f FS, temp, name string, content []byte) error {
	if err := WriteFile(f, temp, content); err != nil {
		return err
	}
	if err := f.Rename(temp, name); err != nil {
		return err
	}
	return f.SyncDir(filepath.Dir(name))
}
