package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
)

// A replica is fenced if its rows differ from those of the majority, if its rows are not the ones that it
// wrote, or if its disk was rolled back. For its shard it is dead. The server closes its Raft group, so it
// neither leads, votes, takes entries nor sends snapshots. Its data stay on disk for inspection. A file
// records the fence over restarts (docs/formats/fenced.md); the server deletes the file when the replica
// leaves the shard.

// roleFenced is the role that a fenced replica reports.
const roleFenced = "fenced"

// fenceHandover is how long a fenced leader tries to hand over before it closes its group.
const fenceHandover = time.Second

// fencedReplica is a replica that does not run because it is fenced.
type fencedReplica struct {
	shard rowraft.ShardID
	id    rowraft.ReplicaID
	why   string
}

func (f *fencedReplica) err() error { return rowraft.Errorf(rowraft.CodeFenced, "%s", f.why) }

func (n *Node) fencedReplica(s rowraft.ShardID) (fencedReplica, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	f, ok := n.fenced[s]
	return f, ok
}

// watch compares the replicas of r's shard while r leads it, and fences r when its machine is fenced. It
// returns when r is closed.
func (n *Node) watch(r *replica) {
	var due <-chan time.Time
	if every := n.cfg.ProofEvery; every > 0 {
		tick := time.NewTicker(max(every/5, time.Millisecond))
		defer tick.Stop()
		due = tick.C
	}
	for {
		select {
		case <-r.fenced:
			n.fence(r)
			return
		case <-due:
			n.maybeProve(r)
		case <-r.ctx.Done():
			return
		}
	}
}

// fence stops a replica for good and keeps its data.
func (n *Node) fence(r *replica) {
	why := r.whyFenced().Error()
	what := "replica hash mismatch (critical)"
	if r.machine.Fenced() == nil {
		what = raftstore.RolledBack + " (critical)"
	}
	r.log.Error(what+": the replica is fenced", "metric", "rowraft_replica_fenced", "index", uint64(r.machine.AppliedIndex()), "why", why)
	f := fencedReplica{shard: r.shard, id: r.id, why: why}
	if err := n.keepFence(&f); err != nil {
		r.log.Error("a restart may forget that the replica is fenced", "err", err)
	}
	if _, _, leads := r.group.Leader(); leads {
		ctx, cancel := context.WithTimeout(r.ctx, fenceHandover)
		if err := r.group.TransferLeadership(ctx, ""); err != nil {
			r.log.Info("leaves without a successor", "err", err)
		}
		cancel()
	}
	n.mu.Lock()
	if n.replicas[r.shard] == r {
		delete(n.replicas, r.shard)
		n.fenced[r.shard] = f
	}
	n.mu.Unlock()
	if err := r.close(); err != nil {
		r.log.Error("closing a fenced replica", "err", err)
	}
}

// fenceUnopened is fence for a replica that raftstore refuses to start.
func (n *Node) fenceUnopened(s rowraft.ShardID, id rowraft.ReplicaID, why error) error {
	n.log.Error(raftstore.RolledBack+" (critical): the replica is fenced", "metric", "rowraft_replica_fenced", "shard", uint32(s), "replica", string(id), "why", why)
	f := fencedReplica{shard: s, id: id, why: why.Error()}
	n.mu.Lock()
	n.fenced[s] = f
	n.mu.Unlock()
	return n.keepFence(&f)
}

func (n *Node) fenceDir() string { return filepath.Join(n.cfg.DataDir, "fenced") }

func (n *Node) fenceFile(s rowraft.ShardID, id rowraft.ReplicaID) string {
	return filepath.Join(n.fenceDir(), fmt.Sprintf("%s.%s", groupName(s), id))
}

// keepFence writes f to disk.
func (n *Node) keepFence(f *fencedReplica) error {
	if err := vfs.MkdirAll(n.cfg.FS, n.fenceDir()); err != nil {
		return err
	}
	if err := vfs.WriteFile(n.cfg.FS, n.fenceFile(f.shard, f.id), []byte(f.why+"\n")); err != nil {
		return err
	}
	return n.cfg.FS.SyncDir(n.fenceDir())
}

// staysFenced reports whether a replica was fenced before the server restarted. If so, it adds the replica
// to n.fenced.
func (n *Node) staysFenced(s rowraft.ShardID, id rowraft.ReplicaID) (bool, error) {
	if f, ok := n.fencedReplica(s); ok && f.id == id {
		return true, nil
	}
	why, err := vfs.ReadFile(n.cfg.FS, n.fenceFile(s, id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("shard %d: is replica %s fenced? %w", s, id, err)
	}
	if len(bytes.TrimSpace(why)) == 0 { // a crash interrupted the write
		why = fmt.Appendf(nil, "shard %d: this replica is fenced: move it to another server", s)
	}
	f := fencedReplica{shard: s, id: id, why: strings.TrimSpace(string(why))}
	n.mu.Lock()
	n.fenced[s] = f
	n.mu.Unlock()
	n.log.Error("a fenced replica stays fenced (critical)", "metric", "rowraft_replica_fenced", "shard", uint32(s), "replica", string(id), "why", f.why)
	return true, nil
}

// forgetFence removes the fence of a replica that has left its shard.
func (n *Node) forgetFence(s rowraft.ShardID, id rowraft.ReplicaID) error {
	n.mu.Lock()
	if n.fenced[s].id == id {
		delete(n.fenced, s)
	}
	n.mu.Unlock()
	err := n.cfg.FS.Remove(n.fenceFile(s, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// metaRolledBack returns why this server's member of the metadata group was found to be rolled back; "" if
// it was not. Such a member has no vote, and the scheduler gives its seat to a standby.
func (n *Node) metaRolledBack() string {
	if why := n.metaLost.Load(); why != nil {
		return (*why).Error()
	}
	return ""
}

// fencedStatus describes the fenced replicas.
func (n *Node) fencedStatus() (out []*rowraftv1.ReplicaStatus) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for _, f := range n.fenced {
		out = append(out, &rowraftv1.ReplicaStatus{Shard: uint32(f.shard), ReplicaId: string(f.id), Role: roleFenced, Error: f.why, Fenced: f.why})
	}
	slices.SortFunc(out, func(a, b *rowraftv1.ReplicaStatus) int { return cmp.Compare(a.Shard, b.Shard) })
	return out
}
