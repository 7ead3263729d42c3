package meta

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// begin makes a restore the only one that can be decided. It gives up a restore that was begun before.
func (c *catalog) begin(b *rowraftv1.MetaBeginRestore) error {
	switch {
	case len(b.GetId()) != 16:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "restore id of %d bytes, want 16", len(b.GetId()))
	case c.restore != nil:
		return rowraft.Errorf(rowraft.CodeOverloaded, "the restore before is being finished")
	}
	// The call that began an earlier restore may have died with its leader, so a restore that is only begun does not block
	// the next one. Its decision is refused from now on.
	c.begun = b.GetId()
	return nil
}

// NextRestore returns the number of the next restore of single tables, from 1 to 65,535. After that the numbers start
// again: ids that old are no longer in use.
func NextRestore(last uint16) uint16 { return max(1, last+1) }

// decide makes a restore irrevocable. The tables of the restore become the tables of the cluster, and its shards
// follow. In the next epoch they replace all tables. In the present epoch (a restore of single tables) they replace
// only the tables of the same names; trainers that name no tables continue, and may train the new ones.
//
// decide returns a function that reports whether the restore has replaced one of a run's tables; nil if the restore was
// decided already.
func (c *catalog) decide(r *rowraftv1.MetaRestore, shards int,
	trainers []*rowraftv1.MetaTrained) (replaced func(tables []uint64) bool, err error) {
	epoch := rowraft.TableEpoch(r.GetTableEpoch())
	alone := epoch == c.epoch
	switch {
	// The leader proposed the decision again because it lost the answer. Applying it twice would raise the epoch twice.
	case c.restore != nil && bytes.Equal(c.restore.GetId(), r.GetId()):
		return nil, nil
	case c.restore != nil:
		return nil, rowraft.Errorf(rowraft.CodeOverloaded, "another restore is being finished")
	case len(r.GetId()) != 16 || len(r.GetShards()) != shards || len(r.GetTables()) > MaxTables:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "a restore of %d tables into %d shards: the cluster has %d",
			len(r.GetTables()), len(r.GetShards()), shards)
	case alone && len(r.GetTables()) == 0, !alone && epoch != c.epoch+1:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "a restore to table epoch %d, the tables are of %d",
			r.GetTableEpoch(), c.epoch)
	case !bytes.Equal(c.begun, r.GetId()):
		return nil, rowraft.Errorf(rowraft.CodeLeadershipLost,
			"the restore was given up meanwhile, by another leader or another restore")
	}
	for i, sh := range r.GetShards() {
		if int(sh.GetShard()) != i || len(sh.GetDigest()) != 16 {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "restore: shard %d stands at place %d", sh.GetShard(), i)
		}
	}
	var tables []rowraft.Schema
	for _, p := range r.GetTables() {
		t := rpc.SchemaFromProto(p)
		if err := t.Validate(); err != nil {
			return nil, err
		}
		if t.ID == 0 || slices.ContainsFunc(tables, func(o rowraft.Schema) bool { return o.ID == t.ID || o.Name == t.Name }) {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "restore: table %s stands twice, or has no id", t.Name)
		}
		if n := NextRestore(c.lastRestore); alone && (t.ID.Restore() != n || HasTable(c.tables, t.ID)) {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
				"restore: table %s alone has id %#x, want one of restore %d that is not in use", t.Name, uint64(t.ID), n)
		}
		tables = append(tables, t)
	}
	if alone {
		return c.replaceTables(r, tables, trainers)
	}
	c.restore, c.begun = r, nil
	c.restored = nil
	c.tables, c.dropped = tables, nil // a checkpoint may bring a dropped table back
	c.comeFrom(r, tables, nil)
	for _, t := range tables {
		c.lastRestore = max(c.lastRestore, t.ID.Restore())
	}
	// Entries that were proposed for the old tables carry the old epoch, and every shard refuses them after it has closed
	// the restore.
	c.epoch++
	return func([]uint64) bool { return true }, nil
}

// replaceTables decides a restore of single tables.
func (c *catalog) replaceTables(r *rowraftv1.MetaRestore, tables []rowraft.Schema,
	trainers []*rowraftv1.MetaTrained) (replaced func(tables []uint64) bool, err error) {
	var kept, gone []rowraft.Schema
	for _, t := range c.tables {
		if slices.ContainsFunc(tables, func(n rowraft.Schema) bool { return n.Name == t.Name }) {
			gone = append(gone, t)
		} else {
			kept = append(kept, t)
		}
	}
	if n := len(kept) + len(tables); n > MaxTables {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"restore: the cluster would have %d tables, at most %d are possible: drop some first", n, MaxTables)
	}
	if r.GetSource() == nil {
		trainers = nil // no trainer can resume from it
	}
	if err := c.roomForTrained(trainers); err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	c.restore, c.begun = r, nil
	c.lastRestore = NextRestore(c.lastRestore)
	for _, t := range gone {
		c.forgetSource(t.ID)
	}
	c.tables = append(kept, tables...)
	c.comeFrom(r, tables, trainers)
	return func(tables []uint64) bool {
		return slices.ContainsFunc(tables, func(id uint64) bool { return HasTable(gone, rowraft.TableID(id)) })
	}, nil
}

// end forgets a restore that every shard has closed, or gives one up. It refuses to give up a decided one: the
// stages of that one must not be dropped.
func (c *catalog) end(e *rowraftv1.MetaEndRestore) error {
	mine := c.restore != nil && bytes.Equal(c.restore.GetId(), e.GetId())
	switch {
	// Only a caller that says that every shard has closed the restore may end a decided one: until then the next leader
	// must find it here and finish it.
	case mine && e.GetClosed():
		c.restore = nil
	case mine:
		return rowraft.Errorf(rowraft.CodeAlreadyExists, "the restore is decided")
	case bytes.Equal(c.begun, e.GetId()):
		c.begun = nil
	}
	return nil
}

// PendingRestore returns the decided restore that not all shards have closed, or nil.
func (m *Machine) PendingRestore() *rowraftv1.MetaRestore {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.catalog.restore
}

// BegunRestore returns the id of the restore that may be decided, or nil.
func (m *Machine) BegunRestore() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.catalog.begun
}

// LastRestore returns the number of the last restore of single tables.
func (m *Machine) LastRestore() uint16 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.catalog.lastRestore
}

// Decided returns a number above 0 that differs after each decided restore: the table epoch, and in the lower 16 bits
// the number of the last restore of single tables.
func (m *Machine) Decided() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return uint64(m.state.catalog.epoch)<<16 | uint64(m.state.catalog.lastRestore)
}

// NoRestore reports whether no restore runs: during one, replicas do not move for balance.
func (m *Machine) NoRestore() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.catalog.restore == nil && len(m.state.catalog.begun) == 0
}
