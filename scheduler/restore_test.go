package scheduler

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
)

func restoreOf(id byte, epoch uint64, shards int, tables ...rowraft.Schema) *rowraftv1.MetaRestore {
	r := &rowraftv1.MetaRestore{Id: bytes.Repeat([]byte{id}, 16), TableEpoch: epoch}
	for i := range shards {
		r.Shards = append(r.Shards, &rowraftv1.MetaRestoreShard{Shard: uint32(i), Digest: make([]byte, 16)})
	}
	for _, t := range tables {
		r.Tables = append(r.Tables, rpc.SchemaToProto(&t))
	}
	return r
}

func restoredTable(id rowraft.TableID, name string) rowraft.Schema {
	return rowraft.Schema{
		ID: id, Name: name, Kind: rowraft.Sparse, Dim: 2,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}
}

// withShards is a machine of two shards and one table.
func withShards(t *testing.T) *machine {
	t.Helper()
	m := newMachine(NewView())
	old := restoredTable(1, "old")
	shards := []clustermap.Shard{{ID: 0, Replicas: []clustermap.Replica{{ID: "a", Node: "n"}}}, {ID: 1, Replicas: []clustermap.Replica{{ID: "b", Node: "n"}}}}
	for i, c := range []*rowraftv1.MetaCommand{
		{Command: &rowraftv1.MetaCommand_Init{Init: &rowraftv1.MetaInit{ClusterId: "c"}}},
		{Command: &rowraftv1.MetaCommand_PutNode{PutNode: &rowraftv1.MetaPutNode{Node: &rowraftv1.Node{Id: "n", Addr: "a", PeerAddr: "p"}}}},
		{Command: &rowraftv1.MetaCommand_CreateShards{CreateShards: &rowraftv1.MetaCreateShards{Shards: shardsToProto(shards), Slots: rpc.SlotsToProto(clustermap.EvenSlots(2, rowraft.DefaultSlots))}}},
		{Command: &rowraftv1.MetaCommand_CreateTable{CreateTable: &rowraftv1.MetaCreateTable{Table: rpc.SchemaToProto(&old)}}},
	} {
		if err := applyTo(t, m, rowraft.Index(i+1), c); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func applyTo(t *testing.T, m *machine, index rowraft.Index, c *rowraftv1.MetaCommand) error {
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

func decide(r *rowraftv1.MetaRestore) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Restore{Restore: r}}
}

func end(id byte, closed bool) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndRestore{EndRestore: &rowraftv1.MetaEndRestore{Id: bytes.Repeat([]byte{id}, 16), Closed: closed}}}
}

func TestADecidedRestoreIsThePlaceOfAllTables(t *testing.T) {
	m := withShards(t)
	fresh := restoredTable(7, "fresh")
	index := rowraft.Index(10)
	step := func(c *rowraftv1.MetaCommand) error { index++; return applyTo(t, m, index, c) }
	if err := step(begin(1)); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]*rowraftv1.MetaRestore{
		"two epochs on":      restoreOf(1, 3, 2, fresh),
		"the present epoch":  restoreOf(1, 1, 2, fresh),
		"a shard too few":    restoreOf(1, 2, 1, fresh),
		"a table twice":      restoreOf(1, 2, 2, fresh, fresh),
		"a table without id": restoreOf(1, 2, 2, restoredTable(0, "x")),
	} {
		if err := step(decide(bad)); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
	if err := step(end(1, false)); err != nil || m.pendingRestore() != nil {
		t.Errorf("a restore that is not decided: %v", err)
	}
	if err := step(begin(1)); err != nil {
		t.Fatal(err)
	}
	good := restoreOf(1, 2, 2, fresh)
	for range 2 { // a copy changes nothing
		if err := step(decide(good)); err != nil {
			t.Fatal(err)
		}
	}
	if now := m.view.Map(); now.Epoch != 2 || len(now.Tables) != 1 || now.Tables[0] != fresh {
		t.Errorf("epoch %d, tables %+v", now.Epoch, now.Tables)
	}
	if err := step(decide(restoreOf(2, 3, 2, fresh))); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("another restore meanwhile: %v, want Overloaded", err)
	}
	if err := step(end(1, false)); rowraft.CodeOf(err) != rowraft.CodeAlreadyExists {
		t.Errorf("may its stages be dropped? %v, want AlreadyExists", err)
	}
	// It outlives a restart by snapshot.
	if r := reloaded(t, m).pendingRestore(); !bytes.Equal(r.GetId(), good.Id) || len(r.GetShards()) != 2 {
		t.Errorf("after a restart: %v", r)
	}
	if err := step(end(9, true)); err != nil || m.pendingRestore() == nil {
		t.Errorf("the end of another restore ended this one: %v", err)
	}
	if err := step(end(1, true)); err != nil || m.pendingRestore() != nil {
		t.Errorf("it ended: %v, pending %v", err, m.pendingRestore())
	}
}

func begin(id byte) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_BeginRestore{BeginRestore: &rowraftv1.MetaBeginRestore{Id: bytes.Repeat([]byte{id}, 16)}}}
}

// TestARestoreThatWasGivenUpIsNeverDecided: its stages may be dropped already.
func TestARestoreThatWasGivenUpIsNeverDecided(t *testing.T) {
	fresh := restoredTable(7, "fresh")
	for name, before := range map[string][]*rowraftv1.MetaCommand{
		"never begun":      nil,
		"ended":            {begin(1), end(1, false)},
		"another one came": {begin(1), begin(2)},
		"decided, closed":  {begin(1), decide(restoreOf(1, 2, 2, fresh)), end(1, true)},
	} {
		m := withShards(t)
		for i, c := range before {
			if err := applyTo(t, m, rowraft.Index(10+i), c); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		m = reloaded(t, m)
		epoch := uint64(m.view.Map().Epoch) + 1
		if err := applyTo(t, m, 20, decide(restoreOf(1, epoch, 2, fresh))); rowraft.CodeOf(err) != rowraft.CodeLeadershipLost || m.pendingRestore() != nil {
			t.Errorf("%s: %v, want LeadershipLost", name, err)
		}
	}
	m := withShards(t)
	for i, c := range []*rowraftv1.MetaCommand{begin(1), end(2, false), end(3, true)} {
		if err := applyTo(t, m, rowraft.Index(10+i), c); err != nil {
			t.Fatal(err)
		}
	}
	m = reloaded(t, m)
	if err := applyTo(t, m, 20, decide(restoreOf(1, 2, 2, fresh))); err != nil {
		t.Errorf("begun, and others ended: %v", err)
	}
	if err := applyTo(t, m, 21, begin(2)); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("another begins before this one is closed: %v, want Overloaded", err)
	}
	short := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_BeginRestore{BeginRestore: &rowraftv1.MetaBeginRestore{Id: []byte{1}}}}
	if err := applyTo(t, withShards(t), 10, short); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("an id of one byte: %v", err)
	}
}

// reloaded is m after a restart by snapshot.
func reloaded(t *testing.T, m *machine) *machine {
	t.Helper()
	again := newMachine(NewView())
	if err := again.Restore(bytes.NewReader(snapshotBytes(t, m))); err != nil {
		t.Fatal(err)
	}
	return again
}

func TestGoldenBytesOfRestores(t *testing.T) {
	entry, err := os.ReadFile(filepath.Join("testdata", "begin_restore.entry"))
	if err != nil {
		t.Fatal(err)
	}
	id := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	want := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_BeginRestore{BeginRestore: &rowraftv1.MetaBeginRestore{Id: id}}}
	if again, err := encodeCommand(want); err != nil || !bytes.Equal(again, entry) {
		t.Errorf("begin_restore encodes to %x (%v), want %x", again, err, entry)
	}
	m := newMachine(NewView())
	if err := applyTo(t, m, 12, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Init{Init: &rowraftv1.MetaInit{ClusterId: "c-1"}}}); err != nil {
		t.Fatal(err)
	}
	if fatal := m.Apply(12, entry); fatal != nil {
		t.Fatal(fatal)
	}
	golden, err := os.ReadFile(filepath.Join("testdata", "begun.snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	if got := snapshotBytes(t, m); !bytes.Equal(got, golden) {
		t.Errorf("a restore that is begun encodes to %x, want %x", got, golden)
	}
	again := newMachine(NewView())
	if err := again.Restore(bytes.NewReader(golden)); err != nil || !bytes.Equal(again.state.begun, id) {
		t.Errorf("the snapshot reads %x, %v", again.state.begun, err)
	}
}

// partsServer is the shards of one server, which are told of restores.
type partsServer struct {
	rowraftv1.UnimplementedReplicasServer
	mu    sync.Mutex
	drops [][]byte
	begin func() error // nil: it is begun
}

func (p *partsServer) RestorePart(_ context.Context, req *rowraftv1.RestorePartRequest) (*rowraftv1.RestorePartReply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if req.GetDrop() != nil {
		p.drops = append(p.drops, req.GetRestore())
	}
	if req.GetBegin() != nil && p.begin != nil {
		return nil, p.begin()
	}
	return &rowraftv1.RestorePartReply{}, nil
}

func (p *partsServer) dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.drops)
}

// withParts is a scheduler that leads a cluster of one shard, on server a.
func withParts(t *testing.T) (*Scheduler, *partsServer) {
	t.Helper()
	p := &partsServer{}
	s, _ := leaderOfShards(t, 1, serveServices(t, func(g *grpc.Server) { rowraftv1.RegisterReplicasServer(g, p) }))
	return s, p
}

// TestAnOrphanedStageIsDropped: a shard with a stage takes no snapshot, so none may stay
// of a restore that is over, whatever this leader is busy with.
func TestAnOrphanedStageIsDropped(t *testing.T) {
	s, p := withParts(t)
	id := bytes.Repeat([]byte{7}, 16)
	told := func(id []byte) {
		heartbeat(t, s, "a", &rowraftv1.ReplicaStatus{Shard: 0, Role: roleLeader, LeaderNode: "a", Term: 1, StagedRestore: id})
	}
	long := &task{what: "a checkpoint that takes hours"}
	s.checkpoints.ops.try(long, writes)
	told(id)
	reconcile(t, s)
	if n := p.dropped(); n != 1 || !bytes.Equal(p.drops[0], id) {
		t.Fatalf("%d drops of a stage that no restore goes on with, want one: %x", n, p.drops)
	}
	ended := func(at time.Time) {
		s.soft.mu.Lock()
		defer s.soft.mu.Unlock()
		if _, ok := s.soft.ended[[16]byte(id)]; !ok {
			t.Error("the drop was not noted")
		}
		s.soft.ended[[16]byte(id)] = at
	}
	// Heartbeats of before the drop may still tell of it.
	ended(s.soft.now().Add(time.Hour))
	told(id)
	reconcile(t, s)
	if n := p.dropped(); n != 1 {
		t.Errorf("%d drops, want one: the heartbeat may be older than the drop", n)
	}
	// Later ones tell of a begin that came behind the drop.
	ended(s.soft.now().Add(-strayGrace))
	told(id)
	reconcile(t, s)
	if n := p.dropped(); n != 2 {
		t.Errorf("%d drops of a stage that came behind the first, want 2", n)
	}
	// That of a restore which somebody is at stays.
	live := bytes.Repeat([]byte{8}, 16)
	if err := s.proposeCommand(t.Context(), begin(8)); err != nil {
		t.Fatal(err)
	}
	told(live)
	reconcile(t, s)
	if n := p.dropped(); n != 2 {
		t.Errorf("the stage of a restore that is under way was dropped: %x", p.drops)
	}
	s.checkpoints.ops.leave(long) // its call is gone
	reconcile(t, s)
	if n := p.dropped(); n != 3 || s.machine.begunRestore() != nil {
		t.Errorf("%d drops, begun %x; want 3, and nothing begun", n, s.machine.begunRestore())
	}
}

// TestARestoreWhoseLeaderIsLostMayBeRunAgain: the next leader drops the stage, and what a shard says
// of that to the one before is not why the restore failed.
func TestARestoreWhoseLeaderIsLostMayBeRunAgain(t *testing.T) {
	for _, shard := range []rowraft.Code{rowraft.CodeNotFound, rowraft.CodeCorrupt} {
		for _, lost := range []bool{false, true} {
			p := &partsServer{}
			s, l := leaderOfShards(t, 1, serveServices(t, func(g *grpc.Server) { rowraftv1.RegisterReplicasServer(g, p) }))
			p.begin = func() error {
				if lost {
					l.elect("b")
				}
				return rowraft.Errorf(shard, "no restore is under way")
			}
			_, term, err := s.leading()
			if err != nil {
				t.Fatal(err)
			}
			op := &restoration{s: s, term: term, req: &rowraftv1.RestoreCheckpointRequest{}, id: uuid.New(), cluster: s.view.Map(), manifest: &checkpoint.Manifest{}}
			for _, sh := range op.cluster.Shards {
				op.feeds = append(op.feeds, &feed{op: op, shard: sh})
			}
			want := shard
			if lost {
				want = rowraft.CodeLeadershipLost
			}
			if err := op.run(t.Context()); rowraft.CodeOf(err) != want {
				t.Errorf("the leader is lost: %v; the shard says %v: %v, want %v", lost, shard, err, want)
			}
		}
	}
}

func TestReportedStages(t *testing.T) {
	id := func(b byte) []byte { return bytes.Repeat([]byte{b}, 16) }
	s := &Scheduler{}
	now := time.Now()
	s.soft.beats = map[rowraft.NodeID]beat{
		"a": {at: now, replicas: []*rowraftv1.ReplicaStatus{{StagedRestore: id(1)}, {}}},
		"b": {at: now, replicas: []*rowraftv1.ReplicaStatus{{StagedRestore: id(1)}, {StagedRestore: id(2)}, {StagedRestore: []byte("short")}}},
	}
	s.noteEnded(id(2))
	if got := s.reportedStages(); len(got) != 1 || !bytes.Equal(got[0], id(1)) {
		t.Errorf("staged: %x", got)
	}
}

// TestAgesFromTheFirstSecond: tick 0 of a block says that ages are not to be moved, so rows
// from the first second of a shard would be as old as the cluster that they come to.
func TestAgesFromTheFirstSecond(t *testing.T) {
	old, plain := restoredTable(1, "expires"), restoredTable(2, "plain")
	old.Expire = 60
	op := &restoration{tables: []rowraft.Schema{old, plain}, targets: map[rowraft.TableID]rowraft.TableID{1: 1, 2: 2}, ticks: []uint32{0, 9}}
	for i, want := range []uint32{1, 9} {
		if got := op.tickOf(i, old.ID); got != want {
			t.Errorf("part %d, at tick %d, counts as of tick %d, want %d", i, op.ticks[i], got, want)
		}
		if got := op.tickOf(i, plain.ID); got != 0 {
			t.Errorf("part %d: a table that keeps no ages has tick %d", i, got)
		}
	}
}

// TestARestoreOfOneTableIsItsOwnAffair: other tables, their trainers and their runs stay; those of the
// table that gives way begin again.
func TestARestoreOfOneTableIsItsOwnAffair(t *testing.T) {
	h := &history{t: t, m: withShards(t), index: 10}
	m, step := h.m, h.step
	old, b, c := h.enter("old", 0, 1), h.enter("b", 0, 2), h.enter("c", 0, 3)
	none := rowraft.CodeUnknown
	other := restoredTable(9, "b.dense")
	step("a table", &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateTable{CreateTable: &rowraftv1.MetaCreateTable{Table: rpc.SchemaToProto(&other)}}}, none)
	step("a trainer of the first", cmdAttend(old, "", 0, 1), none)
	step("a trainer of the other", cmdAttend(b, "", 0, 9), none)
	step("a trainer of a table that is not", cmdAttend(c, "", 0, 8), rowraft.CodeSessionExpired)

	again := restoredTable(rowraft.TableID(1).RestoredBy(1), "old")
	step("a restore begins", begin(1), none)
	for what, bad := range map[string]*rowraftv1.MetaRestore{
		"the id of the table as it was": restoreOf(1, 1, 2, restoredTable(1, "old")),
		"of another restore":            restoreOf(1, 1, 2, restoredTable(rowraft.TableID(1).RestoredBy(2), "old")),
		"no table":                      restoreOf(1, 1, 2),
	} {
		step(what, decide(bad), rowraft.CodeInvalidArgument)
	}
	r := restoreOf(1, 1, 2, again)
	r.Source = &rowraftv1.MetaRestored{Id: "A", Destination: "/mnt", Name: "a"}
	step("it is decided", decide(r), none)
	if now := m.view.Map(); now.Epoch != 1 || len(now.Tables) != 2 || now.Tables[0] != other || now.Tables[1] != again {
		t.Errorf("epoch %d, tables %+v", now.Epoch, now.Tables)
	}
	step("it is closed", end(1, true), none)
	if got := m.expected(); len(got) != 1 || got[0].job != "b" {
		t.Errorf("%v attend, want the trainer of the other table", got)
	}
	step("the trainer of the other comes back", cmdAttend(b, "", 0, 9), none)
	step("the trainer of the table as it was", cmdAttend(old, "", 0, 1), rowraft.CodeSessionExpired)
	step("the other did not come from the checkpoint", cmdAttend(h.enter("b", 0, 4), "A", 0, 9), rowraft.CodePrecondition)
	step("it goes on from the checkpoint", cmdAttend(h.enter("old", 0, 5), "A", 0, uint64(again.ID)), none)

	// A second one, of the other table, from another checkpoint.
	step("a second restore begins", begin(2), none)
	second := restoredTable(rowraft.TableID(9).RestoredBy(2), "b.dense")
	r = restoreOf(2, 1, 2, second)
	r.Source = &rowraftv1.MetaRestored{Id: "B", Destination: "/mnt", Name: "b"}
	step("it is decided", decide(r), none)
	step("it is closed", end(2, true), none)
	if from, _ := m.restored(); len(from) != 2 || from[0].GetId() != "B" || from[1].GetId() != "A" {
		t.Errorf("the tables come from %v, want B and A", from)
	}
	step("the other goes on", cmdAttend(h.enter("b", 0, 6), "B", 0, uint64(second.ID)), none)
	if got := m.remembered(); !slices.Equal(got, []trainerID{{"b", 0}, {"old", 0}}) {
		t.Errorf("remembered: %v", got)
	}
	step("the first table is dropped", &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_DropTable{DropTable: &rowraftv1.MetaDropTable{Name: "old", Id: uint64(again.ID)}}}, none)
	if from, _ := m.restored(); len(from) != 1 || from[0].GetId() != "B" {
		t.Errorf("the tables come from %v, want B", from)
	}
}
