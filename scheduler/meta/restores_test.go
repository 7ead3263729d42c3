package meta

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

// withShards is a machine of two shards and one table.
func withShards(t *testing.T) *Machine {
	t.Helper()
	m := New(NewView())
	old := metacmd.Table(1, "old")
	shards := []clustermap.Shard{{ID: 0, Replicas: []clustermap.Replica{{ID: "a", Node: "n"}}},
		{ID: 1, Replicas: []clustermap.Replica{{ID: "b", Node: "n"}}}}
	for i, c := range []*rowraftv1.MetaCommand{
		{Command: &rowraftv1.MetaCommand_Init{Init: &rowraftv1.MetaInit{ClusterId: "c"}}},
		{Command: &rowraftv1.MetaCommand_PutNode{PutNode: &rowraftv1.MetaPutNode{Node: &rowraftv1.Node{Id: "n", Addr: "a",
			PeerAddr: "p"}}}},
		{Command: &rowraftv1.MetaCommand_CreateShards{CreateShards: &rowraftv1.MetaCreateShards{Shards: ShardsToProto(shards),
			Slots: rpc.SlotsToProto(clustermap.EvenSlots(2, rowraft.DefaultSlots))}}},
		{Command: &rowraftv1.MetaCommand_CreateTable{CreateTable: &rowraftv1.MetaCreateTable{Table: rpc.SchemaToProto(
			&old)}}},
	} {
		if err := applyTo(t, m, rowraft.Index(i+1), c); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func applyTo(t *testing.T, m *Machine, index rowraft.Index, c *rowraftv1.MetaCommand) error {
	t.Helper()
	entry, err := encodeCommand(c)
	if err != nil {
		t.Fatal(err)
	}
	result := m.Apply(index, entry)
	if fatal, ok := result.(*raftstore.FatalError); ok {
		t.Fatal(fatal)
	}
	err, _ = result.(error)
	return err
}

func TestADecidedRestoreIsThePlaceOfAllTables(t *testing.T) {
	m := withShards(t)
	fresh := metacmd.Table(7, "fresh")
	index := rowraft.Index(10)
	step := func(c *rowraftv1.MetaCommand) error { index++; return applyTo(t, m, index, c) }
	if err := step(metacmd.BeginRestore(1)); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]*rowraftv1.MetaRestore{
		"two epochs on":      metacmd.Restore(1, 3, 2, fresh),
		"the present epoch":  metacmd.Restore(1, 1, 2, fresh),
		"a shard too few":    metacmd.Restore(1, 2, 1, fresh),
		"a table twice":      metacmd.Restore(1, 2, 2, fresh, fresh),
		"a table without id": metacmd.Restore(1, 2, 2, metacmd.Table(0, "x")),
	} {
		if err := step(metacmd.DecideRestore(bad)); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
	if err := step(metacmd.EndRestore(1, false)); err != nil || m.PendingRestore() != nil {
		t.Errorf("a restore that is not decided: %v", err)
	}
	if err := step(metacmd.BeginRestore(1)); err != nil {
		t.Fatal(err)
	}
	good := metacmd.Restore(1, 2, 2, fresh)
	for range 2 { // a copy changes nothing
		if err := step(metacmd.DecideRestore(good)); err != nil {
			t.Fatal(err)
		}
	}
	if now := m.view.Map(); now.Epoch != 2 || len(now.Tables) != 1 || now.Tables[0] != fresh {
		t.Errorf("epoch %d, tables %+v", now.Epoch, now.Tables)
	}
	if err := step(metacmd.DecideRestore(metacmd.Restore(2, 3, 2, fresh))); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("another restore meanwhile: %v, want Overloaded", err)
	}
	if err := step(metacmd.EndRestore(1, false)); rowraft.CodeOf(err) != rowraft.CodeAlreadyExists {
		t.Errorf("may its stages be dropped? %v, want AlreadyExists", err)
	}
	// It outlives a restart by snapshot.
	if r := reloaded(t, m).PendingRestore(); !bytes.Equal(r.GetId(), good.Id) || len(r.GetShards()) != 2 {
		t.Errorf("after a restart: %v", r)
	}
	if err := step(metacmd.EndRestore(9, true)); err != nil || m.PendingRestore() == nil {
		t.Errorf("the end of another restore ended this one: %v", err)
	}
	if err := step(metacmd.EndRestore(1, true)); err != nil || m.PendingRestore() != nil {
		t.Errorf("it ended: %v, pending %v", err, m.PendingRestore())
	}
}

// TestARestoreThatWasGivenUpIsNeverDecided: its stages may be dropped already.
func TestARestoreThatWasGivenUpIsNeverDecided(t *testing.T) {
	fresh := metacmd.Table(7, "fresh")
	for name, before := range map[string][]*rowraftv1.MetaCommand{
		"never begun":      nil,
		"ended":            {metacmd.BeginRestore(1), metacmd.EndRestore(1, false)},
		"another one came": {metacmd.BeginRestore(1), metacmd.BeginRestore(2)},
		"decided, closed": {metacmd.BeginRestore(1), metacmd.DecideRestore(metacmd.Restore(1, 2, 2, fresh)),
			metacmd.EndRestore(1, true)},
	} {
		m := withShards(t)
		for i, c := range before {
			if err := applyTo(t, m, rowraft.Index(10+i), c); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		m = reloaded(t, m)
		epoch := uint64(m.view.Map().Epoch) + 1
		if err := applyTo(t, m, 20, metacmd.DecideRestore(metacmd.Restore(1, epoch, 2, fresh))); rowraft.CodeOf(
			err) != rowraft.CodeLeadershipLost || m.PendingRestore() != nil {
			t.Errorf("%s: %v, want LeadershipLost", name, err)
		}
	}
	m := withShards(t)
	for i, c := range []*rowraftv1.MetaCommand{metacmd.BeginRestore(1), metacmd.EndRestore(2, false),
		metacmd.EndRestore(3, true)} {
		if err := applyTo(t, m, rowraft.Index(10+i), c); err != nil {
			t.Fatal(err)
		}
	}
	m = reloaded(t, m)
	if err := applyTo(t, m, 20, metacmd.DecideRestore(metacmd.Restore(1, 2, 2, fresh))); err != nil {
		t.Errorf("begun, and others ended: %v", err)
	}
	if err := applyTo(t, m, 21, metacmd.BeginRestore(2)); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("another begins before this one is closed: %v, want Overloaded", err)
	}
	short := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_BeginRestore{
		BeginRestore: &rowraftv1.MetaBeginRestore{Id: []byte{1}}}}
	if err := applyTo(t, withShards(t), 10, short); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("an id of one byte: %v", err)
	}
}

// reloaded is m after a restart by snapshot.
func reloaded(t *testing.T, m *Machine) *Machine {
	t.Helper()
	again := New(NewView())
	if err := again.Restore(bytes.NewReader(snapshotBytes(t, m))); err != nil {
		t.Fatal(err)
	}
	return again
}

func TestGoldenBytesOfRestores(t *testing.T) {
	id := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	entry := goldenCommand(t, "begin_restore", &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_BeginRestore{
		BeginRestore: &rowraftv1.MetaBeginRestore{Id: id}}})
	m := New(NewView())
	if err := applyTo(t, m, 12,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Init{
			Init: &rowraftv1.MetaInit{ClusterId: "c-1"}}}); err != nil {
		t.Fatal(err)
	}
	if fatal := m.Apply(12, entry); fatal != nil {
		t.Fatal(fatal)
	}
	if got := wantSnapshot(t, m, "begun").state.catalog.begun; !bytes.Equal(got, id) {
		t.Errorf("the snapshot reads %x", got)
	}
}

// TestARestoreOfOneTableIsItsOwnAffair: other tables, their trainers and their runs stay; those of the
// table that gives way begin again.
func TestARestoreOfOneTableIsItsOwnAffair(t *testing.T) {
	h := &history{t: t, m: withShards(t), index: 10}
	m, step := h.m, h.step
	old, b, c := h.enter("old", 0, 1), h.enter("b", 0, 2), h.enter("c", 0, 3)
	none := rowraft.CodeUnknown
	other := metacmd.Table(9, "b.dense")
	step("a table",
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateTable{
			CreateTable: &rowraftv1.MetaCreateTable{Table: rpc.SchemaToProto(&other)}}}, none)
	step("a trainer of the first", metacmd.Attend(old, "", 0, 1), none)
	step("a trainer of the other", metacmd.Attend(b, "", 0, 9), none)
	step("a trainer of a table that is not", metacmd.Attend(c, "", 0, 8), rowraft.CodeSessionExpired)

	again := metacmd.Table(rowraft.TableID(1).RestoredBy(1), "old")
	step("a restore begins", metacmd.BeginRestore(1), none)
	for what, bad := range map[string]*rowraftv1.MetaRestore{
		"the id of the table as it was": metacmd.Restore(1, 1, 2, metacmd.Table(1, "old")),
		"of another restore":            metacmd.Restore(1, 1, 2, metacmd.Table(rowraft.TableID(1).RestoredBy(2), "old")),
		"no table":                      metacmd.Restore(1, 1, 2),
	} {
		step(what, metacmd.DecideRestore(bad), rowraft.CodeInvalidArgument)
	}
	r := metacmd.Restore(1, 1, 2, again)
	r.Source = &rowraftv1.MetaRestored{Id: "A", Destination: "/mnt", Name: "a"}
	step("it is decided", metacmd.DecideRestore(r), none)
	if now := m.view.Map(); now.Epoch != 1 || len(now.Tables) != 2 || now.Tables[0] != other || now.Tables[1] != again {
		t.Errorf("epoch %d, tables %+v", now.Epoch, now.Tables)
	}
	step("it is closed", metacmd.EndRestore(1, true), none)
	if got := m.expected(); len(got) != 1 || got[0].Job != "b" {
		t.Errorf("%v attend, want the trainer of the other table", got)
	}
	step("the trainer of the other comes back", metacmd.Attend(b, "", 0, 9), none)
	step("the trainer of the table as it was", metacmd.Attend(old, "", 0, 1), rowraft.CodeSessionExpired)
	step("the other did not come from the checkpoint", metacmd.Attend(h.enter("b", 0, 4), "A", 0, 9),
		rowraft.CodePrecondition)
	step("it goes on from the checkpoint", metacmd.Attend(h.enter("old", 0, 5), "A", 0, uint64(again.ID)), none)

	// A second one, of the other table, from another checkpoint.
	step("a second restore begins", metacmd.BeginRestore(2), none)
	second := metacmd.Table(rowraft.TableID(9).RestoredBy(2), "b.dense")
	r = metacmd.Restore(2, 1, 2, second)
	r.Source = &rowraftv1.MetaRestored{Id: "B", Destination: "/mnt", Name: "b"}
	step("it is decided", metacmd.DecideRestore(r), none)
	step("it is closed", metacmd.EndRestore(2, true), none)
	if from, _ := m.Sources(); len(from) != 2 || from[0].GetId() != "B" || from[1].GetId() != "A" {
		t.Errorf("the tables come from %v, want B and A", from)
	}
	step("the other goes on", metacmd.Attend(h.enter("b", 0, 6), "B", 0, uint64(second.ID)), none)
	if got := m.remembered(); !slices.Equal(got, []TrainerID{{"b", 0}, {"old", 0}}) {
		t.Errorf("remembered: %v", got)
	}
	step("the first table is dropped",
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_DropTable{DropTable: &rowraftv1.MetaDropTable{Name: "old",
			Id: uint64(again.ID)}}}, none)
	if from, _ := m.Sources(); len(from) != 1 || from[0].GetId() != "B" {
		t.Errorf("the tables come from %v, want B", from)
	}
}

// TestAResumeAfterRestoresOfSingleTables: a checkpoint that was restored in parts is one source, and a trainer that
// names no tables has trained the tables that a restore brings while it trains.
func TestAResumeAfterRestoresOfSingleTables(t *testing.T) {
	h := &history{t: t, m: withShards(t), index: 10}
	none := rowraft.CodeUnknown
	other := metacmd.Table(9, "other")
	h.step("a table", cmdTable(other, 9, false), none)
	restore := func(number uint16, from rowraft.TableID, name, checkpoint string) uint64 {
		t.Helper()
		table := metacmd.Table(from.RestoredBy(number), name)
		r := metacmd.Restore(byte(number), 1, 2, table)
		r.Source = &rowraftv1.MetaRestored{Id: checkpoint, Destination: "/mnt", Name: checkpoint}
		h.step("a restore begins", metacmd.BeginRestore(byte(number)), none)
		h.step("it is decided", metacmd.DecideRestore(r), none)
		h.step("it is closed", metacmd.EndRestore(byte(number), true), none)
		return uint64(table.ID)
	}
	one, two := restore(1, 1, "old", "A"), restore(2, 9, "other", "A")
	h.step("of both tables", metacmd.Attend(h.enter("both", 0, 1), "A", 0, one, two), none)
	h.step("of the table of the first restore", metacmd.Attend(h.enter("first", 0, 2), "A", 0, one), none)
	h.step("the same, another process", metacmd.Attend(h.enter("first", 0, 3), "A", 0, one), rowraft.CodePrecondition)
	h.step("of the table of the second restore", metacmd.Attend(h.enter("second", 0, 4), "A", 0, two), none)
	h.step("the same, another process", metacmd.Attend(h.enter("second", 0, 5), "A", 0, two), rowraft.CodePrecondition)
	h.step("both, after it trained the first alone", metacmd.Attend(h.enter("first", 0, 6), "A", 0, one, two),
		rowraft.CodePrecondition)
	h.step("the second, which its job has not trained", metacmd.Attend(h.enter("first", 0, 7), "A", 0, two), none)

	h.step("a trainer that names no tables", metacmd.Attend(h.enter("all", 0, 8), "", 0), none)
	three := restore(3, 1, "old", "B")
	h.step("another process", metacmd.Attend(h.enter("all", 0, 9), "B", 0), rowraft.CodePrecondition)
	h.step("another process that names the table", metacmd.Attend(h.enter("all", 0, 10), "B", 0, three),
		rowraft.CodePrecondition)
	h.step("from where the tables are", metacmd.Attend(h.enter("all", 0, 11), "", 0), none)
	if from, _ := h.m.Sources(); len(from) != 2 || len(from[0].GetTrained()) != 1 ||
		from[0].GetTrained()[0].GetJob() != "all" {
		t.Errorf("the tables come from %v, want B with the trainer of no table, and A", from)
	}

	// Another member of its run names tables.
	h.step("a member that names a table", metacmd.Attend(h.enter("mixed", 0, 12), "", 0, two), none)
	h.step("a member that names none", metacmd.Attend(h.enter("mixed", 1, 13), "", 0), none)
	successor := h.enter("mixed", 1, 14)
	restore(4, rowraft.TableID(three), "old", "C")
	h.step("a process that replaced the member that names none", metacmd.Attend(successor, "C", 0),
		rowraft.CodePrecondition)
	h.step("another process of the member that names another table", metacmd.Attend(h.enter("mixed", 0, 15), "C", 0), none)

	h.m.state.catalog.restored[1].Trained = nil
	for i := range uint32(maxTrained - len(h.m.state.catalog.restored[0].GetTrained())) {
		h.m.state.catalog.restored[1].Trained = append(h.m.state.catalog.restored[1].Trained,
			&rowraftv1.MetaTrained{Job: fmt.Sprintf("x-%06d", i), Incarnation: 1})
	}
	h.step("a restore begins", metacmd.BeginRestore(5), none)
	r := metacmd.Restore(5, 1, 2, metacmd.Table(rowraft.TableID(1).RestoredBy(5), "old"))
	r.Source = &rowraftv1.MetaRestored{Id: "D"}
	h.step("more trainers than the limit", metacmd.DecideRestore(r), rowraft.CodeInvalidArgument)
}
