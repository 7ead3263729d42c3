package meta

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func cmdIntent(node string, from, to clustermap.Intent, kind rowraftv1.OperationKind) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_SetIntent{SetIntent: &rowraftv1.MetaSetIntent{
		Node: node, From: rowraftv1.NodeIntent(from), To: rowraftv1.NodeIntent(to), Kind: kind, Total: 1,
	}}}
}

func cmdEndOperation(id uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndOperation{
		EndOperation: &rowraftv1.MetaEndOperation{Id: id}}}
}

func cmdRetire(node string) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_RetireNode{
		RetireNode: &rowraftv1.MetaRetireNode{Node: node}}}
}

// cmdPlace is a move that placement began.
func cmdPlace(shard uint32, from, to, replica string, version rowraft.MapVersion,
	reason rowraftv1.MoveReason) *rowraftv1.MetaCommand {
	c := &rowraftv1.MetaStartMove{Shard: shard, FromNode: from, MapVersion: uint64(version), Reason: reason}
	if to != "" {
		c.To = &rowraftv1.Replica{Id: replica, Node: to}
	}
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_StartMove{StartMove: c}}
}

func (a *applier) intent(id string) clustermap.Intent {
	n, _ := a.m.view.Map().Node(rowraft.NodeID(id))
	return n.Intent
}

func (a *applier) moveAll(id uint64) {
	a.t.Helper()
	for _, p := range [][2]Phase{{PhaseLearn, PhasePromote}, {PhasePromote, PhaseRemove}, {PhaseRemove, PhaseDone}} {
		if _, ok := a.do(cmdAdvance(id, p[0], p[1])).(Move); !ok {
			a.t.Fatalf("move %d does not go from %v to %v", id, p[0], p[1])
		}
	}
}

func TestAServerIsToldWhatToDo(t *testing.T) {
	a := fourNodes(t)
	o, ok := a.do(cmdIntent("a", clustermap.Serve, clustermap.Decommission, OpDecommission)).(Operation)
	if !ok || o.ID != 1 || o.State != OpRunning || a.intent("a") != clustermap.Decommission {
		t.Fatalf("operation %+v, intent %v", o, a.intent("a"))
	}
	a.do(cmdNode("a", "", "elsewhere:1")) // it registers again
	if n, _ := a.m.view.Map().Node("a"); n.Addr != "elsewhere:1" || n.Intent != clustermap.Decommission {
		t.Errorf("after it registered again: %+v", n)
	}
	v := a.m.view.Map().Version
	a.refused(cmdStart(1, "b", "a", "x", v), rowraft.CodePrecondition, "gets no replicas")
	a.refused(cmdIntent("a", clustermap.Serve, clustermap.Drain, OpDrain), rowraft.CodePrecondition,
		"decommissioned, not serving")
	a.refused(cmdIntent("z", clustermap.Serve, clustermap.Drain, OpDrain), rowraft.CodeNotFound)
	a.refused(cmdIntent("a", clustermap.Decommission, 7, OpDrain), rowraft.CodeInvalidArgument)
	a.refused(cmdIntent("a", clustermap.Decommission, clustermap.Serve, 9), rowraft.CodeInvalidArgument)
	a.refused(cmdRetire("a"), rowraft.CodePrecondition, "a replica of shard 0")
	a.refused(cmdRetire("b"), rowraft.CodePrecondition, "serving, not decommissioned")
	a.refused(cmdEndOperation(2), rowraft.CodeInvalidArgument)

	moved, ok := a.do(cmdStart(0, "a", "d", "new", v)).(Move)
	if !ok || moved.ID != 2 { // one count
		t.Fatalf("move %+v", moved)
	}
	a.moveAll(2)
	a.do(cmdEndOperation(1))
	a.do(cmdEndOperation(1))
	a.do(cmdRetire("a"))
	a.do(cmdRetire("a"))
	m := a.m.view.Map()
	if _, known := m.Node("a"); known || len(m.Shards[0].Removed) != 0 || on(m.Shards[0].Replicas) != "dbc" {
		t.Errorf("after it was retired: %+v", m.Shards[0])
	}
	if ops := a.m.Operations(); len(ops) != 1 || ops[0].State != OpDone {
		t.Errorf("operations %+v", ops)
	}
	a.refused(cmdNode("a", "", "a:1"), rowraft.CodeIdentity, "was decommissioned", "empty data directory")
}

func TestAnOperationIsCancelledByTheNext(t *testing.T) {
	a := fourNodes(t)
	a.do(cmdIntent("a", clustermap.Serve, clustermap.Drain, OpDrain))
	a.do(cmdIntent("a", clustermap.Drain, clustermap.Decommission, OpDecommission))
	a.do(cmdIntent("a", clustermap.Decommission, clustermap.Serve, 0))
	ops := a.m.Operations()
	if len(ops) != 2 || ops[0].State != OpCancelled || ops[1].State != OpCancelled || a.intent("a") != clustermap.Serve {
		t.Errorf("operations %+v, intent %v", ops, a.intent("a"))
	}
	for range maxEnded + 5 {
		a.do(cmdIntent("b", clustermap.Serve, clustermap.Serve, OpReplace))
	}
	if ops := a.m.Operations(); len(ops) != maxEnded+1 || ops[maxEnded].State != OpRunning || ops[0].ID != 7 {
		t.Errorf("%d operations from %d on, want %d and one that runs, from 7 on", len(ops), ops[0].ID, maxEnded)
	}
}

// at returns c as the leader proposes it at a second of Unix time.
func at(second uint64, c *rowraftv1.MetaCommand) *rowraftv1.MetaCommand {
	c.AtNs = second * 1e9
	return c
}

// TestTimesOfOperations: an operation and a move have the times of the commands that began and ended them, also in a
// snapshot, and a repeated command changes none.
func TestTimesOfOperations(t *testing.T) {
	a := fourNodes(t)
	a.do(at(10, cmdIntent("a", clustermap.Serve, clustermap.Drain, OpDrain)))
	a.do(at(20, cmdIntent("a", clustermap.Drain, clustermap.Decommission, OpDecommission)))
	a.do(at(30, cmdStart(0, "a", "d", "new", a.m.view.Map().Version)))
	a.do(at(31, cmdAdvance(3, PhaseLearn, PhasePromote)))
	a.do(at(32, cmdAdvance(3, PhasePromote, PhaseRemove)))
	a.do(at(40, cmdAdvance(3, PhaseRemove, PhaseDone)))
	a.do(at(41, cmdAdvance(3, PhaseRemove, PhaseDone)))
	a.do(at(42, cmdEndOperation(2)))
	a.do(at(43, cmdEndOperation(2)))
	b := New(NewView())
	if err := b.Restore(bytes.NewReader(snapshotBytes(t, a.m))); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*Machine{a.m, b} {
		var got [][2]uint64
		for _, o := range m.Operations() {
			got = append(got, [2]uint64{o.begunNs / 1e9, o.endedNs / 1e9})
		}
		_, moves := m.Moves()
		got = append(got, [2]uint64{moves[0].BegunNs / 1e9, moves[0].EndedNs / 1e9})
		if want := [][2]uint64{{10, 20}, {20, 42}, {30, 40}}; !slices.Equal(got, want) {
			t.Errorf("times %v, want %v", got, want)
		}
	}
}

func TestReplicasAreAddedAndRemoved(t *testing.T) {
	const missing, fenced = rowraftv1.MoveReason_MOVE_REASON_MISSING, rowraftv1.MoveReason_MOVE_REASON_FENCED
	a := newApplier(t)
	a.do(cmdInit("c"))
	for _, id := range []string{"a", "b", "c"} {
		a.do(cmdNode(id, "", id+":1"))
	}
	a.do(cmdShards(1, "a", "b"))
	version := func() rowraft.MapVersion { return a.m.view.Map().Version }
	// a user who names no source makes a mistake
	a.refused(cmdPlace(0, "", "c", "r-c", version(), 0), rowraft.CodeNotFound)
	a.refused(cmdPlace(0, "a", "", "", version(), 0), rowraft.CodeInternal)
	a.refused(cmdPlace(0, "", "", "", version(), missing), rowraft.CodeInvalidArgument)
	a.refused(cmdPlace(0, "", "b", "r-b", version(), missing), rowraft.CodeAlreadyExists)
	a.do(cmdPlace(0, "", "c", "r-c", version(), missing))
	a.refused(cmdPlace(0, "b", "", "", version(), fenced), rowraft.CodeAlreadyExists, "another change")
	a.moveAll(1)
	if sh := a.shard(0); on(sh.Replicas) != "abc" || sh.Changes != 1 || len(sh.Removed) != 0 || len(sh.Learners) != 0 {
		t.Errorf("after one was added: %+v", sh)
	}
	if m, ok := a.do(cmdPlace(0, "b", "", "", version(), fenced)).(Move); !ok || m.Phase != PhaseRemove {
		t.Fatalf("%+v", m)
	}
	b := New(NewView())
	if err := b.Restore(bytes.NewReader(snapshotBytes(t, a.m))); err != nil ||
		!bytes.Equal(stateBytes(t, a.m), stateBytes(t, b)) {
		t.Errorf("a snapshot does not hold it: %v", err)
	}
	a.do(cmdAdvance(2, PhaseRemove, PhaseDone))
	if sh := a.shard(0); on(sh.Replicas) != "ac" || len(sh.Removed) != 1 || sh.Removed[0].Node != "b" {
		t.Errorf("after one was removed: %+v", sh)
	}
	a.do(cmdPlace(0, "", "b", "r-b2", version(), missing)) // in its own place
	a.moveAll(3)
	if sh := a.shard(0); on(sh.Replicas) != "acb" {
		t.Errorf("after it was added again: %+v", sh)
	}
}

func TestGoldenBytesOfPlacement(t *testing.T) {
	labelled := cmdNode("n-1", "", "h:1")
	labelled.GetPutNode().Node.PeerAddr, labelled.GetPutNode().Node.Labels = "p:1", "rack=r1,zone=a"
	decommission := cmdIntent("n-1", clustermap.Serve, clustermap.Decommission, OpDecommission)
	decommission.AtNs = 2000e9
	for name, want := range map[string]*rowraftv1.MetaCommand{
		"put_labels":    labelled,
		"set_intent":    decommission,
		"end_operation": cmdEndOperation(5),
		"retire_node":   cmdRetire("n-1"),
		"add_replica":   cmdPlace(0, "", "n-2", "r-2", 9, rowraftv1.MoveReason_MOVE_REASON_MISSING),
	} {
		goldenCommand(t, name, want)
	}
	m := goldenMachine(t, "placement")
	n, _ := m.view.Map().Node("n-1")
	if want := (clustermap.Node{ID: "n-1", Addr: "h:1", PeerAddr: "p:1", Labels: "rack=r1,zone=a",
		Intent: clustermap.Decommission}); n != want {
		t.Errorf("node %+v, want %+v", n, want)
	}
	if zone := n.Label(clustermap.ZoneLabel); zone != "a" {
		t.Errorf("zone %q", zone)
	}
	want := []Operation{{ID: 4, Kind: OpDrain, Node: "n-9", name: "nine", State: OpCancelled, total: 2,
		begunNs: 1900e9, endedNs: 2000e9}, {ID: 5, Kind: OpDecommission, Node: "n-1", State: OpRunning, total: 1,
		begunNs: 2000e9}}
	if got := m.Operations(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("operations %+v, want %+v", got, want)
	}
	running, _ := m.Moves()
	if len(running) != 1 || running[0].Reason != rowraftv1.MoveReason_MOVE_REASON_DECOMMISSION ||
		running[0].BegunNs != 2001e9 ||
		len(m.state.topology.retired) != 1 || m.state.topology.retired[0] != "n-0" {
		t.Errorf("moves %+v, retired %v", running, m.state.topology.retired)
	}
}
