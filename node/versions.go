package node

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/scheduler"
	"github.com/rowraft/rowraft/wire"
)

// mayLog refuses an entry for the log of a shard that a server of the cluster does not
// understand: a replica that has such an entry in its log stops.
func (n *Node) mayLog(shard rowraft.ShardID, version rowraft.FormatVersion) error {
	at := scheduler.FormatVersion(n.cluster.Load())
	if version <= at {
		return nil
	}
	// Without the name of an older server the refusal is for a moment only: this server's map
	// is an old one, after a restart, or the scheduler is about to raise the version.
	if oldest, _ := n.oldest.Load().(string); oldest != "" {
		return rowraft.Errorf(rowraft.CodeVersionTooNew, "shard %d: this needs a log entry of version %d, the cluster is at %d: %s", shard, version, at, oldest)
	}
	return rowraft.Errorf(rowraft.CodeStarting, "shard %d: this needs a log entry of version %d, the cluster is at %d as far as this server knows", shard, version, at)
}

// mayLogEntry is mayLog for an entry that this replica is about to propose. Pushes and
// steps pass it by: they are of the first version. A later operation must be
// checked before it waits for an entry that it shares with others.
func (r *replica) mayLogEntry(entry []byte) error {
	h, _, err := wire.ParseEntryHeader(entry)
	if err != nil || r.mayLogVersion == nil {
		return err
	}
	return r.mayLogVersion(r.shard, h.Version)
}
