package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rowraft/rowraft"
)

// checkLogDir makes the directory of the logs, durably, before this server first
// belongs to a cluster. So where a server belongs to one and the directory is not
// there, or is the empty mount point of a disk that is missing, its logs are lost.
// It must not come back under its old replica ids then: it would vote and
// acknowledge a second time for entries it no longer has (HAZARDS: a wiped disk
// under an old id).
func checkLogDir(dataDir string, cluster rowraft.ClusterID) error {
	raft := filepath.Join(dataDir, "raft")
	groups := filepath.Join(raft, "groups")
	_, err := os.Stat(groups)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("directory of the logs: %w", err)
	case cluster != "":
		return rowraft.Errorf(rowraft.CodeIdentity,
			"data directory %s belongs to cluster %s, but its logs in %s are gone: bring them back, or start a new server on an empty directory", dataDir, cluster, groups)
	}
	if err := os.MkdirAll(groups, 0o700); err != nil {
		return fmt.Errorf("directory of the logs: %w", err)
	}
	for _, dir := range []string{raft, dataDir} {
		f, err := os.Open(dir)
		if err != nil {
			return fmt.Errorf("directory of the logs: %w", err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return fmt.Errorf("directory of the logs: %w", err)
		}
	}
	return nil
}
