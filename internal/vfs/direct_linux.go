package vfs

import (
	"os"
	"syscall"
)

func direct(f *os.File, on bool) bool {
	fd := f.Fd()
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFL, 0)
	if errno != 0 {
		return false
	}
	want := flags &^ syscall.O_DIRECT
	if on {
		want |= syscall.O_DIRECT
	}
	if _, _, errno = syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_SETFL, want); errno != 0 {
		return flags&syscall.O_DIRECT != 0
	}
	return on
}
