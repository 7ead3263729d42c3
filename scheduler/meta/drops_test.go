package meta

import (
	"testing"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

func (a *applier) done(c *rowraftv1.MetaCommand) {
	a.t.Helper()
	if err, ok := a.do(c).(error); ok {
		a.t.Fatalf("%v: %v", c, err)
	}
}

func TestDropTakesATableOffTheMap(t *testing.T) {
	a := formed(t)
	version := a.m.view.Map().Version
	a.refused(metacmd.DropTable("u", 9), rowraft.CodeTableNotFound, "does not exist")
	a.refused(metacmd.DropTable("t", 8), rowraft.CodeTableNotFound, "another table")
	a.done(metacmd.DropTable("t", 9))
	if m := a.m.view.Map(); len(m.Tables) != 0 || m.Version != version+1 {
		t.Errorf("version %d after %d, tables %v", m.Version, version, m.Tables)
	}
	a.done(metacmd.DropTable("t", 9)) // a copy
	a.do(cmdTable(metacmd.SGD("t", 8), 10, false))
	a.done(metacmd.DropTable("t", 9)) // a late one does not meet the new table of the name
	if m := a.m.view.Map(); len(m.Tables) != 1 || m.Tables[0].ID != 10 {
		t.Errorf("tables %v, want the new one", m.Tables)
	}
	if got := reloaded(t, a.m).DroppedTables(); len(got) != 1 || got[0] != (DroppedTable{9, 1, "t"}) {
		t.Errorf("after a restart: dropped %v", got)
	}
	// The list is bounded, and what is in it stays in order.
	for i := range uint64(MaxDropped + 3) {
		a.do(cmdTable(metacmd.SGD("x", 1), 100+i, false))
		a.done(metacmd.DropTable("x", 100+i))
	}
	if got := a.m.DroppedTables(); len(got) != MaxDropped || got[0].ID != 103 || got[MaxDropped-1].ID != 100+MaxDropped+2 {
		t.Errorf("%d dropped tables, from %v to %v", len(got), got[0], got[len(got)-1])
	}
}

// TestDropAndRestore: none while a restore may be decided; and one that brings a
// dropped table back forgets that it was dropped.
func TestDropAndRestore(t *testing.T) {
	a := formed(t)
	a.do(cmdTable(metacmd.SGD("u", 4), 10, false))
	a.done(metacmd.DropTable("t", 9))
	a.done(metacmd.BeginRestore(1))
	a.refused(metacmd.DropTable("u", 10), rowraft.CodeOverloaded, "restore")
	back := metacmd.SGD("t", 4)
	back.ID = 9
	a.done(metacmd.DecideRestore(metacmd.Restore(1, 2, 2, back)))
	a.refused(metacmd.DropTable("t", 9), rowraft.CodeOverloaded, "restore")
	a.done(metacmd.EndRestore(1, true))
	if got := a.m.DroppedTables(); len(got) != 0 {
		t.Errorf("dropped %v, of an epoch that is over", got)
	}
	a.done(metacmd.DropTable("t", 9))
	if got := a.m.DroppedTables(); len(got) != 1 || got[0].Epoch != 2 {
		t.Errorf("dropped %v, want table 9 of epoch 2", got)
	}
}

func TestGoldenDrop(t *testing.T) {
	goldenCommand(t, "drop_table", metacmd.DropTable("ads", 7))
	m := goldenMachine(t, "dropped")
	if got := m.DroppedTables(); len(got) != 1 || got[0] != (DroppedTable{7, 1, "ads"}) {
		t.Errorf("the snapshot reads %v", got)
	}
}
