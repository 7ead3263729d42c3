package meta

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// beginRestore makes a restore the only one that can be decided. It gives up a restore that was begun before.
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

// NextRestore returns the number of the next restore of single tables, from 1 to 65,535. After that the numbers start
// again: ids that old are no longer in use.
func NextRestore(last uint16) uint16 { return max(1, last+1) }

// decideRestore makes a restore irrevocable. The tables of the restore become the tables of the cluster, and the shards
// follow. In the next epoch they replace all tables. In the present epoch (a restore of single tables) they replace
// only the tables of the same names.
func (s *state) decideRestore(r *rowraftv1.MetaRestore) error {
	epoch := rowraft.TableEpoch(r.GetTableEpoch())
	alone := epoch == s.cluster.Epoch
	switch {
	case s.restore != nil && bytes.Equal(s.restore.GetId(), r.GetId()):
		return nil
	case s.restore != nil:
		return rowraft.Errorf(rowraft.CodeOverloaded, "another restore is being finished")
	case len(r.GetId()) != 16 || len(r.GetShards()) != len(s.cluster.Shards) || len(r.GetTables()) > MaxTables:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "a restore of %d tables into %d shards: the cluster has %d", len(r.GetTables()), len(r.GetShards()), len(s.cluster.Shards))
	case alone && len(r.GetTables()) == 0, !alone && epoch != s.cluster.Epoch+1:
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
		if n := NextRestore(s.lastRestore); alone && (t.ID.Restore() != n || HasTable(s.cluster.Tables, t.ID)) {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "restore: table %s alone has id %#x, want one of restore %d that is not in use", t.Name, uint64(t.ID), n)
		}
		tables = append(tables, t)
	}
	if alone {
		return s.replaceTables(r, tables)
	}
	s.restore, s.begun = r, nil
	s.restored = nil
	s.detachRuns(func(*rowraftv1.MetaRun) bool { return true }) // every trainer must be started again
	s.cluster.Tables, s.dropped = tables, nil                   // a checkpoint may bring a dropped table back
	s.comeFrom(r, tables, nil)
	for _, t := range tables {
		s.lastRestore = max(s.lastRestore, t.ID.Restore())
	}
	s.cluster.Epoch++
	s.cluster.Version++
	return nil
}

// replaceTables decides a restore of single tables. Trainers of runs with a replaced table must be started again. Other
// trainers continue without interruption.
func (s *state) replaceTables(r *rowraftv1.MetaRestore, tables []rowraft.Schema) error {
	var kept, gone []rowraft.Schema
	for _, t := range s.cluster.Tables {
		if slices.ContainsFunc(tables, func(n rowraft.Schema) bool { return n.Name == t.Name }) {
			gone = append(gone, t)
		} else {
			kept = append(kept, t)
		}
	}
	if n := len(kept) + len(tables); n > MaxTables {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "restore: the cluster would have %d tables, at most %d are possible: drop some first", n, MaxTables)
	}
	var trained []*rowraftv1.MetaTrained
	if r.GetSource() != nil {
		trained = s.trainersOfAll() // they continue, and may train the new tables
	}
	if err := s.roomForTrained(trained); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	s.restore, s.begun = r, nil
	s.lastRestore = NextRestore(s.lastRestore)
	for _, t := range gone {
		s.forgetSource(t.ID)
	}
	s.detachRuns(func(r *rowraftv1.MetaRun) bool {
		return slices.ContainsFunc(r.GetTables(), func(id uint64) bool { return HasTable(gone, rowraft.TableID(id)) })
	})
	s.cluster.Tables = append(kept, tables...)
	s.comeFrom(r, tables, trained)
	for _, t := range tables {
		s.forgetRuns(t.Name)
		for i, run := range s.runs {
			if strings.HasPrefix(t.Name, run.GetJob()+".") { // it still has members; the next worker begins a new run
				s.runs[i] = proto.CloneOf(run) // forgetRuns has copied the list, so the element may be replaced
				s.runs[i].TableEpoch = 0
			}
		}
	}
	s.cluster.Version++
	return nil
}

// comeFrom records the checkpoint that tables come from, and the trainers that may train them already.
func (s *state) comeFrom(r *rowraftv1.MetaRestore, tables []rowraft.Schema, trained []*rowraftv1.MetaTrained) {
	if r.GetSource() == nil {
		return
	}
	from := proto.CloneOf(r.GetSource())
	from.Tables, from.Trained = nil, trained
	for _, t := range tables {
		from.Tables = append(from.Tables, uint64(t.ID))
	}
	slices.Sort(from.Tables)
	s.restored = append([]*rowraftv1.MetaRestored{from}, s.restored...)
}

// forgetSource removes a dropped table from the record of its checkpoint. A record without tables is deleted.
func (s *state) forgetSource(id rowraft.TableID) {
	i := slices.IndexFunc(s.restored, func(r *rowraftv1.MetaRestored) bool { return slices.Contains(r.GetTables(), uint64(id)) })
	if i < 0 {
		return
	}
	from := proto.CloneOf(s.restored[i])
	from.Tables = slices.DeleteFunc(from.Tables, func(t uint64) bool { return t == uint64(id) })
	s.restored = slices.Clone(s.restored)
	if s.restored[i] = from; len(from.Tables) == 0 {
		s.restored = slices.Delete(s.restored, i, i+1)
	}
}

// endRestore forgets a restore that every shard has closed, or gives one up. It refuses to give up a decided one: the
// stages of that one must not be dropped.
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

// PendingRestore returns the decided restore that not all shards have closed, or nil.
func (m *Machine) PendingRestore() *rowraftv1.MetaRestore {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.restore
}

// BegunRestore returns the id of the restore that may be decided, or nil.
func (m *Machine) BegunRestore() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.begun
}

// LastRestore returns the number of the last restore of single tables.
func (m *Machine) LastRestore() uint16 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.lastRestore
}
