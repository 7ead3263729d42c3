package replica

import (
	"fmt"
	"path/filepath"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// coldDir is the directory with the cold rows of one replica: DIR/cold/shard-N.REPLICA. The snapshots of the replica's
// group refer to its files.
func (h *Host) coldDir(shard rowraft.ShardID, id rowraft.ReplicaID) string {
	return filepath.Join(h.opts.DataDir, "cold", fmt.Sprintf("%s.%s", groupName(shard), id))
}

// removeColdDir removes the cold rows of a replica that left. REQUIRES: it does not run.
func (h *Host) removeColdDir(shard rowraft.ShardID, id rowraft.ReplicaID) error {
	if err := vfs.RemoveAll(vfs.OrOS(h.opts.FS), h.coldDir(shard, id)); err != nil {
		return fmt.Errorf("shard %d: remove the cold rows: %w", shard, err)
	}
	return nil
}
