package jobs

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

// Before the scheduler asks the shards for the positions of workers that left, the shards refuse later pushes of these
// workers, also if no worker trains in the run any more.
func TestPartsAreSettledBehindTheNextGeneration(t *testing.T) {
	s, _ := served(t)
	var calls []string
	var refuse error = rowraft.Errorf(rowraft.CodeNoLeader, "no leader")
	s.generations.drive = func(_ context.Context, r *rowraftv1.MetaRun) (uint64, error) {
		calls = append(calls, fmt.Sprintf("generation %d of %d", r.GetGeneration(), len(meta.TrainingRanks(r))))
		return 1, refuse
	}
	s.generations.positions = func(context.Context, []byte) ([]meta.ShardPositions, error) {
		calls = append(calls, "positions")
		return []meta.ShardPositions{{}}, nil
	}
	s.generations.rest = func(context.Context, *rowraftv1.MetaRun) error {
		calls = append(calls, "rest")
		return nil
	}
	e, err := resultOf[*meta.EnterResult](s.leader.ProposeResult(t.Context(),
		metacmd.EnterJob("w", 1, func(q *rowraftv1.EnterRequest) {
			metacmd.WithData(100, 100, 1)(q)
			q.InShards, q.Workers, q.Data.InLog = true, 1, true
		})))
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []*rowraftv1.MetaCommand{metacmd.TakeSplit(e.Identity, 1), metacmd.LeaveJob(e.Identity, lost)} {
		if _, err := s.leader.ProposeResult(t.Context(), cmd); err != nil {
			t.Fatal(err)
		}
	}
	s.round(t.Context())
	refuse = nil
	s.round(t.Context())
	want := []string{"generation 2 of 0", "generation 2 of 0", "positions", "rest"}
	if !slices.Equal(calls, want) {
		t.Errorf("the shards were told and asked %q, want %q", calls, want)
	}
}
