package meta

import (
	"fmt"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// catalog is the part of the state that says which tables exist and which checkpoints they come from.
//
// Invariants: names and ids of tables are unique; a table is in at most one entry of restored; at most one restore is
// begun or decided, and while there is one, no table is dropped.
type catalog struct {
	tables      []rowraft.Schema          // oldest first
	epoch       rowraft.TableEpoch        // increases with every restore of all tables
	dropped     []DroppedTable            // since the last restore of all tables, oldest first; at most MaxDropped
	restore     *rowraftv1.MetaRestore    // decided, not yet closed in every shard; immutable
	begun       []byte                    // id of the restore that may be decided; immutable
	restored    []*rowraftv1.MetaRestored // sources of the tables, last restore first; immutable
	lastRestore uint16                    // number of the last restore of single tables
}

// MaxDropped bounds the dropped tables in the state. While a table is in the list, the scheduler drops it again in a
// shard that reports it. The next drop removes the oldest table from the list, and first waits until no shard has that
// one.
const MaxDropped = 64

// DroppedTable is a table that no shard may have. Its id is never used again in this table epoch; a restore may bring
// the table back in a later one.
type DroppedTable struct {
	ID    rowraft.TableID
	Epoch rowraft.TableEpoch // in which it was dropped
	Name  string
}

// create adds a table of a cluster with that number of slots. If ifNotExists is set, it returns an existing table of
// the same name and shape.
func (c *catalog) create(t rowraft.Schema, ifNotExists bool,
	slots int) (schema rowraft.Schema, created bool, err error) {
	if err := t.Validate(); err != nil {
		return t, false, err
	}
	if rows := t.Capacity.Rows; rows > 0 && rows < uint64(slots) {
		return t, false, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"table %s: capacity of %d rows: want at least %d, one in each slot", t.Name, rows, slots)
	}
	for _, have := range c.tables {
		switch {
		case have.Name == t.Name && !have.SameShape(t):
			return have, false, rowraft.Errorf(rowraft.CodeTableExists,
				"table %s exists with another shape: it has %s; asked for is %s", t.Name, describe(have), describe(t))
		case have.Name == t.Name && ifNotExists:
			return have, false, nil
		case have.Name == t.Name:
			return have, false, rowraft.Errorf(rowraft.CodeTableExists, "table %s exists", t.Name)
		case have.ID == t.ID:
			return have, false, rowraft.Errorf(rowraft.CodeInternal, "table id %d is that of table %s", t.ID, have.Name)
		}
	}
	switch {
	case t.ID == 0:
		return t, false, rowraft.Errorf(rowraft.CodeInternal, "table %s was proposed without an id", t.Name)
	case len(c.tables) >= MaxTables:
		return t, false, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"table %s: the cluster has %d tables already, the limit; drop one first", t.Name, MaxTables)
	}
	c.tables = append(c.tables, t)
	return t, true, nil
}

// drop deletes a table. It does nothing for a table that is dropped already.
func (c *catalog) drop(name string, id rowraft.TableID) (dropped bool, err error) {
	// The client lost the reply and asks again. The name may belong to a new table by now, so this comes before the search
	// by name.
	if slices.ContainsFunc(c.dropped, func(d DroppedTable) bool { return d.ID == id }) {
		return false, nil
	}
	// The decision of a restore of all tables replaces the tables and the list of dropped ones, so it would undo a drop
	// that was logged in between.
	if c.restore != nil || len(c.begun) > 0 {
		return false, &rowraft.OverloadedError{What: "a restore is under way, which brings tables of its own: drop table " +
			name + " when it has ended"}
	}
	i := slices.IndexFunc(c.tables, func(t rowraft.Schema) bool { return t.Name == name })
	switch {
	case i < 0:
		return false, rowraft.Errorf(rowraft.CodeTableNotFound, "table %q does not exist", name)
	case c.tables[i].ID != id:
		return false, rowraft.Errorf(rowraft.CodeTableNotFound,
			"table %s has id %d, another table than the one with id %d, which is gone", name, c.tables[i].ID, id)
	}
	c.tables = slices.Delete(c.tables, i, i+1)
	if len(c.dropped) == MaxDropped {
		c.dropped = slices.Delete(c.dropped, 0, 1)
	}
	c.dropped = append(c.dropped, DroppedTable{id, c.epoch, name})
	// If it was the last table of its checkpoint, the retention of a policy may delete that checkpoint now.
	c.forgetSource(id)
	return true, nil
}

// save adds the tables' records and the restore to a snapshot, whose map has the tables.
func (c *catalog) save(p *rowraftv1.MetaState) {
	p.LastRestore, p.Restore, p.BegunRestore, p.Restored = uint32(c.lastRestore), c.restore, c.begun, c.restored
	for _, d := range c.dropped {
		p.Dropped = append(p.Dropped, &rowraftv1.MetaDroppedTable{Id: uint64(d.ID), TableEpoch: uint64(d.Epoch),
			Name: d.Name})
	}
}

// load takes the catalog of a snapshot, whose map is m, and checks it.
func (c *catalog) load(p *rowraftv1.MetaState, m *clustermap.Map) error {
	c.tables, c.epoch, c.restore, c.begun = m.Tables, m.Epoch, p.GetRestore(), p.GetBegunRestore()
	if n := len(c.begun); n != 0 && n != 16 {
		return fmt.Errorf("a restore id of %d bytes", n)
	}
	for _, d := range p.GetDropped() {
		c.dropped = append(c.dropped, DroppedTable{rowraft.TableID(d.GetId()), rowraft.TableEpoch(d.GetTableEpoch()),
			d.GetName()})
	}
	for _, d := range c.dropped {
		if d.ID == 0 || d.Epoch != c.epoch || HasTable(c.tables, d.ID) {
			return fmt.Errorf("table %s, id %d of epoch %d, cannot have been dropped", d.Name, d.ID, d.Epoch)
		}
	}
	if n := len(c.dropped); n > MaxDropped {
		return fmt.Errorf("%d dropped tables", n)
	}
	return c.loadSources(p)
}

// DroppedTables returns the tables that no shard may have.
func (m *Machine) DroppedTables() []DroppedTable {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.state.catalog.dropped)
}
