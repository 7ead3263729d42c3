package node

import (
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
	// Nobody is known to hold the cluster back: this server's map is an old one, after a
	// restart, or the scheduler is about to raise the version.
	code, held := rowraft.CodeStarting, "this server has not heard yet what all of them understand"
	if why, _ := n.heldBack.Load().(string); why != "" {
		code, held = rowraft.CodeVersionTooNew, why
	}
	return rowraft.Errorf(code, "shard %d: this needs a log entry of version %d, the cluster is at %d: %s", shard, version, scheduler.ApplyVersion(m), held)
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
