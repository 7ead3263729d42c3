package meta

import (
	"slices"
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

// TestTablesOfAnotherJob: a job whose name is another one's with a suffix keeps its own tables and its own run, and a
// table with any name is of the run whose members train it.
func TestTablesOfAnotherJob(t *testing.T) {
	h := &history{t: t, m: withShards(t), index: 10}
	none := rowraft.CodeUnknown
	const ads, adsV2, extra, shared = 11, 12, 13, 14
	for id, name := range map[uint64]string{ads: "ads.embeddings", adsV2: "ads.v2.dense.w", extra: "ads.extra",
		shared: "shared"} {
		h.step(name, cmdTable(metacmd.SGD(name, 4), id, false), none)
	}
	runs := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, r := range h.m.Runs() {
			got = append(got, r.GetJob())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: runs of %v, want %v", what, got, want)
		}
	}
	restore := func(number uint16, id rowraft.TableID, name string) {
		t.Helper()
		table := metacmd.SGD(name, 4)
		table.ID = id.RestoredBy(number)
		h.step("a restore begins", metacmd.BeginRestore(byte(number)), none)
		h.step("it is decided", metacmd.DecideRestore(metacmd.Restore(byte(number), 1, 2, table)), none)
		h.step("it is closed", metacmd.EndRestore(byte(number), true), none)
	}
	first, second := h.enter("ads", 0, 1), h.enter("ads.v2", 0, 2)
	h.step("it attends", metacmd.Attend(first, "", 0, ads, shared), none)
	h.step("it attends", metacmd.Attend(second, "", 0, adsV2), none)
	restore(1, adsV2, "ads.v2.dense.w")
	if a, b := h.m.RunOf("ads"), h.m.RunOf("ads.v2"); a.GetTableEpoch() != 1 || b.GetTableEpoch() != 0 ||
		len(a.GetTables()) != 2 {
		t.Errorf("after a restore for job ads.v2 the runs have tables of epoch %d and %d, want 1 and 0", a.GetTableEpoch(),
			b.GetTableEpoch())
	}
	h.step("ads stops", metacmd.LeaveJob(first, stopped), none)
	h.step("ads.v2 stops", metacmd.LeaveJob(second, stopped), none)
	h.step("a table of no job", metacmd.DropTable("ads.extra", extra), none)
	runs("a table of no job was dropped", "ads", "ads.v2")
	h.step("a table of ads.v2", metacmd.DropTable("ads.v2.dense.w", uint64(rowraft.TableID(adsV2).RestoredBy(1))), none)
	runs("a table of ads.v2 was dropped", "ads")
	restore(2, shared, "shared")
	runs("a table that ads has trained was restored")
}

func TestGoldenDrop(t *testing.T) {
	goldenCommand(t, "drop_table", metacmd.DropTable("ads", 7))
	m := goldenMachine(t, "dropped")
	if got := m.DroppedTables(); len(got) != 1 || got[0] != (DroppedTable{7, 1, "ads"}) {
		t.Errorf("the snapshot reads %v", got)
	}
}
