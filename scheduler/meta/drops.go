package meta

import (
	"fmt"
	"slices"

	"github.com/rowraft/rowraft"
)

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

// dropTable deletes a table from the map. It does nothing for a table that is dropped already.
func (s *state) dropTable(name string, id rowraft.TableID) error {
	if slices.ContainsFunc(s.dropped, func(d DroppedTable) bool { return d.ID == id }) {
		return nil
	}
	if s.restore != nil || len(s.begun) > 0 {
		return &rowraft.OverloadedError{What: "a restore is under way, which brings tables of its own: drop table " + name + " when it has ended"}
	}
	i := slices.IndexFunc(s.cluster.Tables, func(t rowraft.Schema) bool { return t.Name == name })
	switch {
	case i < 0:
		return rowraft.Errorf(rowraft.CodeTableNotFound, "table %q does not exist", name)
	case s.cluster.Tables[i].ID != id:
		return rowraft.Errorf(rowraft.CodeTableNotFound, "table %s has id %d, another table than the one with id %d, which is gone", name, s.cluster.Tables[i].ID, id)
	}
	s.cluster.Tables = slices.Delete(s.cluster.Tables, i, i+1)
	s.cluster.Version++
	if len(s.dropped) == MaxDropped {
		s.dropped = slices.Delete(s.dropped, 0, 1)
	}
	s.dropped = append(s.dropped, DroppedTable{id, s.cluster.Epoch, name})
	s.forgetSource(id)
	s.forgetRuns(name)
	return nil
}

// checkDropped returns an error if the dropped tables of a snapshot are impossible.
func (s *state) checkDropped() error {
	for _, d := range s.dropped {
		if d.ID == 0 || d.Epoch != s.cluster.Epoch || slices.ContainsFunc(s.cluster.Tables, func(t rowraft.Schema) bool { return t.ID == d.ID }) {
			return fmt.Errorf("table %s, id %d of epoch %d, cannot have been dropped", d.Name, d.ID, d.Epoch)
		}
	}
	if n := len(s.dropped); n > MaxDropped {
		return fmt.Errorf("%d dropped tables", n)
	}
	return nil
}

// DroppedTables returns the tables that no shard may have.
func (m *Machine) DroppedTables() []DroppedTable {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.state.dropped)
}
