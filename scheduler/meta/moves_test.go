package meta

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

func cmdStart(shard uint32, from, to, replica string, version rowraft.MapVersion) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_StartMove{StartMove: &rowraftv1.MetaStartMove{
		Shard: shard, FromNode: from, To: &rowraftv1.Replica{Id: replica, Node: to}, MapVersion: uint64(version),
	}}}
}

func cmdAdvance(id uint64, from, to Phase) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_AdvanceMove{
		AdvanceMove: &rowraftv1.MetaAdvanceMove{MoveId: id, From: from, To: to}}}
}

func cmdForget(shard uint32, replica string) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ForgetReplica{
		ForgetReplica: &rowraftv1.MetaForgetReplica{Shard: shard, ReplicaId: replica}}}
}

// fourNodes is a cluster of nodes a to d with two shards: 0 on a, b, c and 1 on b, c, d.
func fourNodes(t tb) *applier {
	a := newApplier(t)
	a.do(cmdInit("c"))
	for _, id := range []string{"a", "b", "c", "d"} {
		a.do(cmdNode(id, "", id+":1"))
	}
	a.do(cmdShards(2, "a", "b", "c", "d"))
	return a
}

// on lists the nodes of replicas.
func on(rs []clustermap.Replica) string {
	out := ""
	for _, r := range rs {
		out += string(r.Node)
	}
	return out
}

func (a *applier) shard(i int) clustermap.Shard { return a.m.view.Map().Shards[i] }

func TestAMoveChangesTheMapPhaseByPhase(t *testing.T) {
	a := fourNodes(t)
	slots := a.m.view.Map().SlotsVersion
	before := a.m.view.Map()
	started, ok := a.do(cmdStart(0, "a", "d", "new", before.Version)).(Move)
	if !ok || started.ID != 1 || started.Phase != PhaseLearn {
		t.Fatalf("started %+v", started)
	}
	want := func(replicas, learners string, removed int, changes uint64) {
		t.Helper()
		sh := a.shard(0)
		if on(sh.Replicas) != replicas || on(sh.Learners) != learners || len(sh.Removed) != removed || sh.Changes != changes {
			t.Errorf("shard %+v, want replicas on %s, learners on %s, %d removed, %d changes", sh, replicas, learners, removed,
				changes)
		}
	}
	want("abc", "d", 0, 0)
	for _, step := range []struct {
		from, to           Phase
		replicas, learners string
		removed            int
		changes            uint64
	}{
		{PhaseLearn, PhasePromote, "abc", "d", 0, 0},
		{PhasePromote, PhaseRemove, "adbc", "", 0, 1},
		{PhaseRemove, PhaseDone, "dbc", "", 1, 2},
	} {
		for range 2 { // again changes nothing
			if m, ok := a.do(cmdAdvance(1, step.from, step.to)).(Move); !ok || m.Phase != step.to {
				t.Fatalf("to %v: %+v", step.to, m)
			}
			want(step.replicas, step.learners, step.removed, step.changes)
		}
	}
	after := a.m.view.Map()
	if after.SlotsVersion != slots || after.Version != before.Version+3 {
		t.Errorf("versions %d, slots %d; were %d, %d: want three more, and the same", after.Version, after.SlotsVersion,
			before.Version, slots)
	}
	if on(before.Shards[0].Replicas) != "abc" || len(before.Shards[0].Learners) != 0 {
		t.Errorf("a published map changed: %+v", before.Shards[0])
	}
	if r := after.Shards[0].Removed[0]; r.Node != "a" || r.Version != after.Version {
		t.Errorf("removed %+v, want the replica of a, since version %d", r, after.Version)
	}
	a.do(cmdForget(0, string(after.Shards[0].Removed[0].ID)))
	want("dbc", "", 0, 2)
	if running, finished := a.m.Moves(); len(running) != 0 || len(finished) != 1 {
		t.Errorf("running %v, finished %v", running, finished)
	}
}

func TestAMoveIsCancelled(t *testing.T) {
	for _, last := range []Phase{PhaseLearn, PhasePromote} {
		a := fourNodes(t)
		a.do(cmdStart(0, "a", "d", "new", a.m.view.Map().Version))
		if last == PhasePromote {
			a.do(cmdAdvance(1, PhaseLearn, PhasePromote))
		}
		a.do(cmdAdvance(1, last, PhaseCancel))
		if m := a.do(cmdAdvance(1, PhaseCancel, PhaseCancelled)).(Move); m.Phase != PhaseCancelled {
			t.Fatalf("%+v", m)
		}
		sh := a.shard(0)
		if on(sh.Replicas) != "abc" || on(sh.Learners) != "" || len(sh.Removed) != 1 || sh.Removed[0].ID != "new" ||
			sh.Changes != 0 {
			t.Errorf("after a cancelled move: %+v", sh)
		}
	}
}

func TestMovesAreRefused(t *testing.T) {
	a := fourNodes(t)
	v := a.m.view.Map().Version
	a.refused(cmdStart(0, "a", "d", "new", v-1), rowraft.CodePrecondition, "map version", "look again")
	a.refused(cmdStart(2, "a", "d", "new", v), rowraft.CodeInvalidArgument, "2 shards")
	a.refused(cmdStart(0, "d", "a", "new", v), rowraft.CodeNotFound, "d has no replica")
	a.refused(cmdStart(0, "a", "z", "new", v), rowraft.CodeNotFound, "no server z")
	a.refused(cmdStart(0, "a", "b", "new", v), rowraft.CodeAlreadyExists, "b has a replica")
	a.refused(cmdStart(0, "a", "d", string(a.shard(1).Replicas[0].ID), v), rowraft.CodeInternal, "in use")
	a.do(cmdStart(0, "a", "d", "new", v))
	v++
	a.refused(cmdStart(0, "b", "d", "newer", v), rowraft.CodeAlreadyExists, "moving to d already")
	a.refused(cmdAdvance(1, PhaseLearn, PhaseRemove), rowraft.CodePrecondition, "cannot go")
	a.refused(cmdAdvance(1, PhasePromote, PhaseRemove), rowraft.CodePrecondition, "phase learn")
	a.refused(cmdAdvance(2, PhaseLearn, PhasePromote), rowraft.CodePrecondition, "not running")
	a.do(cmdStart(1, "b", "a", "other", v)) // of another shard
	a.do(cmdAdvance(1, PhaseLearn, PhasePromote))
	a.do(cmdAdvance(1, PhasePromote, PhaseRemove))
	a.refused(cmdAdvance(1, PhaseRemove, PhaseCancel), rowraft.CodePrecondition, "cannot go")
	a.do(cmdAdvance(1, PhaseRemove, PhaseDone))
	a.refused(cmdAdvance(1, PhaseRemove, PhaseCancelled), rowraft.CodePrecondition, "not running")
	a.refused(cmdForget(7, "x"), rowraft.CodeInvalidArgument)
}

// Whatever is asked in whatever order: replicas of a shard are on distinct nodes and
// never fewer than at first, each change of them is counted, ids do not come back, and a snapshot holds it all.
func TestMovesKeepTheShardsWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := fourNodes(t)
		nodes := []string{"a", "b", "c", "d", "z"}
		phases := []Phase{PhaseLearn, PhasePromote, PhaseRemove, PhaseCancel, PhaseDone, PhaseCancelled}
		born := 0
		seen := make(map[rowraft.ReplicaID]bool) // that left
		for range 60 {
			m := a.m.view.Map()
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				born++
				a.do(cmdStart(uint32(rapid.IntRange(0, 2).Draw(t, "shard")), rapid.SampledFrom(nodes).Draw(t, "from"),
					rapid.SampledFrom(nodes).Draw(t, "to"), fmt.Sprint("new", born), m.Version))
			case 1:
				if sh := m.Shards[rapid.IntRange(0, 1).Draw(t, "shard")]; len(sh.Removed) > 0 {
					a.do(cmdForget(uint32(sh.ID), string(sh.Removed[0].ID)))
				}
			default:
				running, _ := a.m.Moves()
				if len(running) == 0 {
					continue
				}
				mv := rapid.SampledFrom(running).Draw(t, "move")
				a.do(cmdAdvance(mv.ID, mv.Phase, rapid.SampledFrom(phases).Draw(t, "to phase")))
			}
			for i, sh := range a.m.view.Map().Shards {
				changes := m.Shards[i].Changes
				if !slices.Equal(sh.Replicas, m.Shards[i].Replicas) {
					changes++
				}
				if sh.Changes != changes {
					t.Fatalf("shard %+v: its replicas were %v, want %d changes", sh, m.Shards[i].Replicas, changes)
				}
				on := make(map[rowraft.NodeID]bool)
				for _, r := range slices.Concat(sh.Replicas, sh.Learners) {
					if on[r.Node] || seen[r.ID] {
						t.Fatalf("shard %+v: node %s twice, or replica %s came back", sh, r.Node, r.ID)
					}
					on[r.Node] = true
				}
				for _, r := range sh.Removed {
					seen[r.ID] = true
				}
				if n := len(sh.Replicas); n < 3 || n > 4 || len(sh.Learners) > 1 {
					t.Fatalf("shard %+v", sh)
				}
			}
			b := New(NewView())
			if err := b.Restore(bytes.NewReader(snapshotBytes(t, a.m))); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(stateBytes(t, a.m), stateBytes(t, b)) {
				t.Fatal("a snapshot does not hold all")
			}
		}
	})
}

func TestFinishedMovesAreBounded(t *testing.T) {
	a := fourNodes(t)
	for i := range maxFinished + 5 {
		m, ok := a.do(cmdStart(0, "a", "d", fmt.Sprint("new", i), a.m.view.Map().Version)).(Move)
		if !ok {
			t.Fatal("not started")
		}
		a.do(cmdAdvance(m.ID, PhaseLearn, PhaseCancel))
		a.do(cmdAdvance(m.ID, PhaseCancel, PhaseCancelled))
	}
	if _, finished := a.m.Moves(); len(finished) != maxFinished || finished[0].ID != 6 {
		t.Errorf("%d finished moves from %d on, want %d from 6 on", len(finished), finished[0].ID, maxFinished)
	}
}

// goldenCommand returns the entry in testdata, which must read as want. want must encode to the same bytes.
func goldenCommand(t *testing.T, name string, want *rowraftv1.MetaCommand) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name+".entry"))
	if err != nil {
		t.Fatal(err)
	}
	var c rowraftv1.MetaCommand
	if err := decodeFrame(bytes.NewReader(raw), entryMagic, &c); err != nil || !proto.Equal(&c, want) {
		t.Errorf("%s reads %v (%v), want %v", name, &c, err, want)
	}
	if again, err := encodeCommand(want); err != nil || !bytes.Equal(again, raw) {
		t.Errorf("%s encodes to %x (%v), want %x", name, again, err, raw)
	}
	return raw
}

func TestGoldenBytesOfMoves(t *testing.T) {
	for name, want := range map[string]*rowraftv1.MetaCommand{
		"start_move":     cmdStart(0, "n-1", "n-3", "r-3", 9),
		"advance_move":   cmdAdvance(4, PhaseLearn, PhasePromote),
		"forget_replica": cmdForget(0, "r-4"),
	} {
		goldenCommand(t, name, want)
	}
	m := goldenMachine(t, "moves")
	rep := func(i int) clustermap.Replica {
		return clustermap.Replica{ID: rowraft.ReplicaID(fmt.Sprint("r-", i)), Node: rowraft.NodeID(fmt.Sprint("n-", i))}
	}
	wantShard := clustermap.Shard{
		Replicas: []clustermap.Replica{rep(1), rep(2)}, Learners: []clustermap.Replica{rep(3)},
		Removed: []clustermap.Removed{{Replica: rep(4), Version: 8}}, Changes: 2,
	}
	if got := m.view.Map().Shards; len(got) != 1 || !reflect.DeepEqual(got[0], wantShard) {
		t.Errorf("the snapshot's shards are %+v, want %+v", got, wantShard)
	}
	running, finished := m.Moves()
	if !slices.Equal(running, []Move{{ID: 4, From: rep(1), To: rep(3), Phase: PhaseLearn}}) ||
		!slices.Equal(finished, []Move{{ID: 3, From: rep(4), To: rep(2), Phase: PhaseDone,
			BegunNs: 1e9, EndedNs: 2e9}}) ||
		m.state.topology.lastMove != 4 {
		t.Errorf("the snapshot's moves are %+v and %+v", running, finished)
	}
}

// wantSnapshot restores the snapshot in testdata, which m must encode, too.
func wantSnapshot(t *testing.T, m *Machine, name string) *Machine {
	t.Helper()
	golden := goldenMachine(t, name)
	if got, want := snapshotBytes(t, m), snapshotBytes(t, golden); !bytes.Equal(got, want) {
		t.Errorf("the entries lead to %x, want %s: %x", got, name, want)
	}
	return golden
}

// goldenMachine restores the snapshot in testdata, which the machine must encode to the same bytes.
func goldenMachine(t *testing.T, name string) *Machine {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name+".snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	m := New(NewView())
	if err := m.Restore(bytes.NewReader(raw)); err != nil {
		t.Fatal(err)
	}
	if got := snapshotBytes(t, m); !bytes.Equal(got, raw) {
		t.Errorf("%s encodes to %x, want %x", name, got, raw)
	}
	return m
}

// encodeCommand encodes c as an entry of the first version.
func encodeCommand(c *rowraftv1.MetaCommand) ([]byte, error) {
	return EncodeEntry(wire.FirstVersion, c)
}
