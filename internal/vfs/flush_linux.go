package vfs

import (
	"os"
	"syscall"
)

// Flags of sync_file_range.
const (
	waitBefore = 1
	startWrite = 2
	waitAfter  = 4
)

func flush(f *os.File, from, to int64, wait bool) error {
	flags := startWrite
	if wait {
		flags |= waitBefore | waitAfter
	}
	for {
		if err := syscall.SyncFileRange(int(f.Fd()), from, to-from, flags); err != syscall.EINTR {
			return err
		}
	}
}
