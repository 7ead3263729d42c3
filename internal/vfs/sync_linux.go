package vfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// dataSync makes the content and the length of f durable. fsync would also store the time of the last write, and the
// file system would write its journal for that.
func dataSync(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		for failed = unix.EINTR; failed == unix.EINTR; {
			failed = unix.Fdatasync(int(fd))
		}
	})
	if failed != nil {
		return &os.PathError{Op: "sync", Path: f.Name(), Err: failed}
	}
	return err
}
