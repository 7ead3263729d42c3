package node

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/scheduler"
)

// mayLog refuses an entry for the log of a shard if some server of the cluster does not understand its
// version: a replica with such an entry in its log stops.
func (n *Node) mayLog(shard rowraft.ShardID, version rowraft.FormatVersion) error {
	at := scheduler.FormatVersion(n.host.Map())
	if version <= at {
		return nil
	}
	// If no older server is named, the refusal is temporary: this server's map is old, after a restart, or
	// the scheduler is about to raise the version.
	if oldest, _ := n.oldest.Load().(string); oldest != "" {
		return rowraft.Errorf(rowraft.CodeVersionTooNew,
			"shard %d: this needs a log entry of version %d, the cluster is at %d: %s", shard, version, at, oldest)
	}
	return rowraft.Errorf(rowraft.CodeStarting,
		"shard %d: this needs a log entry of version %d, the cluster is at %d as far as this server knows", shard, version,
		at)
}
