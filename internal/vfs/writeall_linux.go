package vfs

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxVectors is the kernel's limit for one call.
const maxVectors = 1024

// writeVectors writes bufs at offset in as few calls as possible.
func writeVectors(f *os.File, bufs [][]byte, offset int64) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Write(func(fd uintptr) bool {
		for failed == nil {
			for len(bufs) > 0 && len(bufs[0]) == 0 {
				bufs = bufs[1:]
			}
			if len(bufs) == 0 {
				break
			}
			var n int
			n, failed = unix.Pwritev(int(fd), bufs[:min(len(bufs), maxVectors)], offset)
			if failed == unix.EINTR {
				failed = nil
				continue
			}
			if failed == nil && n <= 0 {
				failed = io.ErrShortWrite
			}
			offset += int64(max(n, 0))
			for n > 0 && n >= len(bufs[0]) {
				n -= len(bufs[0])
				bufs = bufs[1:]
			}
			if n > 0 {
				bufs[0] = bufs[0][n:]
			}
		}
		return true
	})
	if failed != nil {
		return &os.PathError{Op: "pwritev", Path: f.Name(), Err: failed}
	}
	return err
}
