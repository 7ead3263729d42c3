package scheduler

import (
	"math"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// TestCommandsAndMovesAreCounted: each command counts with its result, and a move counts once when it starts and once
// when it ends. A duration that is unknown is no duration of 0 s.
func TestCommandsAndMovesAreCounted(t *testing.T) {
	var s stats
	start := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_StartMove{StartMove: &rowraftv1.MetaStartMove{}}}
	advance := func(id uint64, to meta.Phase) *rowraftv1.MetaCommand {
		return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_AdvanceMove{
			AdvanceMove: &rowraftv1.MetaAdvanceMove{MoveId: id, To: to}}}
	}
	s.proposed(start, nil, rowraft.Errorf(rowraft.CodePrecondition, "look again"))
	s.proposed(start, meta.Move{ID: 1}, nil)
	s.proposed(start, meta.Move{ID: 2}, nil)
	begun := []uint64{0: 2e9, 1: 2e9, 2: 2e9, 3: 6e9} // the last one by another clock
	for i, to := range []meta.Phase{meta.PhasePromote, meta.PhaseCancelled, meta.PhaseDone, meta.PhaseDone} {
		id := uint64(i + 1)
		s.proposed(advance(id, to), meta.Move{ID: id, Phase: to, BegunNs: begun[i], EndedNs: 5e9}, nil)
	}
	for kind, want := range map[command]uint64{
		{"start_move", "OK"}: 2, {"start_move", "Precondition"}: 1, {"advance_move", "OK"}: 4,
	} {
		if got := s.commands[kind]; got != want {
			t.Errorf("%v: %d, want %d", kind, got, want)
		}
	}
	for event, want := range map[string]uint64{"started": 2, "done": 2, "cancelled": 1} {
		if got := s.moves[event]; got != want {
			t.Errorf("moves %s: %d, want %d", event, got, want)
		}
	}
	if took := s.moveTook.Snapshot(); took.Count != 1 || took.Sum != 3*time.Second {
		t.Errorf("%d durations of %v, want one of 3s", took.Count, took.Sum)
	}
}

// TestNumbersOfAJob: a worker reports NaN for what it does not know.
func TestNumbersOfAJob(t *testing.T) {
	beats := []*rowraftv1.WorkerBeat{
		{Loss: 0.5, StalenessSteps: math.NaN(), ExamplesPerSecond: 100},
		{Loss: math.NaN(), StalenessSteps: math.NaN(), ExamplesPerSecond: 50},
	}
	if got := mean(beats, (*rowraftv1.WorkerBeat).GetLoss); got != 0.5 {
		t.Errorf("loss %v, want 0.5", got)
	}
	if got := sum(beats, (*rowraftv1.WorkerBeat).GetExamplesPerSecond); got != 150 {
		t.Errorf("%v examples per second, want 150", got)
	}
	if got := highest(beats, (*rowraftv1.WorkerBeat).GetStalenessSteps); !math.IsNaN(got) {
		t.Errorf("staleness %v, want NaN", got)
	}
}
