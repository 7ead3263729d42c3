package node

import (
	"cmp"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/scheduler"
	"github.com/rowraft/rowraft/wire"
)

// mayLog refuses an entry for the log of a shard that not every server of the cluster
// can apply: who has it in its log and does not know it must stop.
func (n *Node) mayLog(shard rowraft.ShardID, version uint16) error {
	m := n.cluster.Load()
	if m == nil || version <= scheduler.ApplyVersion(m) {
		return nil
	}
	held, _ := n.heldBack.Load().(string)
	return rowraft.Errorf(rowraft.CodeVersionTooNew, "shard %d: this needs a log entry of version %d, the cluster is at %d: %s",
		shard, version, scheduler.ApplyVersion(m), cmp.Or(held, "the scheduler has not heard yet what every server understands"))
}

// mayLog is that of the server, for what this replica is about to propose.
func (r *replica) mayLog(version uint16) error {
	if version <= wire.UngatedVersion || r.gateVersion == nil {
		return nil
	}
	return r.gateVersion(r.shard, version)
}

// mayLogEntry is mayLog for an entry that is made already.
func (r *replica) mayLogEntry(entry []byte) error {
	h, _, err := wire.ParseEntryHeader(entry)
	if err != nil {
		return err
	}
	return r.mayLog(h.Version)
}
