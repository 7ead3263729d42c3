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

// FS is a disk. Safe for concurrent use. Errors match fs.ErrNotExist and fs.ErrExist where these apply, and
// name the path.
type FS interface {
	// Mkdir creates one directory, whose parent must exist.
	Mkdir(dir string) error
	// OpenFile opens name with the flags of package os.
	OpenFile(name string, flag int) (File, error)
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// Rename moves from to to and replaces to.
	Rename(from, to string) error
	// ReadDir lists dir, sorted by name.
	ReadDir(dir string) ([]fs.DirEntry, error)
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes the entries of dir durable.
	SyncDir(dir string) error
	// Lock creates the file name if it does not exist, and keeps every other owner out until the Closer is
	// closed or the process ends. It does not wait: if another owner holds the lock, the error is a
	// *LockedError.
	Lock(name string) (io.Closer, error)
	// Free returns the space below dir that an ordinary user may still use, in bytes.
	Free(dir string) (int64, error)
}

// File is an open file. ReadAt and WriteAt may be called concurrently; Read and Write share one position.
type File interface {
	io.Reader
	io.ReaderAt
	io.Writer
	io.WriterAt
	io.Closer
	// Name returns the path with which the file was opened.
	Name() string
	// Sync makes the content durable.
	Sync() error
	Truncate(size int64) error
	// Allocate reserves disk space for the first size bytes and extends the file to that length. If the
	// disk cannot reserve space, it only extends the file.
	Allocate(size int64) error
}

// LogWaiter is a disk that can delay a write to a log before it begins, while the writer holds no lock. In
// virtual time (testing/synctest) a delay during the write is impossible: time does not advance while a
// goroutine waits for the log's lock.
type LogWaiter interface {
	WaitLog(dir string)
}

// LockedError reports that a lock is taken. Owner is the process id, empty if unknown.
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

// MkdirAll creates dir and its missing parents durably. It also syncs the entry of an existing directory:
// the process that created it may have died before the entry was durable.
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

// syncParent makes the entry of dir durable. If the parent may not be read, another user has made the entry.
func syncParent(f FS, dir string) error {
	err := f.SyncDir(filepath.Dir(dir))
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// RemoveAll removes name and everything below it, one by one: after a crash any part may remain. A missing
// name is not an error.
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

// WriteFile creates or replaces the content of name and syncs it; the caller syncs the directory. After a
// crash during the call any part of the content may be there.
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

// writeAll writes bufs one after the other at offset, and returns how many bytes they have. On the operating system's
// disk that is one system call. It changes the elements of bufs.
func writeAll(f File, bufs [][]byte, offset int64) (written int64, err error) {
	if osf, ok := f.(osFile); ok {
		for _, b := range bufs {
			written += int64(len(b))
		}
		return written, writeVectors(osf.File, bufs, offset)
	}
	return writeEach(f, bufs, offset)
}

func writeEach(f io.WriterAt, bufs [][]byte, offset int64) (written int64, err error) {
	for _, b := range bufs {
		if _, err := f.WriteAt(b, offset+written); err != nil {
			return written, err
		}
		written += int64(len(b))
	}
	return written, nil
}

// ReplaceFile durably replaces the content of name: after a crash the file has its old content or the new
// one. temp is an unused name in the same directory.
func ReplaceFile(f FS, temp, name string, content []byte) error {
	if err := WriteFile(f, temp, content); err != nil {
		return err
	}
	if err := f.Rename(temp, name); err != nil {
		return err
	}
	return f.SyncDir(filepath.Dir(name))
}
