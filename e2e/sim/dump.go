package sim

import (
	"os"
	"path/filepath"

	"github.com/rowraft/rowraft/internal/vfs"
)

// dump writes what is below from on a disk into a directory of the operating system.
func dump(disk vfs.FS, from, to string) error {
	entries, err := disk.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, e := range entries {
		src, dst := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.IsDir() {
			err = dump(disk, src, dst)
		} else {
			var b []byte
			if b, err = vfs.ReadFile(disk, src); err == nil {
				err = os.WriteFile(dst, b, 0o600)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
