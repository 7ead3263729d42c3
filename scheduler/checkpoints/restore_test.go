package checkpoints

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

// partsServer serves the shards of one server in a restore.
type partsServer struct {
	rowraftv1.UnimplementedReplicasServer
	mu    sync.Mutex
	drops [][]byte
	begin func() error // nil: it is begun
}

func (p *partsServer) RestoreShard(_ context.Context,
	req *rowraftv1.RestoreShardRequest) (*rowraftv1.RestoreShardReply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if req.GetDrop() != nil {
		p.drops = append(p.drops, req.GetRestore())
	}
	if req.GetBegin() != nil && p.begin != nil {
		return nil, p.begin()
	}
	return &rowraftv1.RestoreShardReply{}, nil
}

func (p *partsServer) dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.drops)
}

// TestAnOrphanedStageIsDropped: a shard with a stage takes no snapshot, so none may stay
// of a restore that is over, also while this leader makes a checkpoint.
func TestAnOrphanedStageIsDropped(t *testing.T) {
	p := &partsServer{}
	s, l, _ := newSolo(t, 1, func(g *grpc.Server) { rowraftv1.RegisterReplicasServer(g, p) })
	id := bytes.Repeat([]byte{7}, 16)
	told := func(id []byte) { l.report(StagedRestore{ID: id, At: time.Now()}) }
	reconcile := func() {
		t.Helper()
		if err := s.Reconcile(t.Context(), s.view.Map()); err != nil {
			t.Fatal(err)
		}
	}
	long := &task{what: "a checkpoint that takes hours"}
	s.ops.try(long, writes)
	told(id)
	reconcile()
	if n := p.dropped(); n != 1 || !bytes.Equal(p.drops[0], id) {
		t.Fatalf("%d drops of a stage of no restore, want one: %x", n, p.drops)
	}
	ended := func(at time.Time) {
		s.ended.mu.Lock()
		defer s.ended.mu.Unlock()
		if _, ok := s.ended.at[[16]byte(id)]; !ok {
			t.Error("the drop was not noted")
		}
		s.ended.at[[16]byte(id)] = at
	}
	// Heartbeats from before the drop may still report it.
	ended(time.Now().Add(time.Hour))
	told(id)
	reconcile()
	if n := p.dropped(); n != 1 {
		t.Errorf("%d drops, want one: the heartbeat may be older than the drop", n)
	}
	// Later ones report a begin that arrived after the drop.
	ended(time.Now().Add(-strayGrace))
	told(id)
	reconcile()
	if n := p.dropped(); n != 2 {
		t.Errorf("%d drops of a stage that was made after the first, want 2", n)
	}
	// The stage of a running restore stays.
	live := bytes.Repeat([]byte{8}, 16)
	if err := s.lead.Propose(t.Context(), metacmd.BeginRestore(8)); err != nil {
		t.Fatal(err)
	}
	told(live)
	reconcile()
	if n := p.dropped(); n != 2 {
		t.Errorf("the stage of a restore that is under way was dropped: %x", p.drops)
	}
	s.ops.leave(long) // its call is gone
	reconcile()
	if n := p.dropped(); n != 3 || s.machine.BegunRestore() != nil {
		t.Errorf("%d drops, begun %x; want 3, and nothing begun", n, s.machine.BegunRestore())
	}
}

// TestARestoreWhoseLeaderIsLostMayBeRunAgain: the next leader drops the stage, and what a shard says
// of that to the one before is not why the restore failed.
func TestARestoreWhoseLeaderIsLostMayBeRunAgain(t *testing.T) {
	for _, shard := range []rowraft.Code{rowraft.CodeNotFound, rowraft.CodeCorrupt} {
		for _, lost := range []bool{false, true} {
			p := &partsServer{}
			s, l, _ := newSolo(t, 1, func(g *grpc.Server) { rowraftv1.RegisterReplicasServer(g, p) })
			p.begin = func() error {
				if lost {
					l.Elect(false)
				}
				return rowraft.Errorf(shard, "no restore is under way")
			}
			term, err := s.lead.Leading()
			if err != nil {
				t.Fatal(err)
			}
			op := &restoration{c: s, term: term, req: &rowraftv1.RestoreCheckpointRequest{}, id: uuid.New(),
				cluster: s.view.Map(), manifest: &checkpoint.Manifest{Slots: rowraft.DefaultSlots}}
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
	s, l, _ := newSolo(t, 0, nil)
	now := time.Now()
	l.report(StagedRestore{id(1), now}, StagedRestore{id(1), now}, StagedRestore{id(2), now},
		StagedRestore{[]byte("short"), now})
	s.noteEnded(id(2))
	if got := s.reportedStages(); len(got) != 1 || !bytes.Equal(got[0], id(1)) {
		t.Errorf("staged: %x", got)
	}
}

// TestAgesFromTheFirstSecond: tick 0 of a block says that ages are not to be moved, so rows
// from the first second of a shard would be as old as the cluster that they come to.
func TestAgesFromTheFirstSecond(t *testing.T) {
	old, plain := metacmd.Table(1, "expires"), metacmd.Table(2, "plain")
	old.Expire = 60
	op := &restoration{tables: []rowraft.Schema{old, plain}, targets: map[rowraft.TableID]rowraft.TableID{1: 1, 2: 2},
		ticks: []uint32{0, 9}}
	for i, want := range []uint32{1, 9} {
		if got := op.tickOf(i, old.ID); got != want {
			t.Errorf("part %d, at tick %d, counts as of tick %d, want %d", i, op.ticks[i], got, want)
		}
		if got := op.tickOf(i, plain.ID); got != 0 {
			t.Errorf("part %d: a table that keeps no ages has tick %d", i, got)
		}
	}
}

// A restore that was begun ends if no operation of this leader works on it, though no shard has a stage of it.
func TestABegunRestoreIsGivenUp(t *testing.T) {
	s, _, _ := newSolo(t, 1, nil)
	if err := s.lead.Propose(t.Context(), metacmd.BeginRestore(1)); err != nil {
		t.Fatal(err)
	}
	running := &task{what: "the restore"} // of this leader
	s.ops.try(running, restores)
	for _, want := range []bool{true, false} {
		if err := s.Reconcile(t.Context(), s.view.Map()); err != nil {
			t.Fatal(err)
		}
		if begun := s.machine.BegunRestore() != nil; begun != want {
			t.Errorf("begun: %v, want %v", begun, want)
		}
		s.ops.leave(running)
	}
}
