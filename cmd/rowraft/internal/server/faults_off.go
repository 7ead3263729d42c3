//go:build !rowraft_faults

package server

import (
	"log/slog"

	"github.com/rowraft/rowraft/internal/vfs"
)

// openDisk returns the disk of a server; nil: the operating system's.
func openDisk(*slog.Logger) (vfs.FS, error) { return nil, nil }
