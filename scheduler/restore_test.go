package scheduler

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
)

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
