package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// OS is the disk of the operating system.
var OS FS = osFS{}

type osFS struct{}

func (osFS) Mkdir(dir string) error                    { return os.Mkdir(dir, 0o700) }
func (osFS) Remove(name string) error                  { return os.Remove(name) }
func (osFS) Rename(from, to string) error              { return os.Rename(from, to) }
func (osFS) ReadDir(dir string) ([]fs.DirEntry, error) { return os.ReadDir(dir) }
func (osFS) Stat(name string) (fs.FileInfo, error)     { return os.Stat(name) }

func (osFS) OpenFile(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Lock writes the pid into the file, for operators; the lock itself is in the kernel.
func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		owner, _ := io.ReadAll(io.LimitReader(f, 32))
		f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
		}
		return nil, &LockedError{Name: name, Owner: strings.TrimSpace(string(owner))}
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (osFS) Free(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

type osFile struct{ *os.File }

func (f osFile) Allocate(size int64) error {
	err := allocate(f.File, size)
	if errors.Is(err, errors.ErrUnsupported) {
		info, err := f.Stat()
		if err != nil || info.Size() >= size {
			return err
		}
		return f.Truncate(size)
	}
	if err != nil {
		return &fs.PathError{Op: "allocate", Path: f.Name(), Err: err}
	}
	return nil
}

func (f osFile) Sync() error { return dataSync(f.File) }

func (f osFile) direct(on bool) bool { return direct(f.File, on) }
