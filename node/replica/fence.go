package replica

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/ticks"
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

// watch compares the replicas of r's shard while r leads it, and fences r when its machine is fenced. It
// returns when r is closed.
func (h *Host) watch(r *replica) {
	var due <-chan time.Time
	if every := h.opts.ProofEvery; every > 0 {
		tick := ticks.New(max(every/5, time.Millisecond))
		defer tick.Stop()
		due = tick.C
	}
	for {
		select {
		case <-r.fenced:
			h.fence(r)
			return
		case <-due:
			r.rounds.runIfDue()
		case <-r.ctx.Done():
			return
		}
	}
}

// fence stops a replica for good and keeps its data.
func (h *Host) fence(r *replica) {
	why := r.whyFenced().Error()
	what := "replica hash mismatch (critical)"
	if r.machine.Fenced() == nil {
		what = raftstore.RolledBack + " (critical)"
	}
	r.log.Error(what+": the replica is fenced", "metric", "rowraft_replica_fenced", "index",
		uint64(r.machine.AppliedIndex()), "why", why)
	f := fencedReplica{shard: r.shard, id: r.id, why: why}
	if err := h.fences.record(f); err != nil {
		r.log.Error("a restart may forget that the replica is fenced", "err", err)
	}
	if _, _, leads := r.group.Leader(); leads {
		ctx, cancel := context.WithTimeout(r.ctx, fenceHandover)
		if err := r.group.TransferLeadership(ctx, ""); err != nil {
			r.log.Info("leaves without a successor", "err", err)
		}
		cancel()
	}
	h.mu.Lock()
	if h.replicas[r.shard] == r {
		delete(h.replicas, r.shard)
		h.fences.add(f)
	}
	h.mu.Unlock()
	if err := r.close(); err != nil {
		r.log.Error("closing a fenced replica", "err", err)
	}
}

// fenceUnopened is fence for a replica that raftstore refuses to start.
func (h *Host) fenceUnopened(s rowraft.ShardID, id rowraft.ReplicaID, why error) error {
	h.log.Error(raftstore.RolledBack+" (critical): the replica is fenced", "metric", "rowraft_replica_fenced", "shard",
		uint32(s), "replica", string(id), "why", why)
	f := fencedReplica{shard: s, id: id, why: why.Error()}
	h.fences.add(f)
	return h.fences.record(f)
}

// fences are the fenced replicas of a server: in memory, and in a file for each. Lock order: Host.mu, then mu.
type fences struct {
	fs  vfs.FS
	dir string
	log *slog.Logger

	mu sync.RWMutex
	of map[rowraft.ShardID]fencedReplica
}

func (f *fences) get(s rowraft.ShardID) (fencedReplica, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	r, ok := f.of[s]
	return r, ok
}

func (f *fences) file(s rowraft.ShardID, id rowraft.ReplicaID) string {
	return filepath.Join(f.dir, fmt.Sprintf("%s.%s", groupName(s), id))
}

func (f *fences) add(r fencedReplica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of[r.shard] = r
}

// record writes the file that fences r also after a restart.
func (f *fences) record(r fencedReplica) error {
	if err := vfs.MkdirAll(f.fs, f.dir); err != nil {
		return err
	}
	if err := vfs.WriteFile(f.fs, f.file(r.shard, r.id), []byte(r.why+"\n")); err != nil {
		return err
	}
	return f.fs.SyncDir(f.dir)
}

// recall reports whether a replica was fenced before the server restarted.
func (f *fences) recall(s rowraft.ShardID, id rowraft.ReplicaID) (bool, error) {
	if r, ok := f.get(s); ok && r.id == id {
		return true, nil
	}
	why, err := vfs.ReadFile(f.fs, f.file(s, id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("shard %d: is replica %s fenced? %w", s, id, err)
	}
	if len(bytes.TrimSpace(why)) == 0 { // a crash interrupted the write
		why = fmt.Appendf(nil, "shard %d: this replica is fenced: move it to another server", s)
	}
	r := fencedReplica{shard: s, id: id, why: strings.TrimSpace(string(why))}
	f.add(r)
	f.log.Error("a fenced replica stays fenced (critical)", "metric", "rowraft_replica_fenced", "shard", uint32(s),
		"replica", string(id), "why", r.why)
	return true, nil
}

// forget removes the fence of a replica that has left its shard.
func (f *fences) forget(s rowraft.ShardID, id rowraft.ReplicaID) error {
	f.mu.Lock()
	if f.of[s].id == id {
		delete(f.of, s)
	}
	f.mu.Unlock()
	err := f.fs.Remove(f.file(s, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// status describes the fenced replicas.
func (f *fences) status() (out []*rowraftv1.ReplicaStatus) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, r := range f.of {
		out = append(out, &rowraftv1.ReplicaStatus{Shard: uint32(r.shard), ReplicaId: string(r.id), Role: roleFenced,
			Error: r.why, Fenced: r.why})
	}
	slices.SortFunc(out, func(a, b *rowraftv1.ReplicaStatus) int { return cmp.Compare(a.Shard, b.Shard) })
	return out
}
