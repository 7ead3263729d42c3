package meta

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/google/go-cmp/cmp"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
	"github.com/rowraft/rowraft/scheduler/placement"
	"github.com/rowraft/rowraft/wire"
)

func cmdInit(id string) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Init{Init: &rowraftv1.MetaInit{ClusterId: id}}}
}

func cmdNode(id, name, addr string) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_PutNode{PutNode: &rowraftv1.MetaPutNode{
		Node: &rowraftv1.Node{Id: id, Name: name, Addr: addr, PeerAddr: "p" + addr},
	}}}
}

func cmdTable(s rowraft.Schema, id uint64, ifNotExists bool) *rowraftv1.MetaCommand {
	s.ID = rowraft.TableID(id)
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateTable{
		CreateTable: &rowraftv1.MetaCreateTable{Table: rpc.SchemaToProto(&s), IfNotExists: ifNotExists}}}
}

func cmdShards(n int, nodes ...string) *rowraftv1.MetaCommand {
	var ns []clustermap.Node
	for _, id := range nodes {
		ns = append(ns, clustermap.Node{ID: rowraft.NodeID(id)})
	}
	i := 0
	shards := placement.NewShards(ns, n, func() string { i++; return fmt.Sprintf("r%d-of-%d", i, n) })
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateShards{CreateShards: &rowraftv1.MetaCreateShards{
		Shards: ShardsToProto(shards), Slots: rpc.SlotsToProto(clustermap.EvenSlots(n, rowraft.DefaultSlots)),
	}}}
}

// tb is what *testing.T and *rapid.T have in common.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

type applier struct {
	t     tb
	m     *Machine
	index rowraft.Index
}

func newApplier(t tb) *applier { return &applier{t: t, m: New(NewView())} }

// do applies c at the next index; every third index is raft's own.
func (a *applier) do(c *rowraftv1.MetaCommand) any {
	a.t.Helper()
	entry, err := encodeCommand(c)
	if err != nil {
		a.t.Fatal(err)
	}
	a.index++
	if a.index%3 == 0 {
		a.index++
	}
	result := a.m.Apply(a.index, entry)
	if a.m.AppliedIndex() != a.index {
		a.t.Fatalf("applied index %d after entry %d", a.m.AppliedIndex(), a.index)
	}
	return result
}

func (a *applier) refused(c *rowraftv1.MetaCommand, code rowraft.Code, words ...string) {
	a.t.Helper()
	before := stateBytes(a.t, a.m)
	err, ok := a.do(c).(error)
	if !ok || rowraft.CodeOf(err) != code {
		a.t.Fatalf("%v answered %v, want code %v", c, err, code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			a.t.Errorf("%q does not say %q", err, w)
		}
	}
	if after := stateBytes(a.t, a.m); !bytes.Equal(before, after) {
		a.t.Errorf("a refused %v changed the state", c)
	}
}

// stateBytes is the state without its index.
func stateBytes(t tb, m *Machine) []byte {
	t.Helper()
	p, err := m.state.toProto()
	if err != nil {
		t.Fatal(err)
	}
	p.AppliedIndex = 0
	b, err := marshal.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func snapshotBytes(t tb, m *Machine) []byte {
	t.Helper()
	s, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	var b bytes.Buffer
	if n, err := s.WriteTo(&b); err != nil || n != int64(b.Len()) {
		t.Fatalf("WriteTo: %d bytes of %d, %v", n, b.Len(), err)
	}
	return b.Bytes()
}

func TestCommandsAreCheckedBeforeTheyChangeAnything(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c1"))
	a.refused(cmdInit("c2"), rowraft.CodeIdentity, "c1", "c2")
	a.do(cmdNode("a", "n1", "h:1"))
	a.refused(cmdNode("b", "n1", "h:2"), rowraft.CodeAlreadyExists, "n1", "h:1")
	a.refused(cmdNode("b", "n2", ""), rowraft.CodeInvalidArgument, "address")
	a.refused(cmdShards(2, "a", "stranger"), rowraft.CodeInvalidArgument, "stranger")
	a.do(cmdTable(metacmd.SGD("user", 8), 7, false))
	a.refused(cmdTable(metacmd.SGD("user", 8), 8, false), rowraft.CodeTableExists, "user")
	a.refused(cmdTable(metacmd.SGD("user", 16), 8, true), rowraft.CodeTableExists, "dim 8", "dim 16")
	a.refused(cmdTable(metacmd.SGD("item", 8), 7, false), rowraft.CodeInternal, "user")
	a.refused(cmdTable(metacmd.SGD("item", 0), 9, false), rowraft.CodeInvalidArgument, "dim 0")
	if got := a.do(cmdTable(metacmd.SGD("user", 8), 99, true)).(TableResult); got.Created || got.Schema.ID != 7 {
		t.Errorf("creating an existing table if it does not exist gave %+v", got)
	}
}

func TestShardsAreMadeOnce(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c1"))
	a.do(cmdNode("a", "", "h:1"))
	a.do(cmdShards(2, "a"))
	first := a.m.view.Map()
	a.do(cmdNode("b", "", "h:2"))
	a.do(cmdShards(5, "a", "b"))
	m := a.m.view.Map()
	if diff := cmp.Diff(first.Shards, m.Shards); diff != "" || len(m.Shards) != 2 || m.SlotsVersion != first.SlotsVersion {
		t.Errorf("a second MetaCreateShards changed the shards:\n%s", diff)
	}
}

// model is the metadata in the plainest form.
type model struct {
	nodes   map[string]string // id → name, address
	tables  map[string]rowraft.Schema
	last    uint64
	jobs    map[string][]string // job → workers by rank
	size    map[string]uint32
	version uint64
}

// TestMachineMatchesModel runs random commands against the model, with restores
// from snapshots in between, and a second machine that sees the same entries.
func TestMachineMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, twin := newApplier(t), newApplier(t)
		do := func(c *rowraftv1.MetaCommand) any {
			twin.do(c)
			return a.do(c)
		}
		do(cmdInit("c"))
		md := model{nodes: map[string]string{}, tables: map[string]rowraft.Schema{}, jobs: map[string][]string{},
			size: map[string]uint32{}, version: 1}
		name := func(prefix string, n int) string {
			return fmt.Sprintf("%s%d", prefix, rapid.IntRange(0, n).Draw(t, prefix))
		}
		nextTable, process := uint64(0), uint32(0)
		t.Repeat(map[string]func(*rapid.T){
			"put node": func(t *rapid.T) {
				id, addr := name("n", 4), name("h:", 2)
				if do(cmdNode(id, id, addr)); md.nodes[id] != addr {
					md.nodes[id] = addr
					md.version++
				}
			},
			"create table": func(t *rapid.T) {
				nextTable++
				s, cond := metacmd.SGD(name("t", 3), rapid.IntRange(1, 2).Draw(t, "dim")), rapid.Bool().Draw(t, "if not exists")
				got := do(cmdTable(s, nextTable, cond))
				have, exists := md.tables[s.Name]
				switch {
				case !exists:
					s.ID = rowraft.TableID(nextTable)
					md.tables[s.Name] = s
					md.version++
					if got != any(TableResult{s, true}) {
						t.Fatalf("new table: %v", got)
					}
				case cond && have.SameShape(s):
					if got != any(TableResult{have, false}) {
						t.Fatalf("existing table: %v, want %v", got, have)
					}
				default:
					if err, _ := got.(error); rowraft.CodeOf(err) != rowraft.CodeTableExists {
						t.Fatalf("another table of one name: %v", got)
					}
				}
			},
			"issue incarnation": func(t *rapid.T) {
				md.last++
				if got := do(metacmd.IssueIncarnation()); got != any(rowraft.Incarnation(md.last)) {
					t.Fatalf("incarnation %v, want %d", got, md.last)
				}
			},
			"enter job": func(t *rapid.T) {
				j, w, n := name("j", 1), name("w", 3), rapid.Uint32Range(1, 3).Draw(t, "workers")
				process++
				got := do(metacmd.EnterJob(w, 0, func(q *rowraftv1.EnterRequest) {
					q.Job, q.Workers = j, n
					binary.BigEndian.PutUint32(q.Instance, process)
				}))
				if md.size[j] == 0 {
					md.size[j] = n
				}
				rank := slices.Index(md.jobs[j], w)
				if md.size[j] != n || rank < 0 && len(md.jobs[j]) == int(n) {
					if err, _ := got.(error); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
						t.Fatalf("job %s of %d with %v takes %s of %d: %v", j, md.size[j], md.jobs[j], w, n, got)
					}
					return
				}
				if rank < 0 {
					rank = len(md.jobs[j])
					md.jobs[j] = append(md.jobs[j], w)
				}
				md.last++
				if id := got.(*EnterResult).Identity; id.GetRank() != uint32(rank) || id.GetIncarnation() != md.last {
					t.Fatalf("job %s worker %s: %v, want rank %d, incarnation %d", j, w, id, rank, md.last)
				}
			},
			"restart from a snapshot": func(t *rapid.T) {
				b := snapshotBytes(t, a.m)
				a.m = New(NewView())
				if err := a.m.Restore(bytes.NewReader(b)); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				if !bytes.Equal(snapshotBytes(t, a.m), snapshotBytes(t, twin.m)) {
					t.Fatal("two machines with one log differ")
				}
				m := a.m.view.Map()
				if uint64(m.Version) != md.version || len(m.Nodes) != len(md.nodes) || len(m.Tables) != len(md.tables) {
					t.Fatalf("map %+v, want version %d, %d nodes, %d tables", m, md.version, len(md.nodes), len(md.tables))
				}
				for id, addr := range md.nodes {
					if n, _ := m.Node(rowraft.NodeID(id)); n.Addr != addr {
						t.Fatalf("node %s is at %q, want %q", id, n.Addr, addr)
					}
				}
				for name, want := range md.tables {
					if got, err := m.Table(name); err != nil || got != want {
						t.Fatalf("table %s: %v (%v), want %v", name, got, err, want)
					}
				}
			},
		})
	})
}

func TestUnknownEntriesStopTheMember(t *testing.T) {
	good, err := encodeCommand(cmdInit("c"))
	if err != nil {
		t.Fatal(err)
	}
	change := func(i int, b byte) []byte {
		out := slices.Clone(good)
		out[i] = b
		return out
	}
	unknownField, err := encodeCommand(&rowraftv1.MetaCommand{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		entry []byte
		code  rowraft.Code
	}{
		{"an empty entry", nil, rowraft.CodeCorrupt},
		{"another magic", change(0, 'X'), rowraft.CodeCorrupt},
		{"a newer version", change(4, byte(wire.NewestVersion()+1)), rowraft.CodeVersionTooNew},
		{"version 0", change(4, 0), rowraft.CodeCorrupt},
		{"a flipped bit in the payload", change(len(good)-1, 'd'), rowraft.CodeCorrupt},
		{"a longer length", change(8, good[8]+1), rowraft.CodeCorrupt},
		{"a byte too many", append(slices.Clone(good), 0), rowraft.CodeCorrupt},
		{"an unknown command", unknownField, rowraft.CodeVersionTooNew},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := New(NewView())
			fatal, ok := m.Apply(1, tc.entry).(*raftstore.FatalError)
			if !ok || rowraft.CodeOf(fatal) != tc.code {
				t.Errorf("Apply answered %v, want a fatal error of code %v", fatal, tc.code)
			}
			if m.AppliedIndex() != 0 || m.view.Map() != nil {
				t.Error("it changed the state")
			}
		})
	}
}

func TestDamagedSnapshotLeavesTheStateWhole(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	a.do(cmdNode("n", "", "h:1"))
	a.ok(metacmd.EnterJob("w", 1, nil))
	good := snapshotBytes(t, a.m)
	before := stateBytes(t, a.m)
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 0x10
		if err := a.m.Restore(bytes.NewReader(bad)); err == nil {
			t.Errorf("a snapshot with byte %d changed was restored", i)
		}
		if err := a.m.Restore(bytes.NewReader(good[:i])); err == nil {
			t.Errorf("a snapshot cut at %d was restored", i)
		}
	}
	if !bytes.Equal(before, stateBytes(t, a.m)) {
		t.Error("a failed restore changed the state")
	}
}

// TestGoldenBytes reads an entry and a snapshot that testdata/golden.py wrote by
// hand from docs/formats/metadata.md.
func TestGoldenBytes(t *testing.T) {
	goldenCommand(t, "put_node", &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_PutNode{
		PutNode: &rowraftv1.MetaPutNode{Node: &rowraftv1.Node{Id: "n-1", Name: "one", Addr: "h:1", PeerAddr: "h:2",
			Scheduler: true}}}})
	m := goldenMachine(t, "state")
	if m.AppliedIndex() != 300 || m.state.registry.lastIncarnation != 5 || m.state.topology.cluster.Cluster != "c-1" ||
		m.view.Map().Version != 2 {
		t.Errorf("snapshot reads %+v", m.state)
	}
}
