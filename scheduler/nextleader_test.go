package scheduler

import (
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestARestoreGoesOnWithTheNextLeader: the leader changes while shards stage rows, or after the decision. The caller
// asks the next leader again, and the checkpoint is restored once.
func TestARestoreGoesOnWithTheNextLeader(t *testing.T) {
	dest := t.TempDir()
	emptyCheckpoint(t, dest, "a", 0)
	emptyCheckpoint(t, dest, "b", 0)
	for _, tc := range []struct {
		name  string
		lose  func(p *fakeParts, lose func())
		other bool // another checkpoint is restored in between
		code  rowraft.Code
	}{
		{name: "while it is staged", lose: func(p *fakeParts, lose func()) { p.begun = lose }},
		{name: "after the decision", lose: func(p *fakeParts, lose func()) { p.ended = lose }},
		{name: "while it is staged, and another is restored", lose: func(p *fakeParts, lose func()) { p.begun = lose },
			other: true, code: rowraft.CodePrecondition},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, p := restoringCluster(t)
			l := (*s.log.Load()).(*fakeLog)
			restore := func(req *rowraftv1.RestoreCheckpointRequest) (*rowraftv1.RestoreCheckpointReply, error) {
				stream := &restoreStream{ctx: testutil.Context(t)}
				req.Destination, req.Replace = dest, true
				err := s.Checkpoints().RestoreCheckpoint(req, stream)
				return stream.last, err
			}
			last := func(req *rowraftv1.RestoreCheckpointRequest) *rowraftv1.RestoreCheckpointReply {
				reply, err := restore(req)
				if err != nil {
					t.Fatal(err)
				}
				return reply
			}
			plan := last(&rowraftv1.RestoreCheckpointRequest{Name: "a", Plan: true})
			req := &rowraftv1.RestoreCheckpointRequest{Name: "a", After: plan.GetDecided()}
			tc.lose(p, func() { l.elect("another") })
			_, err := restore(req)
			testutil.WantCodeOf(t, "the leader is lost", err, rowraft.CodeLeadershipLost)
			p.begun, p.ended = nil, nil
			l.elect(l.self)
			reconcile(t, s) // as the next leader does
			if tc.other {
				last(&rowraftv1.RestoreCheckpointRequest{Name: "b"})
			}
			if tc.code != 0 {
				_, err := restore(req)
				testutil.WantCodeOf(t, "the second attempt", err, tc.code)
				return
			}
			for range 2 { // a third attempt, too
				done := last(req)
				if done.GetPhase() != "done" || done.GetTableEpoch() != 2 || len(done.GetShards()) != 1 ||
					len(done.GetTables()) != 1 {
					t.Errorf("it ends with %v", done)
				}
			}
			if _, epoch := s.machine.Sources(); epoch != 2 || s.machine.PendingRestore() != nil {
				t.Errorf("table epoch %d, pending %v; want one restore", epoch, s.machine.PendingRestore())
			}
		})
	}
}
