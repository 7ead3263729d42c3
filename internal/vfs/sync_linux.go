package vfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// dataSync makes the content and the length of f durable. fsync would also store the time of the last write, and the
// file system would write its journal for that.
func dataSync(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
