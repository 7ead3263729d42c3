//go:build !linux

package vfs

import "os"

func writeVectors(f *os.File, bufs [][]byte, offset int64) error {
	_, err := writeEach(f, bufs, offset)
	return err
}
