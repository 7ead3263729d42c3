package scheduler

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/diagnosis"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

// DropShardTable makes shardServer a shard that has what EnsureTable brought.
func (a *shardServer) DropShardTable(_ context.Context,
	req *rowraftv1.DropShardTableRequest) (*rowraftv1.DropShardTableReply, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drops = append(a.drops, fmt.Sprint(req.Shard, " ", req.Table, " ", req.TableEpoch))
	if a.dropAnswer != nil {
		if err := a.dropAnswer(len(a.drops)); err != nil {
			return nil, err
		}
	}
	return &rowraftv1.DropShardTableReply{}, nil
}

// TestDropReachesEveryShard: through its leader, again after what may pass, and
// once more when a shard turns out to have the table.
func TestDropReachesEveryShard(t *testing.T) {
	a, addr := startShardServer(t)
	s, l := leaderOfShards(t, 2, addr)
	schema := metacmd.SGD("user", 8)
	ctx := testutil.Context(t)
	made, err := s.CreateTable(ctx, &rowraftv1.CreateTableRequest{Table: rpc.SchemaToProto(&schema)})
	if err != nil {
		t.Fatal(err)
	}
	a.dropAnswer = func(call int) error {
		if call == 1 {
			return rowraft.Errorf(rowraft.CodeNoLeader, "an election")
		}
		return nil
	}
	if _, err := s.DropTable(ctx, &rowraftv1.DropTableRequest{Name: "user"}); rowraft.CodeOf(
		err) != rowraft.CodeInvalidArgument {
		t.Errorf("a drop by name alone: %v, want InvalidArgument", err)
	}
	if _, err := s.DropTable(ctx, &rowraftv1.DropTableRequest{Name: "user", Id: made.Table.Id}); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{fmt.Sprint(0, " ", made.Table.Id, " ", 1): true,
		fmt.Sprint(1, " ", made.Table.Id, " ", 1): true}
	for _, d := range a.drops {
		if !want[d] {
			t.Errorf("drop %q, want %v", d, want)
		}
	}
	if len(a.drops) != 3 {
		t.Errorf("%d calls, want one for each shard and one again: %v", len(a.drops), a.drops)
	}
	reconcile(t, s)
	if len(a.drops) != 3 {
		t.Errorf("shards that are done were asked again: %v", a.drops)
	}
	// A late copy of the creation, say, has brought the table back.
	zombie := &rowraftv1.ReplicaStatus{Shard: 1, Role: diagnosis.Leader, LeaderNode: "a", Term: 9,
		Tables: []*rowraftv1.TableStats{{Table: made.Table.Id}}}
	heartbeat(t, s, "a", zombie)
	reconcile(t, s)
	if n := len(a.drops); n != 4 || a.drops[3] != fmt.Sprint(1, " ", made.Table.Id, " ", 1) {
		t.Errorf("after a shard reported the table: calls %v", a.drops)
	}
	// The next leader does not know what is done.
	heartbeat(t, s, "a")
	l.elect(s.opts.Self.ID)
	reconcile(t, s)
	if n := len(a.drops); n != 6 {
		t.Errorf("in a new term: %d calls, want one more for each shard", n)
	}
	// A shard whose tables are those of a later epoch cannot have it.
	l.elect(s.opts.Self.ID)
	a.dropAnswer = func(int) error { return rowraft.Errorf(rowraft.CodeSessionExpired, "another epoch") }
	reconcile(t, s)
}

// TestADropForgetsNoneThatAShardMayHave: the 65th drop waits until the first has reached every shard, because the
// scheduler would never send that shard the forgotten drop.
func TestADropForgetsNoneThatAShardMayHave(t *testing.T) {
	a, addr := startShardServer(t)
	s, l := leaderOfShards(t, 2, addr)
	ctx := testutil.Context(t)
	var stuck atomic.Bool
	stuck.Store(true)
	a.dropAnswer = func(int) error {
		if stuck.Load() {
			return rowraft.Errorf(rowraft.CodeInternal, "a shard that cannot")
		}
		return nil
	}
	create := func(i int) *rowraftv1.TableSchema {
		schema := metacmd.SGD(fmt.Sprint("t", i), 1)
		made, err := s.CreateTable(ctx, &rowraftv1.CreateTableRequest{Table: rpc.SchemaToProto(&schema)})
		if err != nil {
			t.Fatal(err)
		}
		return made.Table
	}
	drop := func(i int) error {
		made := create(i)
		_, err := s.DropTable(ctx, &rowraftv1.DropTableRequest{Name: made.Name, Id: made.Id})
		return err
	}
	testutil.WantCode(t, drop(0), rowraft.CodeInternal, "not yet in every shard")
	// The other drops are only logged: a call of DropTable would ask the shards for all earlier drops, with pauses.
	for i := 1; i < meta.MaxDropped; i++ {
		made := create(i)
		if _, err := s.propose(ctx, metacmd.DropTable(made.Name, made.Id)); err != nil {
			t.Fatal(err)
		}
	}
	first := s.machine.DroppedTables()[0]
	testutil.WantCode(t, drop(meta.MaxDropped), rowraft.CodeOverloaded, "shard 0", "t0")
	if got := s.machine.DroppedTables(); len(got) != meta.MaxDropped || got[0] != first {
		t.Fatalf("%d dropped tables from %v, want %d from %v", len(got), got[0], meta.MaxDropped, first)
	}
	l.elect("n9") // a member that does not lead redirects the caller, whatever it knows of the shards
	_, err := s.DropTable(ctx, &rowraftv1.DropTableRequest{Name: "other", Id: 1})
	testutil.WantCode(t, err, rowraft.CodeNotLeader, "n9")
	l.elect(l.self)
	stuck.Store(false)
	if err := s.tables.ensureDrops(ctx); err != nil {
		t.Fatal(err)
	}
	if err := drop(meta.MaxDropped + 1); err != nil {
		t.Errorf("after every shard has done all drops: %v", err)
	}
	if got := s.machine.DroppedTables(); len(got) != meta.MaxDropped || got[0] == first {
		t.Errorf("%d dropped tables from %v", len(got), got[0])
	}
}

// TestNoTableComesBackBehindItsDrop: a call that is to bring a table into a shard
// is under way when the table is dropped, fails, and is not made again.
func TestNoTableComesBackBehindItsDrop(t *testing.T) {
	a, addr := startShardServer(t)
	s, _ := leaderOfShards(t, 1, addr)
	ctx := testutil.Context(t)
	schema := metacmd.SGD("user", 8)
	entered, leave := make(chan uint64, 1), make(chan struct{})
	a.answer = func(call int, req *rowraftv1.EnsureTableRequest) error {
		entered <- req.Table.Id
		<-leave
		return rowraft.Errorf(rowraft.CodeNoLeader, "an election")
	}
	created := make(chan error, 1)
	go func() {
		_, err := s.CreateTable(ctx, &rowraftv1.CreateTableRequest{Table: rpc.SchemaToProto(&schema)})
		created <- err
	}()
	id := <-entered
	dropped := make(chan error, 1)
	go func() {
		_, err := s.DropTable(ctx, &rowraftv1.DropTableRequest{Name: "user", Id: id})
		dropped <- err
	}()
	for len(s.view.Map().Tables) > 0 { // logged, and not yet driven
		runtime.Gosched()
	}
	close(leave)
	if err := errors.Join(<-created, <-dropped); err != nil {
		t.Fatal(err)
	}
	if a.calls != 1 || len(a.drops) != 1 {
		t.Errorf("%d calls for the table and %d for the drop, want one each", a.calls, len(a.drops))
	}
}

// TestADropWaitsForNoAbandonedRestore: the leader that began the restore died before any shard
// had a stage of it.
func TestADropWaitsForNoAbandonedRestore(t *testing.T) {
	s, _ := newLeader(t, 1, 1)
	reconcile(t, s)
	register(t, s, "a", noServer)
	reconcile(t, s)
	if _, err := s.propose(t.Context(), metacmd.BeginRestore(1)); err != nil {
		t.Fatal(err)
	}
	reconcile(t, s)
	if _, err := s.propose(t.Context(), metacmd.DropTable("t", 9)); rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		t.Errorf("drop of a table that there is not: %v, want TableNotFound", err)
	}
}
