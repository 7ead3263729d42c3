package node

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// checkLogDir creates the directory of the logs, durably, before this server first belongs to a cluster. If
// the server already belongs to one and the directory is missing, or is the empty mount point of a missing
// disk, its logs are lost. Then the server must not start under its old replica ids: it would vote and
// acknowledge a second time for entries that it no longer has.
func checkLogDir(disk vfs.FS, dataDir string, cluster rowraft.ClusterID) error {
	raft := filepath.Join(dataDir, "raft")
	groups := filepath.Join(raft, "groups")
	_, err := disk.Stat(groups)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("directory of the logs: %w", err)
	case err != nil && cluster != "":
		return rowraft.Errorf(rowraft.CodeIdentity,
			"data directory %s belongs to cluster %s, but its logs in %s are gone: bring them back, or start a new server on "+
				"an empty directory", dataDir, cluster, groups)
	}
	if err := vfs.MkdirAll(disk, groups); err != nil {
		return fmt.Errorf("directory of the logs: %w", err)
	}
	return nil
}
