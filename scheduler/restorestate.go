package scheduler

import (
	"bytes"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// beginRestore makes a restore the only one that may be decided. One that was
// begun before is given up thereby.
func (s *state) beginRestore(b *rowraftv1.MetaBeginRestore) error {
	switch {
	case len(b.GetId()) != 16:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "restore id of %d bytes, want 16", len(b.GetId()))
	case s.restore != nil:
		return rowraft.Errorf(rowraft.CodeOverloaded, "the restore before is being finished")
	}
	s.begun = b.GetId()
	return nil
}

// decideRestore makes a restore irrevocable: the cluster's tables are its tables,
// and the shards follow.
func (s *state) decideRestore(r *rowraftv1.MetaRestore) error {
	switch {
	case s.restore != nil && bytes.Equal(s.restore.GetId(), r.GetId()):
		return nil
	case s.restore != nil:
		return rowraft.Errorf(rowraft.CodeOverloaded, "another restore is being finished")
	case len(r.GetId()) != 16 || len(r.GetShards()) != len(s.cluster.Shards) || len(r.GetTables()) > MaxTables:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "a restore of %d tables into %d shards: the cluster has %d", len(r.GetTables()), len(r.GetShards()), len(s.cluster.Shards))
	case rowraft.TableEpoch(r.GetTableEpoch()) != s.cluster.Epoch+1:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "a restore to table epoch %d, the tables are of %d", r.GetTableEpoch(), s.cluster.Epoch)
	case !bytes.Equal(s.begun, r.GetId()):
		return rowraft.Errorf(rowraft.CodeLeadershipLost, "the restore was given up meanwhile, by another leader or another restore")
	}
	for i, sh := range r.GetShards() {
		if int(sh.GetShard()) != i || len(sh.GetDigest()) != 16 {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "restore: shard %d stands at place %d", sh.GetShard(), i)
		}
	}
	var tables []rowraft.Schema
	for _, p := range r.GetTables() {
		t := rpc.SchemaFromProto(p)
		if err := t.Validate(); err != nil {
			return err
		}
		if t.ID == 0 || slices.ContainsFunc(tables, func(o rowraft.Schema) bool { return o.ID == t.ID || o.Name == t.Name }) {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "restore: table %s stands twice, or has no id", t.Name)
		}
		tables = append(tables, t)
	}
	s.restore, s.begun = r, nil
	s.restored, s.trainers = r.GetSource(), nil // who trained before has to begin anew
	s.cluster.Tables, s.dropped = tables, nil   // a checkpoint may bring a dropped one back
	s.cluster.Epoch++
	s.cluster.Version++
	return nil
}

// endRestore forgets a restore that is closed everywhere, or gives one up. One that
// is decided is refused: its stages must not be dropped.
func (s *state) endRestore(e *rowraftv1.MetaEndRestore) error {
	mine := s.restore != nil && bytes.Equal(s.restore.GetId(), e.GetId())
	switch {
	case mine && e.GetClosed():
		s.restore = nil
	case mine:
		return rowraft.Errorf(rowraft.CodeAlreadyExists, "the restore is decided")
	case bytes.Equal(s.begun, e.GetId()):
		s.begun = nil
	}
	return nil
}

// pendingRestore returns the restore that the shards have yet to follow, or nil.
func (m *machine) pendingRestore() *rowraftv1.MetaRestore {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.restore
}

// begunRestore returns the id of the restore that may be decided, or nil.
func (m *machine) begunRestore() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.begun
}
